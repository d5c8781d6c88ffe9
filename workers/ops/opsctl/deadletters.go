package opsctl

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/proto"

	opsv1 "github.com/parley-chat/parley/gen/parley/ops/v1"
	"github.com/parley-chat/parley/gen/parley/ops/v1/opsv1connect"
	"github.com/parley-chat/parley/server/infra/cmdline"
)

func (p *program) deadLetters() *cobra.Command {
	return cmdline.Group("deadletters", "records that consumers could not process",
		p.countDeadLetters(), p.discardDeadLetters(),
		p.listDeadLetters(), p.redriveDeadLetters(), p.showDeadLetter())
}

func (c *call) ops() opsv1connect.OpsServiceClient {
	return opsv1connect.NewOpsServiceClient(c.http, c.url, c.with)
}

// deadLetterFlags declares the flags that select dead letters.
func deadLetterFlags(fs *pflag.FlagSet, f *opsv1.DeadLetterFilter) {
	fs.Func("source", "`events` or topics; both by default", func(s string) error {
		v, ok := opsv1.DeadLetterSource_value["DEAD_LETTER_SOURCE_"+strings.ToUpper(s)]
		if !ok || v == 0 {
			return errors.New("must be events or topics")
		}
		f.Source = opsv1.DeadLetterSource(v)
		return nil
	})
	fs.StringVar(&f.Group, "group", "", "of this `group`")
	fs.StringVar(&f.Topic, "topic", "", "of records of this `topic`")
	fs.StringVar(&f.Key, "key", "", "of records with this `key`; events have the chat's id")
	fs.StringVar(&f.Reason, "failure", "", "with this `text` in the reason of the failure")
	fs.Func("class", "of this `class` of failures: unknown, permanent, downstream, authoritative or fatal",
		func(s string) error {
			v, ok := opsv1.FailureClass_value["FAILURE_CLASS_"+strings.ToUpper(s)]
			if !ok || v == 0 {
				return errors.New("must be unknown, permanent, downstream, authoritative or fatal")
			}
			f.FailureClass = opsv1.FailureClass(v)
			return nil
		})
	timeFlag(fs, &f.FailedFrom, "since", "failed at this time or later")
	timeFlag(fs, &f.FailedBefore, "until", "failed before this time")
}

func deadLetterStatusFlag(fs *pflag.FlagSet, to *[]opsv1.DeadLetterStatus) {
	fs.Func("status", "`status` open, running, redriven or discarded, several with commas, or all; open by default",
		func(s string) error {
			*to = nil
			if s == "all" {
				s = "open,running,redriven,discarded"
			}
			for name := range strings.SplitSeq(s, ",") {
				v, ok := opsv1.DeadLetterStatus_value["DEAD_LETTER_STATUS_"+strings.ToUpper(name)]
				if !ok || v == 0 {
					return errors.New("must be open, running, redriven, discarded or all")
				}
				*to = append(*to, opsv1.DeadLetterStatus(v))
			}
			return nil
		})
}

func (p *program) listDeadLetters() *cobra.Command {
	req := &opsv1.ListDeadLettersRequest{Filter: &opsv1.DeadLetterFilter{}}
	return p.command(spec{
		use: "list", short: "list dead letters",
		flags: func(fs *pflag.FlagSet) {
			deadLetterFlags(fs, req.GetFilter())
			deadLetterStatusFlag(fs, &req.Statuses)
			pagingFlags(fs, &req.PageSize, &req.PageToken, "letters")
		},
		run: func(c *call) error {
			res, err := c.ops().ListDeadLetters(c.ctx, req)
			if err != nil || c.printJSON(res) {
				return err
			}
			return c.page("ID\tFAILED AT\tTRIES\tSTATUS\tKEY\tREASON", func(w io.Writer) {
				for _, l := range res.GetDeadLetters() {
					reason := l.GetReason()
					if l.GetParked() {
						reason = strings.TrimSpace("parked with its key  " + reason)
					}
					if l.GetResult() != "" {
						reason = l.GetResult() + " (by " + l.GetHandledBy() + ")"
					}
					fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\n", safe(l.GetId()), formatTime(l.GetFailedAt()), l.GetAttempts(),
						word(l.GetStatus(), "DEAD_LETTER_STATUS_"), safe(l.GetKey()), safe(reason))
				}
			}, res.GetNextPageToken())
		},
	})
}

func (p *program) countDeadLetters() *cobra.Command {
	req := &opsv1.CountDeadLettersRequest{Filter: &opsv1.DeadLetterFilter{}}
	return p.command(spec{
		use: "count", short: "count dead letters by group, topic and reason",
		flags: func(fs *pflag.FlagSet) {
			deadLetterFlags(fs, req.GetFilter())
			deadLetterStatusFlag(fs, &req.Statuses)
		},
		run: func(c *call) error {
			res, err := c.ops().CountDeadLetters(c.ctx, req)
			if err != nil || c.printJSON(res) {
				return err
			}
			return c.table(func(w io.Writer) {
				fmt.Fprintln(w, "LETTERS\tGROUP\tTOPIC\tFIRST\tLAST\tREASON")
				for _, n := range res.GetCounts() {
					fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\n", n.GetCount(), safe(n.GetGroup()), safe(n.GetTopic()),
						formatTime(n.GetFirstFailedAt()), formatTime(n.GetLastFailedAt()), safe(n.GetReason()))
				}
				fmt.Fprintf(w, "%d\tin all\n", res.GetTotal())
			})
		},
	})
}

func (p *program) showDeadLetter() *cobra.Command {
	req := &opsv1.GetDeadLetterRequest{}
	return p.command(spec{
		use: "show ID", short: "show one, with its record and event", args: 1, needs: "one id",
		flags: func(fs *pflag.FlagSet) {
			fs.BoolVar(&req.Content, "content", false, "show what users wrote; that you asked for it is logged")
		},
		run: func(c *call) error {
			req.Id = c.args[0]
			res, err := c.ops().GetDeadLetter(c.ctx, req)
			if err != nil || c.printJSON(res) {
				return err
			}
			return c.table(func(w io.Writer) { printDeadLetter(w, res, req.GetContent()) })
		},
	})
}

// printDeadLetter prints a letter, and its content if it was asked for.
func printDeadLetter(w io.Writer, res *opsv1.GetDeadLetterResponse, content bool) {
	l, r := res.GetDeadLetter(), res.GetRecord()
	row := rowsOf(w)
	row("id", safe(l.GetId()))
	row("group", safe(l.GetGroup()))
	topics := l.GetSource() == opsv1.DeadLetterSource_DEAD_LETTER_SOURCE_TOPICS
	if topics {
		row("message", fmt.Sprintf("%s, %d-%d", safe(l.GetTopic()), l.GetPartition(), l.GetOffset()))
		row("type", safe(l.GetMessageType()))
	} else {
		row("consumer", safe(l.GetConsumer()))
		row("record", fmt.Sprintf("%s, partition %d, offset %d, of %s", safe(l.GetTopic()), l.GetPartition(), l.GetOffset(),
			formatTime(l.GetRecordedAt())))
	}
	row("key", safe(l.GetKey()))
	if l.GetFailedAt() == nil {
		row("failed", fmt.Sprintf("after %d tries", l.GetAttempts()))
	} else {
		row("failed", fmt.Sprintf("%s, after %d tries", formatTime(l.GetFailedAt()), l.GetAttempts()))
	}
	if first := formatTime(l.GetFirstFailedAt()); first != formatTime(l.GetFailedAt()) {
		row("failed first", first)
	}
	if l.GetParked() {
		row("parked", "its key waits; redrive unparks it, discard lets the rest of the key proceed")
	}
	row("reason", safe(l.GetReason()))
	row("status", word(l.GetStatus(), "DEAD_LETTER_STATUS_"))
	if l.GetHandledBy() != "" {
		row("handled", fmt.Sprintf("%s by %s, redriven %d times: %s", formatTime(l.GetHandledAt()), safe(l.GetHandledBy()),
			l.GetRedrives(), safe(l.GetResult())))
	}
	for _, h := range r.GetHeaders() {
		row("header "+safe(h.GetName()), safe(string(h.GetValue())))
	}
	row("value", fmt.Sprintf("%d bytes, SHA-256 %x", l.GetValueBytes(), r.GetValueSha256()))
	if content {
		row("bytes", fmt.Sprintf("%x", r.GetValue()))
	}
	switch {
	case topics:
	case res.GetEventType() != "":
		row("event", res.GetEventType()+" "+res.GetEventJson())
	default:
		row("event", "none: "+safe(res.GetProblem()))
	}
}

// handled is what redrive and discard answer.
type handled interface {
	proto.Message
	GetResults() []*opsv1.DeadLetterResult
	GetSummary() *opsv1.DeadLetterSummary
}

// follow prints what a stream says, and how it ended.
func follow[T any, M interface {
	*T
	handled
}](c *call, stream interface {
	Receive() bool
	Msg() *T
	Err() error
}, done string, execute bool) error {
	var sum *opsv1.DeadLetterSummary
	for stream.Receive() {
		m := M(stream.Msg())
		if s := m.GetSummary(); s != nil {
			sum = s
		}
		if c.printJSON(m) {
			continue
		}
		for _, r := range m.GetResults() {
			what := word(r.GetOutcome(), "DEAD_LETTER_OUTCOME_")
			if r.GetOutcome() == opsv1.DeadLetterOutcome_DEAD_LETTER_OUTCOME_DONE {
				if what = done; !execute {
					what = "would be " + done
				}
			}
			fmt.Fprintf(c.stdout, "%s  %s\n", safe(r.GetId()), strings.TrimSpace(what+"  "+r.GetReason()))
		}
	}
	if err := stream.Err(); err != nil {
		return err
	}
	if !c.json {
		c.printSummary(sum, done, execute)
	}
	if execute && sum.GetMatched() > sum.GetDone() {
		return errLeft
	}
	return nil
}

func (c *call) printSummary(s *opsv1.DeadLetterSummary, done string, execute bool) {
	if !execute {
		done = "would be " + done
	}
	parts := []string{fmt.Sprintf("%d chosen, %d %s", s.GetMatched(), s.GetDone(), done)}
	for _, p := range []struct {
		n    int64
		text string
	}{
		{s.GetFailed(), "failed again"}, {s.GetBehind(), "left behind an earlier one of their key"},
		{s.GetNoHandler(), "of groups without a handler here"}, {s.GetTaken(), "taken by another operator"},
	} {
		if p.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", p.n, p.text))
		}
	}
	if s.GetMore() {
		parts = append(parts, "and there may be more")
	}
	fmt.Fprintln(c.stdout, strings.Join(parts, ", "))
	if !execute {
		fmt.Fprintln(c.stdout, dryRun)
	}
}

func (p *program) redriveDeadLetters() *cobra.Command {
	req := &opsv1.RedriveDeadLettersRequest{Filter: &opsv1.DeadLetterFilter{}}
	var limit, rate int
	return p.command(spec{
		use: "redrive [ID…]", short: "hand open dead letters to their consumers again", more: unbounded,
		flags: func(fs *pflag.FlagSet) {
			deadLetterFlags(fs, req.GetFilter())
			fs.BoolVar(&req.All, "all", false, "all that are open")
			executeFlag(fs, &req.Execute)
			fs.IntVar(&limit, "limit", 0, "`letters` to try; 0: all")
			fs.IntVar(&rate, "rate", 100, "`letters` a second, 1 to 10000")
		},
		run: func(c *call) error {
			req.Filter.Ids, req.Limit, req.Rate = c.args, bounded(limit), bounded(rate)
			if rate < 1 {
				return cmdline.Usagef("rate must be 1 to 10000")
			}
			return c.redrive(req)
		},
	})
}

func (c *call) redrive(req *opsv1.RedriveDeadLettersRequest) error {
	stream, err := c.ops().RedriveDeadLetters(c.ctx, req)
	if err != nil {
		return err
	}
	defer stream.Close()
	return follow(c, stream, "redriven", req.GetExecute())
}

func (p *program) discardDeadLetters() *cobra.Command {
	req := &opsv1.DiscardDeadLettersRequest{Filter: &opsv1.DeadLetterFilter{}}
	var limit int
	return p.command(spec{
		use: "discard [ID…]", short: "give open dead letters up", more: unbounded,
		flags: func(fs *pflag.FlagSet) {
			deadLetterFlags(fs, req.GetFilter())
			fs.BoolVar(&req.All, "all", false, "all that are open")
			executeFlag(fs, &req.Execute)
			fs.StringVar(&req.Reason, "reason", "", "why they are given up: `text` that is kept with each")
			fs.IntVar(&limit, "limit", 0, "`letters`; 0: all")
		},
		run: func(c *call) error {
			if req.GetReason() == "" {
				return cmdline.Usagef("discard needs --reason")
			}
			req.Filter.Ids, req.Limit = c.args, bounded(limit)
			return c.discard(req)
		},
	})
}

func (c *call) discard(req *opsv1.DiscardDeadLettersRequest) error {
	stream, err := c.ops().DiscardDeadLetters(c.ctx, req)
	if err != nil {
		return err
	}
	defer stream.Close()
	return follow(c, stream, "discarded", req.GetExecute())
}
