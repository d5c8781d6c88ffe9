package command

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/parley-chat/parley/schemacheck/compat"
	"github.com/parley-chat/parley/schemacheck/compat/schema"
	"github.com/parley-chat/parley/schemacheck/gate"
	"github.com/parley-chat/parley/schemacheck/internal/load"
	"github.com/parley-chat/parley/schemacheck/internal/release"
	"github.com/parley-chat/parley/schemacheck/internal/report"
)

// check compares head with base.
func check(ctx context.Context, args []string, e Env) error {
	var s settings
	if err := s.parse(e, "check", args, "base", "head", "policy", "scope", "format", "strict", "exclude", "events", "registry"); err != nil {
		return err
	}
	if s.base == "" {
		return errors.New("--base is missing: a git ref (--base origin/main), a directory, an image or registry; see schemacheck help")
	}
	o, err := s.options()
	if err != nil {
		return err
	}
	if s.base == "registry" {
		return checkRegistry(ctx, &s, o, e)
	}
	head, err := s.loadHead(ctx, e)
	if err != nil {
		return err
	}
	bases, err := load.Load(ctx, s.base, load.Options{Dir: e.Dir, Git: s.gitDir(e), Exclude: s.exclude})
	if err != nil {
		return fmt.Errorf("base: %w", err)
	}
	if o.Events, err = s.eventPatterns(bases, head); err != nil {
		return err
	}
	r := s.report(head)
	if err := against(ctx, r, bases, head, o); err != nil {
		return err
	}
	return finish(r, s.format, e)
}

// loadHead reads the one schema that is judged.
func (s *settings) loadHead(ctx context.Context, e Env) (*load.Schema, error) {
	found, err := load.Load(ctx, s.head, load.Options{Dir: e.Dir, Git: e.Dir, Exclude: s.exclude})
	if err != nil {
		return nil, fmt.Errorf("head: %w", err)
	}
	if len(found) != 1 {
		return nil, fmt.Errorf("head: %s holds %d schemas: name one image", s.head, len(found))
	}
	if s.head == "." {
		found[0].Name = "the working tree"
	}
	return found[0], nil
}

// gitDir is where refs are looked up: the repository of head, if head is a folder.
func (s *settings) gitDir(e Env) string {
	path := s.head
	if !filepath.IsAbs(path) {
		path = filepath.Join(e.Dir, path)
	}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return path
	}
	return e.Dir
}

func (s *settings) report(head *load.Schema) *report.Report {
	return &report.Report{Head: head.Name, Policy: s.policy, Scope: s.scope, Strict: s.strict, Files: len(head.Files)}
}

// against compares head with the bases that the policy names, of which the last one
// is the newest.
func against(ctx context.Context, r *report.Report, bases []*load.Schema, head *load.Schema, o compat.Options) error {
	r.Policy = o.Policy.String()
	is, versions := head.Files, make([][]protoreflect.FileDescriptor, len(bases))
	for i, base := range bases {
		versions[i] = base.Files
	}
	if o.Scope == compat.API {
		is = withoutEvents(is, o.Events)
		for i, files := range versions {
			versions[i] = withoutEvents(files, o.Events)
		}
	}
	compared, err := gate.CompareAll(ctx, versions, is, o)
	if err != nil {
		return err
	}
	for _, c := range slices.Backward(compared) {
		base := bases[c.Version]
		r.Base = slices.Insert(r.Base, 0, base.Name)
		r.Add(base.Name, c.Findings, func(f compat.Finding) string {
			if f.Base {
				return base.Place(f.File)
			}
			return head.Place(f.File)
		})
	}
	if len(head.Files) == 0 {
		r.Notes = append(r.Notes, "head has no file in scope")
	} else if o.Scope == compat.All {
		r.Notes = append(r.Notes, judged(head.Files, o.Events))
	}
	return nil
}

// withoutEvents leaves out the files of events, which are no API.
func withoutEvents(files []protoreflect.FileDescriptor, events []string) []protoreflect.FileDescriptor {
	side := schema.New(files, events...)
	return slices.DeleteFunc(slices.Clone(files), func(f protoreflect.FileDescriptor) bool {
		return side.Named[f.Path()] || side.Declared && side.Registered[f.Path()]
	})
}

func finish(r *report.Report, format string, e Env) error {
	r.Finish()
	if err := r.Write(e.Stdout, format); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	if !r.Clean() {
		return errFindings
	}
	return nil
}

// ci judges head against everything that was ever released, by comparing with each
// image, by reading the corpus, and by what git knows of both.
func ci(ctx context.Context, args []string, e Env) error {
	s := settings{policy: compat.FullTransitive.String(), scope: "all"}
	if err := s.parse(e, "ci", args, "head", "released", "format", "strict", "exclude", "events"); err != nil {
		return err
	}
	dir := s.releasedDir(e)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is not there: schemacheck release makes it", s.released)
	}
	head, err := s.loadHead(ctx, e)
	if err != nil {
		return err
	}
	bases, err := load.Load(ctx, s.released, load.Options{Dir: e.Dir})
	if err != nil {
		return fmt.Errorf("released: %w", err)
	}
	r := s.report(head)
	if err := s.againstReleased(ctx, r, bases, head); err != nil {
		return err
	}
	gone, whole, err := release.Unchanged(ctx, dir)
	if err != nil {
		return err
	}
	if !whole {
		r.Notes = append(r.Notes, "not all of the history is here (a shallow clone, or none): what it has released was not looked for")
	}
	unread, n, err := release.Verify(dir, head.Files)
	if err != nil {
		return fmt.Errorf("read the corpus: %w", err)
	}
	for _, problem := range append(gone, unread...) {
		r.Extra = append(r.Extra, shorter(e.Dir, problem))
	}
	r.Notes = append(r.Notes, fmt.Sprintf("head has read %d released events", n-len(unread)))
	return finish(r, s.format, e)
}

func (s *settings) releasedDir(e Env) string {
	if filepath.IsAbs(s.released) {
		return s.released
	}
	return filepath.Join(e.Dir, s.released)
}

// shorter makes the path that a sentence starts with relative to the working
// directory.
func shorter(dir, sentence string) string {
	if rel, err := filepath.Rel(dir, sentence); err == nil && filepath.IsLocal(rel) {
		return rel
	}
	return sentence
}

// releases adds the schema of head to the released ones, if it may follow them.
func releases(ctx context.Context, args []string, e Env) error {
	var s settings
	if err := s.parse(e, "release", args, "head", "released", "exclude", "events"); err != nil {
		return err
	}
	head, err := s.loadHead(ctx, e)
	if err != nil {
		return err
	}
	dir := s.releasedDir(e)
	names, err := release.Names(dir)
	if err != nil {
		return err
	}
	if len(names) > 0 {
		bases, err := load.Load(ctx, s.released, load.Options{Dir: e.Dir})
		if err != nil {
			return fmt.Errorf("released: %w", err)
		}
		r := s.report(head)
		r.Scope = "all"
		if err := s.againstReleased(ctx, r, bases, head); err != nil {
			return err
		}
		if r.Finish(); !r.Clean() {
			return errors.Join(finish(r, "text", e))
		}
	}
	name, err := release.Add(ctx, dir, head.Files)
	if err != nil {
		return err
	}
	if name == "" {
		fmt.Fprintf(e.Stdout, "nothing new since %s\n", names[len(names)-1])
		return nil
	}
	fmt.Fprintf(e.Stdout, "released as %s; commit %s\n", name, s.released)
	return nil
}
