package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/parley-chat/parley/schemacheck/compat/schema"
	"github.com/parley-chat/parley/schemacheck/internal/report"
)

// diff shows people what has changed, how each change is judged and whom it breaks.
func diff(ctx context.Context, args []string, e Env) error {
	var s settings
	if err := s.parse(e, "diff", args, "base", "head", "policy", "scope", "strict", "exclude", "events",
		"config"); err != nil {
		return err
	}
	if s.base == "" || s.base == "registry" {
		return errors.New("--base is missing: a git ref (--base origin/main), a directory or an image; see schemacheck help")
	}
	v, err := s.load(ctx, e)
	if err != nil {
		return err
	}
	r := s.report(v.head)
	if err := v.judge(ctx, r); err != nil {
		return err
	}
	v.waive(r, e.now())
	r.Finish()
	is, _ := v.scoped(v.head.Files)
	was, _ := v.scoped(v.bases[len(v.bases)-1].Files)
	if _, err := fmt.Fprint(e.Stdout,
		v.changes(r, report.Between(schema.New(was, v.o.Events...), schema.New(is, v.o.Events...)))); err != nil {
		return fmt.Errorf("write the differences: %w", err)
	}
	if !r.Clean() {
		return errFindings
	}
	return nil
}

// changes writes differences with the findings about them. A finding about no listed
// change stands at the end.
func (v *verdict) changes(r *report.Report, groups []report.Group) string {
	var b strings.Builder
	left := slices.Clone(r.Findings)
	take := func(of func(report.Finding) bool) (found []report.Finding) {
		left = slices.DeleteFunc(left, func(f report.Finding) bool {
			if of(f) {
				found = append(found, f)
				return true
			}
			return false
		})
		return found
	}
	for _, g := range groups {
		fmt.Fprintf(&b, "%s %s  %s%s\n", g.Sign, g.Name, v.head.RepoPath(g.File), as(r, g))
		for _, c := range g.Changes {
			fmt.Fprintf(&b, "  %s %s\n", c.Sign,
				strings.Join(slices.DeleteFunc([]string{c.Was, c.Is}, func(s string) bool { return s == "" }), "\n    now "))
			verdicts(&b, take(func(f report.Finding) bool { return slices.Contains(c.Subjects, f.Subject) }))
		}
		verdicts(&b, take(func(f report.Finding) bool {
			return f.Subject == g.Name ||
				strings.HasPrefix(f.Subject, g.Name+".")
		}))
	}
	for _, f := range left {
		fmt.Fprintf(&b, "  %s  %s\n", f.Subject, f.File)
		verdicts(&b, []report.Finding{f})
	}
	for _, w := range r.Waived {
		fmt.Fprintf(&b, "waived: %s\n", w)
	}
	for _, s := range r.Problems {
		fmt.Fprintf(&b, "block: %s\n", s)
	}
	if len(groups) == 0 {
		fmt.Fprintln(&b, "nothing has changed but comments, order or white space")
	}
	fmt.Fprintln(&b, r.Summary())
	return b.String()
}

// as says what a type is judged as.
func as(r *report.Report, g report.Group) string {
	for _, e := range r.Judged.Events {
		if e.Name == g.Name && e.Declared {
			return fmt.Sprintf(", an event on %s", e.Topic)
		} else if e.Name == g.Name {
			return ", an event"
		}
	}
	if slices.Contains(r.Judged.Types, g.Name) {
		return ", used by events"
	}
	return ""
}

func verdicts(b *strings.Builder, findings []report.Finding) {
	for _, f := range findings {
		title := f.Title
		if f.Detail != "" {
			title += " (" + f.Detail + ")"
		}
		fmt.Fprintf(b, "      %s %s: %s\n", f.Severity, f.ID.Label(), title)
		for _, s := range []string{f.Breaks(), f.Why, f.Suggestion} {
			if s != "" {
				fmt.Fprintf(b, "        %s\n", s)
			}
		}
	}
}
