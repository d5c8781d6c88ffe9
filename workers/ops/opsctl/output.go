package opsctl

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"google.golang.org/protobuf/proto"

	"github.com/parley-chat/parley/server/infra/cmdline"
)

// maxPage is the size of the largest page of a list.
const maxPage = 1000

// paging has the flags of a list that comes in pages.
type paging struct {
	limit int
	token string
}

// bindPaging declares the flags; rows is what the list has.
func bindPaging(fs *flag.FlagSet, rows string) *paging {
	p := &paging{}
	fs.IntVar(&p.limit, "limit", 100, fmt.Sprintf("%s, 1 to %d", rows, maxPage))
	fs.StringVar(&p.token, "page-token", "", "where the page before ended, as printed by it")
	return p
}

// check refuses arguments and sizes that a list does not take.
func (p *paging) check(args []string) error {
	if err := noArguments(args); err != nil {
		return err
	}
	if p.limit < 1 || p.limit > maxPage {
		return errUsage{fmt.Errorf("limit must be 1 to %d", maxPage)}
	}
	return nil
}

// page prints a page of a list as a table: its columns, its rows, and how to get the next
// page, if there may be one.
func (c *call) page(columns string, rows func(w io.Writer), next string) error {
	w := c.table()
	fmt.Fprintln(w, columns)
	rows(w)
	if err := w.Flush(); err != nil || next == "" {
		return err
	}
	_, err := fmt.Fprintf(c.cfg.Stdout, "there may be more: --page-token %s\n", safe(next))
	return err
}

// table aligns columns that are separated by tabs.
func (c *call) table() *tabwriter.Writer { return tabwriter.NewWriter(c.cfg.Stdout, 0, 8, 2, ' ', 0) }

// How values are written, as in the other commands.
var (
	safe       = cmdline.Safe
	formatTime = cmdline.FormatTime
)

// printJSON prints a message as JSON if the command line asks for it, and reports whether
// it did.
func (c *call) printJSON(m proto.Message) bool {
	if !c.json {
		return false
	}
	cmdline.PrintJSON(c.cfg.Stdout, m)
	return true
}

// dryRun is the last line of a command without --execute.
const dryRun = "nothing was changed; add --execute to do it"

// printDone prints the last line of a command that may have been a dry run.
func (c *call) printDone(execute bool, done string) error {
	if !execute {
		done = dryRun
	}
	_, err := fmt.Fprintln(c.cfg.Stdout, done)
	return err
}

// bindExecute declares the flag without which a command changes nothing.
func bindExecute(fs *flag.FlagSet, execute *bool) {
	fs.BoolVar(execute, "execute", false, "do it; otherwise report what would be done")
}

func noArguments(args []string) error {
	if len(args) > 0 {
		return errUsage{fmt.Errorf("unexpected %.80q", args[0])}
	}
	return nil
}

// oneArgument returns the only argument.
func oneArgument(args []string, problem string) (string, error) {
	if len(args) != 1 {
		return "", errUsage{errors.New(problem)}
	}
	return args[0], nil
}

// enumWord is the name of an enum's value without the name of its type.
func enumWord(s fmt.Stringer, prefix string) string {
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(s.String(), prefix), "_", " "))
}
