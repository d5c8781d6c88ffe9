package store

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// History is the line of commits that led to what a store has. It consists of generations: an
// embedded store begins one each time that it is opened for writing, a distributed one when its
// tables are restored. A copy of a store that is put back begins a generation beside the one that
// it takes the place of: what that one committed after the copy was made is not in the history.
//
// A client that keeps the generation and the number of the newest commit that it was shown can
// therefore ask whether all it has is still part of the store.
type History interface {
	// Generation names the present generation: a random id.
	Generation() string
	// Shown is the number of a commit, in its generation: no later one was shown to any reader
	// before the call. It is at least 1.
	Shown() int64
	// Holds reports whether a commit of a generation, and so all before it, is part of the history.
	// Commit 0 asks for the generation itself. Holds returns false for commits that the store has
	// forgotten.
	Holds(generation string, commit int64) bool
}

// Line is the history of a store that counts no commits: it has one generation.
type Line string

var _ History = Line("")

// Generation implements History.
func (l Line) Generation() string { return string(l) }

// Shown implements History.
func (Line) Shown() int64 { return 1 }

// Holds implements History.
func (l Line) Holds(generation string, _ int64) bool { return generation == string(l) }

// Ancestor is an earlier generation of a history.
type Ancestor struct {
	Generation string `json:"generation"`
	Last       int64  `json:"last"` // its last commit that is part of the history; -1: none is
}

// FormatAncestors writes ancestors as a row of the store has them.
func FormatAncestors(list []Ancestor) string {
	var lines strings.Builder
	for _, a := range list {
		fmt.Fprintln(&lines, a.Generation, a.Last)
	}
	return lines.String()
}

// ParseAncestors reads what FormatAncestors wrote. Error: ErrCorrupt.
func ParseAncestors(text string) (list []Ancestor, err error) {
	for line := range strings.Lines(text) {
		name, last, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		n, err := strconv.ParseInt(last, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%w: generations", ErrCorrupt)
		}
		list = append(list, Ancestor{Generation: name, Last: n})
	}
	return list, nil
}

// HeldBy reports whether a commit of an earlier generation is part of a history with these ancestors.
func HeldBy(ancestors []Ancestor, generation string, commit int64) bool {
	i := slices.IndexFunc(ancestors, func(a Ancestor) bool { return a.Generation == generation })
	return i >= 0 && commit <= ancestors[i].Last
}

// Descent is a Line that follows on the history of another store, from which its data came.
type Descent struct {
	Line
	Ancestors []Ancestor // the newest first
}

var _ History = Descent{}

// Holds implements History.
func (d Descent) Holds(generation string, commit int64) bool {
	return d.Line.Holds(generation, commit) || HeldBy(d.Ancestors, generation, commit)
}
