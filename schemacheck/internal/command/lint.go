package command

import (
	"context"
	"slices"

	"github.com/parley-chat/parley/schemacheck/compat/rule"
	"github.com/parley-chat/parley/schemacheck/compat/schema"
	"github.com/parley-chat/parley/schemacheck/internal/schemafile"
)

// lintEvents checks the names and options of all events of head. A comparison does
// it for new ones.
func lintEvents(ctx context.Context, args []string, e Env) error {
	s := settings{scope: "event", policy: "NONE"}
	if err := s.parse(e, "lint", args, "head", "format", "strict", "exclude", "events", "config"); err != nil {
		return err
	}
	if err := s.configure(ctx, e); err != nil {
		return err
	}
	s.policy = "NONE"
	o, err := s.options()
	if err != nil {
		return err
	}
	v := &verdict{settings: &s, o: o}
	if v.head, err = s.loadHead(ctx, e); err != nil {
		return err
	}
	if v.o.Events, err = s.eventPatterns(nil, v.head); err != nil {
		return err
	}
	r := s.report(v.head)
	r.Notes = append(r.Notes, v.head.Notes...)
	head := schema.New(v.head.Files, v.o.Events...)
	if !v.something(head) {
		return v.nothing()
	}
	v.lint(r, nil, head)
	r.Judged = v.judged(head, nil)
	// Waivers of what a comparison finds are none of lint's.
	file := *s.file
	file.Waivers = slices.DeleteFunc(slices.Clone(file.Waivers), func(w schemafile.Waiver) bool {
		return !w.ID.Has(rule.AboutNaming)
	})
	s.file = &file
	s.waive(r, e.now())
	return finish(r, s.format, e)
}
