package load

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/parley-chat/parley/schemacheck/compile"
)

// compile makes descriptors of a tree's files.
func (t *tree) compile(ctx context.Context, o Options) (*Schema, error) {
	paths, err := t.importPaths()
	if err != nil {
		return nil, err
	}
	s := &Schema{Name: t.name, Paths: map[string]string{}, Text: map[string]string{}, Notes: t.notes}
	own := map[string]bool{}
	for name, p := range paths {
		s.Paths[name] = t.prefix + p
		s.Text[name] = string(t.files[p])
		own[s.Text[name]] = own[s.Text[name]] || !t.aliases[p]
	}
	var names []string
	for _, name := range slices.Sorted(maps.Keys(paths)) {
		// A file that is also in scope under its own name is judged there.
		alias := t.aliases[paths[name]] && own[s.Text[name]]
		if !alias && !compile.WellKnown(name) && !Matches(o.Exclude, s.Paths[name]) {
			names = append(names, name)
		}
	}
	missing, err := t.borrow(s, o.Cache)
	if err != nil {
		return nil, err
	}
	files, errs := compile.Files(ctx, s.Text, names)
	if len(errs) > 0 {
		return nil, fmt.Errorf("%s does not compile: %w", t.name, s.mistakes(errs, missing))
	}
	s.Files = files
	return s, nil
}

// borrow adds what imports name and no module holds: files that stand vendored in the
// tree, and those of buf's cache. They are not judged. It returns the modules that
// the cache lacks.
func (t *tree) borrow(s *Schema, cache string) ([]string, error) {
	modules, missing, err := t.cached(cache)
	if err != nil {
		return nil, err
	}
	all := t.protos()
	slices.SortStableFunc(all, func(a, b string) int { return len(a) - len(b) })
	queue := slices.Sorted(maps.Keys(s.Text))
	for len(queue) > 0 {
		text := s.Text[queue[0]]
		queue = queue[1:]
		for _, m := range importLine.FindAllStringSubmatch(text, -1) {
			name := m[1]
			if _, known := s.Text[name]; known || compile.BuiltIn(name) != nil {
				continue
			}
			i := slices.IndexFunc(all, func(p string) bool { return p == name || strings.HasSuffix(p, "/"+name) })
			module, cached := modules[name]
			switch {
			case cached:
				s.Text[name] = module
			case i >= 0:
				s.Text[name], s.Paths[name] = string(t.files[all[i]]), t.prefix+all[i]
			default:
				continue
			}
			queue = append(queue, name)
		}
	}
	return missing, nil
}

// mistakes says what does not compile, where, and what helps.
func (s *Schema) mistakes(errs []compile.Mistake, missing []string) error {
	var list []error
	absent, edition := false, false
	for _, e := range errs {
		position := ""
		if e.File != "" {
			position = s.RepoPath(e.File)
			if e.Line > 0 {
				position += fmt.Sprintf(":%d:%d", e.Line, e.Column)
			}
			position += ": "
		}
		list = append(list, errors.New(position+e.Text))
		absent, edition = absent || e.Import != "", edition || e.Edition
	}
	switch {
	case absent && len(missing) > 0:
		list = append(list, fmt.Errorf(
			"buf.lock names %s, which buf's cache does not hold: run buf build once, or compare images made with buf build -o image.binpb", strings.Join(missing, ", ")))
	case absent:
		list = append(list, errors.New(
			"if another repository or the BSR holds it, compare images: buf build -o image.binpb, or protoc --include_imports -o image.binpb"))
	case edition:
		list = append(list, errors.New(
			"compare images instead, of a compiler that knows the edition: protoc --include_imports --include_source_info -o image.binpb FILES"))
	}
	return errors.Join(list...)
}
