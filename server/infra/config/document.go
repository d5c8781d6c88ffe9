package config

import (
	"fmt"
	"strings"
)

const width = 100 // characters of a line in the documented file

// Document returns the documented file: every setting with its default and meaning, as
// a comment.
func Document() string {
	var b strings.Builder
	b.WriteString(`# The settings of Parley. Give this file to the programs with --config FILE or PARLEY_CONFIG, or
# to systemd as an EnvironmentFile. Flags go before the environment, that before this file, and
# this before the defaults, which stand here. One file may serve all programs: each takes what is
# its own. A name that is not known is refused. With passwords in it, make its mode 0600. A password
# may stand in a file of its own instead: NAME_FILE names it. Passwords of Redis and Kafka in such
# files are read again for each connection.
`)
	section := ""
	for _, s := range Table(serverAndWorkers) {
		if s.Name == fileSetting {
			continue
		}
		if s.section != section {
			section = s.section
			fmt.Fprintf(&b, "\n# == %s\n", section)
		}
		of := ""
		switch s.Of &^ Load {
		case Server:
			of = "Server: "
		case Workers:
			of = "Workers: "
		}
		b.WriteByte('\n')
		wrap(&b, of+s.Help+".")
		fmt.Fprintf(&b, "#%s=%s\n", s.Name, s.Default)
	}
	return b.String()
}

// wrap writes a text as lines of comment.
func wrap(b *strings.Builder, text string) {
	n := 0
	for _, word := range strings.Fields(text) {
		if n > 0 && n+1+len(word) > width {
			b.WriteByte('\n')
			n = 0
		}
		if n == 0 {
			b.WriteByte('#')
			n = 1
		}
		b.WriteString(" " + word)
		n += 1 + len(word)
	}
	b.WriteByte('\n')
}
