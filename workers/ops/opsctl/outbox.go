package opsctl

import (
	"errors"
	"flag"
	"fmt"
	"io"

	opsv1 "github.com/parley-chat/parley/gen/parley/ops/v1"
)

func failedRows(fs *flag.FlagSet) func(*call, []string) error {
	p := bindPaging(fs, "rows")
	return func(c *call, args []string) error {
		if err := p.check(args); err != nil {
			return err
		}
		res, err := c.client.ListFailedOutboxRows(c.ctx,
			&opsv1.ListFailedOutboxRowsRequest{PageSize: int32(p.limit), PageToken: p.token})
		if err != nil || c.printJSON(res) {
			return err
		}
		return c.page("ROW\tVERSIONS\tWRITTEN AT\tNOTED\tREASON", func(w io.Writer) {
			for _, r := range res.GetRows() {
				fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\n", safe(r.GetRow()), versions(r), formatTime(r.GetCreatedAt()), r.GetAttempts(),
					safe(r.GetLastError()))
			}
		}, res.GetNextPageToken())
	}
}

// versions is which events a row is about.
func versions(r *opsv1.FailedOutboxRow) string {
	switch {
	case r.GetFirstVersion() == 0:
		return "unreadable"
	case r.GetCount() <= 1:
		return fmt.Sprint(r.GetFirstVersion())
	}
	return fmt.Sprintf("%d to %d", r.GetFirstVersion(), r.GetFirstVersion()+r.GetCount()-1)
}

func mendRow(fs *flag.FlagSet) func(*call, []string) error {
	var execute bool
	bindExecute(fs, &execute)
	return func(c *call, args []string) error {
		row, err := oneArgument(args, "outbox mend needs the id of one row, as outbox failed prints it")
		if err != nil {
			return err
		}
		res, err := c.client.MendFailedOutboxRow(c.ctx, &opsv1.MendFailedOutboxRowRequest{Row: row, Execute: execute})
		if err != nil || c.printJSON(res) {
			return err
		}
		for _, r := range res.GetMended() {
			fmt.Fprintf(c.cfg.Stdout, "%s: versions %s\n", safe(r.GetChatId()), versions(r))
		}
		return c.printDone(execute, "these are published now")
	}
}

func dropRow(fs *flag.FlagSet) func(*call, []string) error {
	var execute bool
	bindExecute(fs, &execute)
	reason := fs.String("reason", "", "why, for the log; required")
	return func(c *call, args []string) error {
		if len(args) != 1 || *reason == "" {
			return errUsage{errors.New("outbox drop needs --reason and the id of one row, as outbox failed prints it")}
		}
		res, err := c.client.DropFailedOutboxRow(c.ctx,
			&opsv1.DropFailedOutboxRowRequest{Row: args[0], Reason: *reason, Execute: execute})
		if err != nil || c.printJSON(res) {
			return err
		}
		fmt.Fprintf(c.cfg.Stdout, "%s: versions %s\n", safe(res.GetRow().GetChatId()), versions(res.GetRow()))
		return c.printDone(execute, "these will not be published by the row; replay can still publish them")
	}
}
