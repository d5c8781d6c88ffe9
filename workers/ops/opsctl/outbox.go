package opsctl

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	opsv1 "github.com/parley-chat/parley/gen/parley/ops/v1"
	"github.com/parley-chat/parley/server/infra/cmdline"
)

func (p *program) outbox() *cobra.Command {
	return cmdline.Group("outbox", "rows of the outbox that cannot be published", p.dropRow(), p.failedRows(),
		p.repairRow())
}

func (p *program) failedRows() *cobra.Command {
	req := &opsv1.ListFailedOutboxRowsRequest{}
	return p.command(spec{
		use: "failed", short: "list rows of the outbox that cannot be published",
		flags: func(fs *pflag.FlagSet) { pagingFlags(fs, &req.PageSize, &req.PageToken, "rows") },
		run: func(c *call) error {
			res, err := c.ops().ListFailedOutboxRows(c.ctx, req)
			if err != nil || c.printJSON(res) {
				return err
			}
			return c.page("ROW\tVERSIONS\tWRITTEN AT\tNOTED\tREASON", func(w io.Writer) {
				for _, r := range res.GetRows() {
					fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\n", safe(r.GetRow()), versions(r), formatTime(r.GetCreatedAt()),
						r.GetAttempts(), safe(r.GetLastError()))
				}
			}, res.GetNextPageToken())
		},
	})
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

func (c *call) sayRow(r *opsv1.FailedOutboxRow) error {
	return c.say("%s: versions %s", safe(r.GetChatId()), versions(r))
}

func (p *program) repairRow() *cobra.Command {
	var execute bool
	return p.command(spec{
		use: "repair ROW", short: "replace one by what the event store says it should be", args: 1,
		needs: "the id of one row, as outbox failed prints it",
		flags: func(fs *pflag.FlagSet) { executeFlag(fs, &execute) },
		run: func(c *call) error {
			res, err := c.ops().RepairFailedOutboxRow(c.ctx,
				&opsv1.RepairFailedOutboxRowRequest{Row: c.args[0], Execute: execute})
			if err != nil || c.printJSON(res) {
				return err
			}
			for _, r := range res.GetRepaired() {
				if err := c.sayRow(r); err != nil {
					return err
				}
			}
			return c.done(execute, "these are published now")
		},
	})
}

func (p *program) dropRow() *cobra.Command {
	req := &opsv1.DropFailedOutboxRowRequest{}
	return p.command(spec{
		use: "drop ROW", short: "give one up; its events can still be replayed", args: 1,
		needs: "--reason and the id of one row, as outbox failed prints it",
		flags: func(fs *pflag.FlagSet) {
			executeFlag(fs, &req.Execute)
			fs.StringVar(&req.Reason, "reason", "", "why, for the log: `text`; required")
		},
		run: func(c *call) error {
			if req.GetReason() == "" {
				return c.misuse
			}
			req.Row = c.args[0]
			res, err := c.ops().DropFailedOutboxRow(c.ctx, req)
			if err != nil || c.printJSON(res) {
				return err
			}
			if err := c.sayRow(res.GetRow()); err != nil {
				return err
			}
			return c.done(req.GetExecute(), "these will not be published by the row; replay can still publish them")
		},
	})
}
