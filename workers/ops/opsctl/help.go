package opsctl

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// Help prints what there is to know of the command that words begin with, of one group of
// commands or of one command, and reports whether there is such a command. It needs no
// settings.
func Help(w io.Writer, program string, words []string) bool {
	if !Is(words) {
		return false
	}
	verbs, n := groups[words[0]], 1
	if _, alone := verbs[""]; !alone {
		if len(words) == 1 {
			for _, verb := range slices.Sorted(maps.Keys(verbs)) {
				c := verbs[verb]
				fmt.Fprintf(w, "%s %s [flags] %s: %s\n", program, words[0]+" "+verb, c.args, c.about)
			}
			fmt.Fprintf(w, "\n%s %s COMMAND --help lists the flags of each.\n", program, words[0])
			return true
		}
		if _, ok := verbs[words[1]]; !ok {
			return false
		}
		n = 2
	}
	err := run(context.Background(), Config{Program: program, Stdout: w, Stderr: io.Discard}, append(strings.Fields(strings.Join(words[:n], " ")), "--help"))
	return err == errHelp
}
