package opsctl

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	adminv1 "github.com/parley-chat/parley/gen/parley/admin/v1"
	"github.com/parley-chat/parley/gen/parley/admin/v1/adminv1connect"
	opsv1 "github.com/parley-chat/parley/gen/parley/ops/v1"
	"github.com/parley-chat/parley/server/infra/cmdline"
)

// audit makes the command that lists calls of operators, and below it those on all records.
func audit(ops, admin *program) *cobra.Command {
	c := ops.listCalls()
	c.AddCommand(admin.listAudit(), admin.exportAudit())
	return c
}

func (p *program) listCalls() *cobra.Command {
	req := &opsv1.ListOperatorCallsRequest{}
	return p.command(spec{
		use: "audit", short: "list what operators changed, and who saw what users wrote",
		flags: func(fs *pflag.FlagSet) {
			timeFlag(fs, &req.After, "since", "begun at this time or later")
			timeFlag(fs, &req.Before, "until", "begun before this time")
			fs.StringVar(&req.Operator, "by", "", "of this `operator`")
			fs.StringVar(&req.Call, "call", "", "with this `name`, for example RedriveDeadLetters")
			pagingFlags(fs, &req.PageSize, &req.PageToken, "calls")
		},
		run: func(c *call) error {
			res, err := c.ops().ListOperatorCalls(c.ctx, req)
			if err != nil || c.printJSON(res) {
				return err
			}
			return c.page("BEGAN AT\tOPERATOR\tCALL\tENDED\tREQUEST\tRESULT", func(w io.Writer) {
				for _, o := range res.GetCalls() {
					ended := "no end is known"
					if o.GetEndedAt() != nil {
						ended = o.GetCode()
					}
					row := []string{formatTime(o.GetBeganAt()), safe(o.GetOperator()), safe(o.GetCall()), ended, o.GetRequest()}
					if o.GetResult() != "" {
						row = append(row, o.GetResult())
					}
					fmt.Fprintln(w, strings.Join(row, "\t"))
				}
			}, res.GetNextPageToken())
		},
	})
}

func (c *call) auditService() adminv1connect.AuditServiceClient {
	return adminv1connect.NewAuditServiceClient(c.http, c.url, c.with)
}

// auditFilterFlags declares the flags that choose records.
func auditFilterFlags(fs *pflag.FlagSet, f *adminv1.AuditFilter) {
	timeFlag(fs, &f.After, "since", "at this time or later")
	timeFlag(fs, &f.Before, "until", "before this time")
	fs.StringVar(&f.Actor, "by", "", "done by this `one`: an operator, or user/ID, service/ID")
	fs.StringVar(&f.Target, "to", "", "done to this `one`: user/ID, session/ID, service/ID, chat/ID, topic/NAME")
	fs.StringVar(&f.Action, "action", "", "with this `name`, for example SuspendUser or signed_in")
	fs.Func("kind", "only records of this `kind`: call or event", func(s string) error {
		switch s {
		case "call":
			f.Kind = adminv1.AuditKind_AUDIT_KIND_CALL
		case "event":
			f.Kind = adminv1.AuditKind_AUDIT_KIND_EVENT
		default:
			return cmdline.Usagef("must be call or event")
		}
		return nil
	})
}

func (p *program) listAudit() *cobra.Command {
	req := adminv1.ListAuditRequest{Filter: &adminv1.AuditFilter{}}
	return p.command(spec{use: "list",
		short: "list what was done by whom to whom: calls of operators, and security events",
		flags: func(fs *pflag.FlagSet) {
			auditFilterFlags(fs, req.Filter)
			pagingFlags(fs, &req.PageSize, &req.PageToken, "records")
		},
		run: func(c *call) error {
			res, err := c.auditService().ListAudit(c.ctx, &req)
			if err != nil || c.printJSON(res) {
				return err
			}
			return c.page("AT\tBY\tACTION\tTO\tOUTCOME\tREQUEST OR RESULT", func(w io.Writer) {
				for _, r := range res.GetRecords() {
					outcome := r.GetOutcome()
					if outcome == "" {
						outcome = "no end is known"
					}
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", formatTime(r.GetAt()), orDash(r.GetActor()),
						safe(r.GetAction()), orDash(r.GetTarget()), safe(outcome),
						strings.TrimSpace(printable(r.GetRequest())+" "+printable(r.GetResult())))
				}
			}, res.GetNextPageToken())
		}})
}

// printable is a text of JSON as it is, unless it has what a terminal would take for more.
func printable(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 }) {
		return safe(s)
	}
	return s
}

func (p *program) exportAudit() *cobra.Command {
	req := adminv1.ExportAuditRequest{Filter: &adminv1.AuditFilter{}}
	return p.command(spec{use: "export", short: "print all records that match as lines of JSON, newest first",
		long: "  If it breaks off, the last line on standard error says how to resume.\n",
		flags: func(fs *pflag.FlagSet) {
			auditFilterFlags(fs, req.Filter)
			reasonFlag(fs, &req.Reason)
			fs.StringVar(&req.PageToken, "page-token", "", "where an export that broke off ended, as printed by it")
		},
		run: func(c *call) error {
			stream, err := c.auditService().ExportAudit(c.ctx, &req)
			if err != nil {
				return err
			}
			defer stream.Close() // all is read, or the call has failed
			token := req.GetPageToken()
			for stream.Receive() {
				for _, line := range stream.Msg().GetLines() {
					if _, err := fmt.Fprintln(c.stdout, line); err != nil {
						return err
					}
				}
				token = stream.Msg().GetPageToken()
			}
			if err := stream.Err(); err != nil {
				if token != "" {
					fmt.Fprintf(c.stderr, "incomplete: resume with --page-token %s\n", safe(token))
				}
				return err
			}
			return nil
		}})
}
