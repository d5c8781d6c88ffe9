package store

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
	// Shown is the number of a commit, in its generation: no later one has been shown to anybody
	// who was shown something before the call. It is at least 1.
	Shown() int64
	// Holds reports whether a commit of a generation, and so all before it, is part of the history.
	// Commit 0 asks for the generation itself. What the store has forgotten it does not hold.
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
