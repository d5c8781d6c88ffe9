package opsctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// Help prints the help of a group of commands, or of one command, and reports whether words
// start with one. It needs no settings.
func Help(w io.Writer, program string, words []string) bool {
	if !Is(words) {
		return false
	}
	verbs, n := commandGroups[words[0]], 1
	if _, alone := verbs[""]; !alone {
		if len(words) == 1 {
			for _, verb := range slices.Sorted(maps.Keys(verbs)) {
				fmt.Fprintln(w, verbs[verb].usage(program, words[0]+" "+verb))
			}
			fmt.Fprintf(w, "\n%s %s COMMAND --help lists the flags of each.\n", program, words[0])
			return true
		}
		if _, ok := verbs[words[1]]; !ok {
			return false
		}
		n = 2
	}
	err := run(context.Background(), Config{Program: program, Stdout: w, Stderr: io.Discard},
		append(strings.Fields(strings.Join(words[:n], " ")), "--help"))
	return errors.Is(err, errHelp)
}

// usage says in one line how a command is called and what it does.
func (c command) usage(program, name string) string {
	call := program + " " + name + " [flags]"
	if c.args != "" {
		call += " " + c.args
	}
	return call + ": " + c.about
}

// verbsOf lists the verbs of a group.
func verbsOf(verbs map[string]command) string {
	return strings.Join(slices.Sorted(maps.Keys(verbs)), ", ")
}
