package command

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/parley-chat/parley/schemacheck/compat"
	"github.com/parley-chat/parley/schemacheck/compat/schema"
	"github.com/parley-chat/parley/schemacheck/internal/load"
	"github.com/parley-chat/parley/schemacheck/internal/report"
)

// eventPatterns returns the patterns of --events in terms of import paths and
// packages: an image does not know where its files stood in a repository, so what
// matches there is named by its import path. A pattern that matches nothing is
// refused: it would leave files to the other rules unseen.
func (s *settings) eventPatterns(bases []*load.Schema, head *load.Schema) ([]string, error) {
	patterns := slices.Clone([]string(s.events))
	for _, pattern := range s.events {
		found := false
		for _, side := range append(slices.Clone(bases), head) {
			for _, f := range side.Files {
				if load.Matches([]string{pattern}, side.Place(f.Path())) {
					patterns = append(patterns, f.Path())
					found = true
				}
				found = found || schema.Matches([]string{pattern}, f)
			}
		}
		if !found {
			return nil, fmt.Errorf("--events %s matches no file, folder or package", pattern)
		}
	}
	slices.Sort(patterns)
	return slices.Compact(patterns), nil
}

// againstReleased compares head with all releases. They hold packages of events, so
// without --events that is what these packages are judged as.
func (s *settings) againstReleased(ctx context.Context, r *report.Report, bases []*load.Schema, head *load.Schema) error {
	events, err := s.eventPatterns(bases, head)
	if err != nil {
		return err
	}
	if len(events) == 0 {
		for _, side := range append(slices.Clone(bases), head) {
			events = append(events, packagesOfEvents(side.Files)...)
		}
	}
	return against(ctx, r, bases, head, compat.Options{Policy: compat.FullTransitive, Scope: compat.All, Events: events})
}

// packagesOfEvents returns the packages in which an event is declared.
func packagesOfEvents(files []protoreflect.FileDescriptor) []string {
	side := schema.New(files)
	found := map[string]bool{}
	for name := range side.Events {
		found[string(side.Messages[name].ParentFile().Package())] = true
	}
	return slices.Sorted(maps.Keys(found))
}

// judged says which files were judged as events and which as API, by package.
func judged(files []protoreflect.FileDescriptor, events []string) string {
	side := schema.New(files, events...)
	count := map[bool]map[string]int{true: {}, false: {}}
	for _, f := range side.Scope {
		count[side.IsEvent(f)][string(f.Package())]++
	}
	list := func(event bool) string {
		var parts []string
		for _, name := range slices.Sorted(maps.Keys(count[event])) {
			parts = append(parts, fmt.Sprintf("%s (%d)", name, count[event][name]))
		}
		if len(parts) == 0 {
			return "nothing"
		}
		return strings.Join(parts, ", ")
	}
	return "files judged as events: " + list(true) + "; as API: " + list(false)
}
