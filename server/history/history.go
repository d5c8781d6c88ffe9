// Package history has the form in which calls and answers name a commit in the history of a
// store ([store.History]): a header of both. Servers and clients share it.
//
// It owns the name and the form. It does not own what follows from a commit, and knows no store.
//
// Concurrency: values only.
package history

import (
	"strconv"
	"strings"
)

// Header has the commit up to which a client was shown the history, in requests, or up to which
// an answer may show it.
const Header = "Parley-History"

// Commit is a commit of a generation. The zero value is no commit.
type Commit struct {
	Generation string
	Commit     int64
}

// String is the commit as Header has it; empty for no commit.
func (p Commit) String() string {
	if p.Generation == "" {
		return ""
	}
	return p.Generation + "-" + strconv.FormatInt(p.Commit, 10)
}

// Parse reads what String wrote. It reports false for what is not of that form.
func Parse(s string) (Commit, bool) {
	generation, number, _ := strings.Cut(s, "-")
	commit, err := strconv.ParseInt(number, 10, 64)
	if err != nil || commit < 0 {
		return Commit{}, false
	}
	return Commit{generation, commit}, true
}
