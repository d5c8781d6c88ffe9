package opsctl

import (
	"errors"
	"flag"
	"fmt"
	"text/tabwriter"

	opsv1 "github.com/parley-chat/parley/gen/parley/ops/v1"
)

func calls(fs *flag.FlagSet) func(*call, []string) error {
	var req opsv1.ListOperatorCallsRequest
	fs.Var(when{&req.After}, "since", "begun at this time (RFC 3339) or within this duration (such as 90m)")
	fs.Var(when{&req.Before}, "until", "begun before this time or longer ago than this duration")
	fs.StringVar(&req.Operator, "by", "", "of this operator")
	fs.StringVar(&req.Call, "call", "", "with this name, for example RedriveDeadLetters")
	limit := fs.Int("limit", 100, "calls, 1 to 1000")
	fs.StringVar(&req.PageToken, "page-token", "", "where the page before ended, as printed by it")
	return func(c *call, args []string) error {
		if err := none(args); err != nil {
			return err
		}
		if *limit < 1 || *limit > 1000 {
			return errUsage{errors.New("limit must be 1 to 1000")}
		}
		req.PageSize = int32(*limit)
		res, err := c.client.ListOperatorCalls(c.ctx, &req)
		if err != nil || c.say(res) {
			return err
		}
		w := tabwriter.NewWriter(c.cfg.Stdout, 0, 8, 2, ' ', 0)
		fmt.Fprintln(w, "BEGAN AT\tOPERATOR\tCALL\tENDED\tREQUEST\tRESULT")
		for _, o := range res.GetCalls() {
			ended := "no end is known"
			if o.GetEndedAt() != nil {
				ended = o.GetCode()
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", clock(o.GetBeganAt()), safe(o.GetOperator()), safe(o.GetCall()), ended, o.GetRequest(), o.GetResult())
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
