package command

import (
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/parley-chat/parley/schemacheck/compat/schema"
	"github.com/parley-chat/parley/schemacheck/internal/load"
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
				if load.Matches([]string{pattern}, side.RepoPath(f.Path())) {
					patterns = append(patterns, f.Path())
					found = true
				}
				found = found || schema.Matches([]string{pattern}, f)
			}
		}
		if !found {
			from := "--events"
			if !s.given["events"] {
				from = s.where + ": events"
			}
			return nil, fmt.Errorf("%s %s matches no file, folder or package", from, pattern)
		}
	}
	slices.Sort(patterns)
	return slices.Compact(patterns), nil
}

// releasedPatterns returns what is judged as events against releases. They hold
// packages of events, so that without patterns this is what these packages are.
func (s *settings) releasedPatterns(bases []*load.Schema, head *load.Schema) ([]string, error) {
	events, err := s.eventPatterns(bases, head)
	if err != nil || len(events) > 0 {
		return events, err
	}
	for _, side := range append(slices.Clone(bases), head) {
		events = append(events, packagesOfEvents(side.Files)...)
	}
	return events, nil
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
