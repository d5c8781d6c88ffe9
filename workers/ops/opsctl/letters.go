package opsctl

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	opsv1 "github.com/parley-chat/parley/gen/parley/ops/v1"
)

// timeFlag is a flag that takes a time, or how long ago it was.
type timeFlag struct{ t **timestamppb.Timestamp }

func (w timeFlag) String() string { return "" }

func (w timeFlag) Set(s string) error {
	if d, err := time.ParseDuration(s); err == nil && d >= 0 {
		*w.t = timestamppb.New(time.Now().Add(-d))
		return nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return errors.New("must be a time like 2030-01-02T15:04:05Z or an age like 90m")
	}
	*w.t = timestamppb.New(t)
	return nil
}

// bindFilter declares the flags that select dead letters.
func bindFilter(fs *flag.FlagSet) *opsv1.DeadLetterFilter {
	f := &opsv1.DeadLetterFilter{}
	fs.Func("source", "events or topics; both by default", func(s string) error {
		v, ok := opsv1.DeadLetterSource_value["DEAD_LETTER_SOURCE_"+strings.ToUpper(s)]
		if !ok || v == 0 {
			return errors.New("must be events or topics")
		}
		f.Source = opsv1.DeadLetterSource(v)
		return nil
	})
	fs.StringVar(&f.Group, "group", "", "of this group")
	fs.StringVar(&f.Topic, "topic", "", "of records of this topic")
	fs.StringVar(&f.Key, "key", "", "of records with this key; events have the chat's id")
	fs.StringVar(&f.Reason, "failure", "", "with this in the reason of the failure")
	fs.Func("class", "of this class of failures: unknown, permanent, downstream, authoritative or fatal",
		func(s string) error {
			v, ok := opsv1.FailureClass_value["FAILURE_CLASS_"+strings.ToUpper(s)]
			if !ok || v == 0 {
				return errors.New("must be unknown, permanent, downstream, authoritative or fatal")
			}
			f.FailureClass = opsv1.FailureClass(v)
			return nil
		})
	fs.Var(timeFlag{&f.FailedFrom}, "since", "failed at this time (RFC 3339) or within this duration (such as 90m)")
	fs.Var(timeFlag{&f.FailedBefore}, "until", "failed before this time or longer ago than this duration")
	return f
}

func bindStatuses(fs *flag.FlagSet) *[]opsv1.DeadLetterStatus {
	var out []opsv1.DeadLetterStatus
	fs.Func("status", "open, running, redriven, discarded, several with commas, or all; default: open",
		func(s string) error {
			out = nil
			if s == "all" {
				s = "open,running,redriven,discarded"
			}
			for name := range strings.SplitSeq(s, ",") {
				v, ok := opsv1.DeadLetterStatus_value["DEAD_LETTER_STATUS_"+strings.ToUpper(name)]
				if !ok || v == 0 {
					return errors.New("must be open, running, redriven, discarded or all")
				}
				out = append(out, opsv1.DeadLetterStatus(v))
			}
			return nil
		})
	return &out
}

func listLetters(fs *flag.FlagSet) func(*call, []string) error {
	f, statuses, p := bindFilter(fs), bindStatuses(fs), bindPaging(fs, "letters")
	return func(c *call, args []string) error {
		if err := p.check(args); err != nil {
			return err
		}
		res, err := c.client.ListDeadLetters(c.ctx,
			&opsv1.ListDeadLettersRequest{Filter: f, Statuses: *statuses, PageSize: int32(p.limit), PageToken: p.token})
		if err != nil || c.printJSON(res) {
			return err
		}
		return c.page("ID\tFAILED AT\tTRIES\tSTATUS\tKEY\tREASON", func(w io.Writer) {
			for _, l := range res.GetLetters() {
				reason := l.GetReason()
				if l.GetParked() {
					reason = strings.TrimSpace("parked with its key  " + reason)
				}
				if l.GetResult() != "" {
					reason = l.GetResult() + " (by " + l.GetHandledBy() + ")"
				}
				fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\n", safe(l.GetId()), formatTime(l.GetFailedAt()), l.GetAttempts(),
					enumWord(l.GetStatus(), "DEAD_LETTER_STATUS_"), safe(l.GetKey()), safe(reason))
			}
		}, res.GetNextPageToken())
	}
}

func countLetters(fs *flag.FlagSet) func(*call, []string) error {
	f, statuses := bindFilter(fs), bindStatuses(fs)
	return func(c *call, args []string) error {
		if err := noArguments(args); err != nil {
			return err
		}
		res, err := c.client.CountDeadLetters(c.ctx, &opsv1.CountDeadLettersRequest{Filter: f, Statuses: *statuses})
		if err != nil || c.printJSON(res) {
			return err
		}
		w := c.table()
		fmt.Fprintln(w, "LETTERS\tGROUP\tTOPIC\tFIRST\tLAST\tREASON")
		for _, n := range res.GetCounts() {
			fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\n", n.GetCount(), safe(n.GetGroup()), safe(n.GetTopic()),
				formatTime(n.GetFirstFailedAt()), formatTime(n.GetLastFailedAt()), safe(n.GetReason()))
		}
		fmt.Fprintf(w, "%d\tin all\n", res.GetTotal())
		return w.Flush()
	}
}

func showLetter(fs *flag.FlagSet) func(*call, []string) error {
	content := fs.Bool("content", false, "show what users wrote; that you asked for it is logged")
	return func(c *call, args []string) error {
		id, err := oneArgument(args, "deadletters show needs one id")
		if err != nil {
			return err
		}
		res, err := c.client.GetDeadLetter(c.ctx, &opsv1.GetDeadLetterRequest{Id: id, Content: *content})
		if err != nil || c.printJSON(res) {
			return err
		}
		return c.printLetter(res, *content)
	}
}

// printLetter prints a letter, and its content if it was asked for.
func (c *call) printLetter(res *opsv1.GetDeadLetterResponse, content bool) error {
	l, r := res.GetLetter(), res.GetRecord()
	w := c.table()
	row := func(name, value string) { fmt.Fprintf(w, "%s\t%s\n", name, value) }
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
	row("status", enumWord(l.GetStatus(), "DEAD_LETTER_STATUS_"))
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
	return w.Flush()
}

// progress is what redrive and discard answer.
type progress interface {
	proto.Message
	GetResults() []*opsv1.DeadLetterResult
	GetSummary() *opsv1.DeadLetterSummary
}

// follow prints what a stream says, and how it ended.
func follow[T any, M interface {
	*T
	progress
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
			what := enumWord(r.GetOutcome(), "DEAD_LETTER_OUTCOME_")
			if r.GetOutcome() == opsv1.DeadLetterOutcome_DEAD_LETTER_OUTCOME_DONE {
				if what = done; !execute {
					what = "would be " + done
				}
			}
			fmt.Fprintf(c.cfg.Stdout, "%s  %s\n", safe(r.GetId()), strings.TrimSpace(what+"  "+r.GetReason()))
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
	fmt.Fprintln(c.cfg.Stdout, strings.Join(parts, ", "))
	if !execute {
		fmt.Fprintln(c.cfg.Stdout, dryRun)
	}
}

func redriveLetters(fs *flag.FlagSet) func(*call, []string) error {
	req := &opsv1.RedriveDeadLettersRequest{Filter: bindFilter(fs)}
	fs.BoolVar(&req.All, "all", false, "all that are open")
	bindExecute(fs, &req.Execute)
	limit := fs.Int("limit", 0, "letters to try; 0: all")
	rate := fs.Int("rate", 100, "letters a second, 1 to 10000")
	return func(c *call, args []string) error {
		req.Filter.Ids, req.Limit, req.Rate = args, int32(min(*limit, 1<<30)), int32(min(*rate, 1<<30))
		if *rate < 1 {
			return errUsage{errors.New("rate must be 1 to 10000")}
		}
		stream, err := c.client.RedriveDeadLetters(c.ctx, req)
		if err != nil {
			return err
		}
		defer stream.Close()
		return follow(c, stream, "redriven", req.GetExecute())
	}
}

func discardLetters(fs *flag.FlagSet) func(*call, []string) error {
	req := &opsv1.DiscardDeadLettersRequest{Filter: bindFilter(fs)}
	fs.BoolVar(&req.All, "all", false, "all that are open")
	bindExecute(fs, &req.Execute)
	fs.StringVar(&req.Reason, "reason", "", "why they are given up; kept with each")
	limit := fs.Int("limit", 0, "letters; 0: all")
	return func(c *call, args []string) error {
		if req.GetReason() == "" {
			return errUsage{errors.New("discard needs --reason")}
		}
		req.Filter.Ids, req.Limit = args, int32(min(*limit, 1<<30))
		stream, err := c.client.DiscardDeadLetters(c.ctx, req)
		if err != nil {
			return err
		}
		defer stream.Close()
		return follow(c, stream, "discarded", req.GetExecute())
	}
}
