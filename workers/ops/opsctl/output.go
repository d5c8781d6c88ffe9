package opsctl

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"google.golang.org/protobuf/proto"

	"github.com/parley-chat/parley/server/infra/cmdline"
)

// How values are written.
var (
	safe           = cmdline.Safe
	formatTime     = cmdline.FormatTime
	formatDuration = cmdline.FormatDuration
	writeDuration  = cmdline.WriteDuration
)

// say prints a line.
func (c *call) say(format string, args ...any) error {
	_, err := fmt.Fprintf(c.stdout, format+"\n", args...)
	return err
}

// dryRun is the last line of a command without --execute.
const dryRun = "nothing was changed; add --execute to do it"

// done prints what was done, or that nothing was.
func (c *call) done(execute bool, format string, args ...any) error {
	if !execute {
		return c.say(dryRun)
	}
	return c.say(format, args...)
}

// printJSON prints a message as JSON if the command line asks for it, and reports whether it
// did.
func (c *call) printJSON(m proto.Message) bool {
	if !c.json {
		return false
	}
	cmdline.PrintJSON(c.stdout, m)
	return true
}

// table prints rows of columns that are separated by tabs.
func (c *call) table(rows func(w io.Writer)) error {
	w := tabwriter.NewWriter(c.stdout, 0, 8, 2, ' ', 0)
	rows(w)
	return w.Flush()
}

// rowsOf prints rows of a name and a value each.
func rowsOf(w io.Writer) func(name string, value any) {
	return func(name string, value any) { fmt.Fprintf(w, "%s\t%v\n", name, value) }
}

// page prints a page of a list as a table: its columns, its rows, and how to get the next
// page, if there may be one.
func (c *call) page(columns string, rows func(w io.Writer), next string) error {
	return c.next(c.table(func(w io.Writer) {
		fmt.Fprintln(w, columns)
		rows(w)
	}), next)
}

// next says how to get the next page, if there may be one.
func (c *call) next(err error, token string) error {
	if err != nil || token == "" {
		return err
	}
	return c.say("there may be more: --page-token %s", safe(token))
}

// orDash shows a text of others, or that there is none.
func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return safe(s)
}

// word is the name of an enum's value without that of its type.
func word(s fmt.Stringer, prefix string) string {
	return strings.ReplaceAll(flagWord(s, prefix), "-", " ")
}

// flagWord is word as flags take it.
func flagWord(s fmt.Stringer, prefix string) string {
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(s.String(), prefix), "_", "-"))
}
