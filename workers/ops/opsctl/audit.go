package opsctl

import (
	"flag"
	"fmt"
	"io"
	"strings"

	opsv1 "github.com/parley-chat/parley/gen/parley/ops/v1"
)

func listCalls(fs *flag.FlagSet) func(*call, []string) error {
	var req opsv1.ListOperatorCallsRequest
	fs.Var(timeFlag{&req.After}, "since", "begun at this time (RFC 3339) or within this duration (such as 90m)")
	fs.Var(timeFlag{&req.Before}, "until", "begun before this time or longer ago than this duration")
	fs.StringVar(&req.Operator, "by", "", "of this operator")
	fs.StringVar(&req.Call, "call", "", "with this name, for example RedriveDeadLetters")
	p := bindPaging(fs, "calls")
	return func(c *call, args []string) error {
		if err := p.check(args); err != nil {
			return err
		}
		req.PageSize, req.PageToken = int32(p.limit), p.token
		res, err := c.client.ListOperatorCalls(c.ctx, &req)
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
	}
}
