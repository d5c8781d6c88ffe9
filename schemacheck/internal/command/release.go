package command

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/parley-chat/parley/schemacheck/compat"
	"github.com/parley-chat/parley/schemacheck/internal/load"
	"github.com/parley-chat/parley/schemacheck/internal/release"
)

// ci judges head against everything that was ever released, by comparing with each
// image, by reading the corpus, and by what git knows of both.
func ci(ctx context.Context, args []string, e Env) error {
	s := settings{policy: compat.FullTransitive.String(), scope: "all"}
	if err := s.parse(e, "ci", args, "head", "released", "format", "strict", "exclude", "events", "config"); err != nil {
		return err
	}
	v, err := s.loadReleased(ctx, e)
	if err != nil {
		return err
	}
	if len(v.bases) == 0 {
		return fmt.Errorf("%s is not there: schemacheck release makes it, and a tree without events is compared by schemacheck --base REF", s.released)
	}
	r := s.report(v.head)
	if err := v.judge(ctx, r); err != nil {
		return err
	}
	dir := s.releasedDir(e)
	gone, whole, err := release.Unchanged(ctx, dir)
	if err != nil {
		return err
	}
	if !whole {
		r.Notes = append(r.Notes, "not all of the history is here (a shallow clone, or none): what it has released was not looked for")
	}
	unread, n, err := release.Verify(dir, v.head.Files, v.o.Events)
	if err != nil {
		return fmt.Errorf("read the corpus: %w", err)
	}
	for _, problem := range gone {
		r.Problems = append(r.Problems, shorter(e.Dir, problem))
	}
	for _, u := range unread {
		r.Unread(shorter(e.Dir, u.Path), u.Event, u.What)
	}
	v.waive(r, e.now())
	r.Notes = append(r.Notes, fmt.Sprintf("head has read %d released events", n-len(unread)))
	return finish(r, s.format, e)
}

// loadReleased reads head and the releases; no bases stand for no releases.
func (s *settings) loadReleased(ctx context.Context, e Env) (*verdict, error) {
	if err := s.configure(ctx, e); err != nil {
		return nil, err
	}
	v := &verdict{settings: s, o: compat.Options{Policy: compat.FullTransitive, Scope: compat.All}}
	var err error
	if v.head, err = s.loadHead(ctx, e); err != nil {
		return nil, err
	}
	names, err := release.Names(s.releasedDir(e))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if len(names) > 0 {
		if v.bases, err = load.Load(ctx, s.released, load.Options{Dir: e.Dir}); err != nil {
			return nil, fmt.Errorf("released: %w", err)
		}
	}
	v.o.Events, err = s.releasedPatterns(v.bases, v.head)
	return v, err
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
	s := settings{policy: compat.FullTransitive.String(), scope: "all"}
	if err := s.parse(e, "release", args, "head", "released", "exclude", "events", "config"); err != nil {
		return err
	}
	v, err := s.loadReleased(ctx, e)
	if err != nil {
		return err
	}
	last := ""
	if n := len(v.bases); n > 0 {
		last = v.bases[n-1].Name
		r := s.report(v.head)
		if err := v.judge(ctx, r); err != nil {
			return err
		}
		v.waive(r, e.now())
		if r.Finish(); !r.Clean() {
			return finish(r, "text", e)
		}
		for _, w := range r.Waived {
			fmt.Fprintf(e.Stdout, "waived: %s\n", w)
		}
	}
	name, err := release.Add(ctx, s.releasedDir(e), v.head.Files, v.o.Events)
	if errors.Is(err, release.ErrNoEvent) {
		return fmt.Errorf("%w; --events PATTERN or events in %s name them; an API is not released, it is compared by schemacheck --base REF", err, load.ConfigName)
	}
	if err != nil {
		return err
	}
	if name == "" {
		fmt.Fprintf(e.Stdout, "nothing new since %s\n", last)
		return nil
	}
	fmt.Fprintf(e.Stdout, "released as %s; commit %s\n", name, s.released)
	return nil
}
