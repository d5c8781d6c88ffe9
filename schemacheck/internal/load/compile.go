package load

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/parley-chat/parley/schemacheck/compile"
)

// compile makes descriptors of a tree's files.
func (t *tree) compile(ctx context.Context, exclude []string) (*Schema, error) {
	paths, err := t.importPaths()
	if err != nil {
		return nil, err
	}
	s := &Schema{Name: t.name, Paths: map[string]string{}, Text: map[string]string{}}
	var names []string
	for _, name := range slices.Sorted(maps.Keys(paths)) {
		s.Paths[name] = t.prefix + paths[name]
		s.Text[name] = string(t.files[paths[name]])
		if !compile.WellKnown(name) && !Matches(exclude, s.Paths[name]) {
			names = append(names, name)
		}
	}
	files, errs := compile.Files(ctx, s.Text, names)
	if len(errs) > 0 {
		var list []error
		for _, e := range errs {
			list = append(list, fmt.Errorf("%s:%d:%d: %s", s.Place(e.File), e.Line, e.Column, e.Text))
		}
		return nil, fmt.Errorf("%s does not compile: %w", t.name, errors.Join(list...))
	}
	s.Files = files
	return s, nil
}
