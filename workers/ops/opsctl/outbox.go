package opsctl

import (
	"errors"
	"flag"
	"fmt"
	"text/tabwriter"

	opsv1 "github.com/parley-chat/parley/gen/parley/ops/v1"
)

func failedRows(fs *flag.FlagSet) func(*call, []string) error {
	limit := fs.Int("limit", 100, "rows, 1 to 1000")
	token := fs.String("page-token", "", "where the page before ended, as printed by it")
	return func(c *call, args []string) error {
		if err := none(args); err != nil {
			return err
		}
		if *limit < 1 || *limit > 1000 {
			return errUsage{errors.New("limit must be 1 to 1000")}
		}
		res, err := c.client.ListFailedOutboxRows(c.ctx, &opsv1.ListFailedOutboxRowsRequest{PageSize: int32(*limit), PageToken: *token})
		if err != nil || c.say(res) {
			return err
		}
		w := tabwriter.NewWriter(c.cfg.Stdout, 0, 8, 2, ' ', 0)
		fmt.Fprintln(w, "ROW\tVERSIONS\tWRITTEN AT\tNOTED\tREASON")
		for _, r := range res.GetRows() {
			fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\n", safe(r.GetRow()), versions(r), clock(r.GetCreatedAt()), r.GetAttempts(), safe(r.GetLastError()))
		}
		if err := w.Flush(); err != nil {
			return err
		}
		if t := res.GetNextPageToken(); t != "" {
			fmt.Fprintf(c.cfg.Stdout, "there may be more: --page-token %s\n", safe(t))
		}
		return nil
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
	execute := fs.Bool("execute", false, "do it; otherwise tell what would be done")
	return func(c *call, args []string) error {
		if len(args) != 1 {
			return errUsage{errors.New("outbox mend needs the id of one row, as outbox failed prints it")}
		}
		res, err := c.client.MendFailedOutboxRow(c.ctx, &opsv1.MendFailedOutboxRowRequest{Row: args[0], Execute: *execute})
		if err != nil || c.say(res) {
			return err
		}
		for _, r := range res.GetMended() {
			fmt.Fprintf(c.cfg.Stdout, "%s: versions %s\n", safe(r.GetChatId()), versions(r))
		}
		return c.executed(*execute, "these are published now")
	}
}

func dropRow(fs *flag.FlagSet) func(*call, []string) error {
	execute := fs.Bool("execute", false, "do it; otherwise tell what would be done")
	reason := fs.String("reason", "", "why, for the log; required")
	return func(c *call, args []string) error {
		if len(args) != 1 || *reason == "" {
			return errUsage{errors.New("outbox drop needs --reason and the id of one row, as outbox failed prints it")}
		}
		res, err := c.client.DropFailedOutboxRow(c.ctx, &opsv1.DropFailedOutboxRowRequest{Row: args[0], Reason: *reason, Execute: *execute})
		if err != nil || c.say(res) {
			return err
		}
		fmt.Fprintf(c.cfg.Stdout, "%s: versions %s\n", safe(res.GetRow().GetChatId()), versions(res.GetRow()))
		return c.executed(*execute, "these will not be published by the row; replay can still publish them")
	}
}

func (c *call) executed(execute bool, done string) error {
	if !execute {
		done = "nothing was done: --execute does it"
	}
	_, err := fmt.Fprintln(c.cfg.Stdout, done)
	return err
}
