package opsctl

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	opsv1 "github.com/parley-chat/parley/gen/parley/ops/v1"
)

// verbsOf lists the verbs of a group.
func verbsOf(verbs map[string]command) string {
	return strings.Join(slices.Sorted(maps.Keys(verbs)), ", ")
}

// when is a flag that takes a time, or how long ago it was.
type when struct{ t **timestamppb.Timestamp }

func (w when) String() string { return "" }

func (w when) Set(s string) error {
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

// bindFilter declares the flags that choose dead letters.
func bindFilter(fs *flag.FlagSet) *opsv1.DeadLetterFilter {
	f := &opsv1.DeadLetterFilter{}
	fs.StringVar(&f.Group, "group", "", "of this consumer group")
	fs.StringVar(&f.Topic, "topic", "", "of records of this topic")
	fs.StringVar(&f.Key, "key", "", "of records with this key; events have the chat's id")
	fs.StringVar(&f.Reason, "failure", "", "with this in the reason of the failure")
	fs.Func("class", "of this class of failures: unknown, permanent, downstream or authoritative", func(s string) error {
		v, ok := opsv1.FailureClass_value["FAILURE_CLASS_"+strings.ToUpper(s)]
		if !ok || v == 0 {
			return errors.New("must be unknown, permanent, downstream or authoritative")
		}
		f.FailureClass = opsv1.FailureClass(v)
		return nil
	})
	fs.Var(when{&f.FailedFrom}, "since", "failed at this time (RFC 3339) or within this duration (such as 90m)")
	fs.Var(when{&f.FailedBefore}, "until", "failed before this time or longer ago than this duration")
	return f
}

func bindStatuses(fs *flag.FlagSet) *[]opsv1.DeadLetterStatus {
	var out []opsv1.DeadLetterStatus
	fs.Func("status", "open, running, redriven, discarded, several with commas, or all; default: open", func(s string) error {
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

func none(args []string) error {
	if len(args) > 0 {
		return errUsage{fmt.Errorf("unexpected %.80q", args[0])}
	}
	return nil
}

// word is an enum's value without its type's name.
func word(s fmt.Stringer, prefix string) string {
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(s.String(), prefix), "_", " "))
}

func clock(t *timestamppb.Timestamp) string {
	if t == nil {
		return "-"
	}
	return t.AsTime().UTC().Format("2006-01-02T15:04:05Z")
}

// safe shows text of others on a terminal: control characters are escaped.
func safe(s string) string {
	q := strconv.Quote(s)
	if q == `"`+s+`"` && s != "" {
		return s
	}
	return q
}

func list(fs *flag.FlagSet) func(*call, []string) error {
	f, statuses := bindFilter(fs), bindStatuses(fs)
	limit := fs.Int("limit", 100, "letters, 1 to 1000")
	token := fs.String("page-token", "", "where the page before ended, as printed by it")
	return func(c *call, args []string) error {
		if err := none(args); err != nil {
			return err
		}
		if *limit < 1 || *limit > 1000 {
			return errUsage{errors.New("limit must be 1 to 1000")}
		}
		res, err := c.client.ListDeadLetters(c.ctx, &opsv1.ListDeadLettersRequest{Filter: f, Statuses: *statuses, PageSize: int32(*limit), PageToken: *token})
		if err != nil || c.say(res) {
			return err
		}
		w := tabwriter.NewWriter(c.cfg.Stdout, 0, 8, 2, ' ', 0)
		fmt.Fprintln(w, "ID\tFAILED AT\tTRIES\tSTATUS\tKEY\tREASON")
		for _, l := range res.GetLetters() {
			reason := l.GetReason()
			if l.GetResult() != "" {
				reason = l.GetResult() + " (by " + l.GetHandledBy() + ")"
			}
			fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\n", safe(l.GetId()), clock(l.GetFailedAt()), l.GetAttempts(), word(l.GetStatus(), "DEAD_LETTER_STATUS_"), safe(l.GetKey()), safe(reason))
		}
		if err := w.Flush(); err != nil {
			return err
		}
		if t := res.GetNextPageToken(); t != "" {
			fmt.Fprintf(c.cfg.Stdout, "there are more: --page-token %s\n", t)
		}
		return nil
	}
}

func count(fs *flag.FlagSet) func(*call, []string) error {
	f, statuses := bindFilter(fs), bindStatuses(fs)
	return func(c *call, args []string) error {
		if err := none(args); err != nil {
			return err
		}
		res, err := c.client.CountDeadLetters(c.ctx, &opsv1.CountDeadLettersRequest{Filter: f, Statuses: *statuses})
		if err != nil || c.say(res) {
			return err
		}
		w := tabwriter.NewWriter(c.cfg.Stdout, 0, 8, 2, ' ', 0)
		fmt.Fprintln(w, "LETTERS\tGROUP\tTOPIC\tFIRST\tLAST\tREASON")
		for _, n := range res.GetCounts() {
			fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\n", n.GetCount(), safe(n.GetGroup()), safe(n.GetTopic()), clock(n.GetFirstFailedAt()), clock(n.GetLastFailedAt()), safe(n.GetReason()))
		}
		fmt.Fprintf(w, "%d\tin all\n", res.GetTotal())
		return w.Flush()
	}
}

func show(fs *flag.FlagSet) func(*call, []string) error {
	content := fs.Bool("content", false, "show what users wrote; that you asked for it is logged")
	return func(c *call, args []string) error {
		if len(args) != 1 {
			return errUsage{errors.New("deadletters show needs one id")}
		}
		res, err := c.client.GetDeadLetter(c.ctx, &opsv1.GetDeadLetterRequest{Id: args[0], Content: *content})
		if err != nil || c.say(res) {
			return err
		}
		l, r := res.GetLetter(), res.GetRecord()
		w := tabwriter.NewWriter(c.cfg.Stdout, 0, 8, 2, ' ', 0)
		row := func(name, value string) { fmt.Fprintf(w, "%s\t%s\n", name, value) }
		row("id", safe(l.GetId()))
		row("group", safe(l.GetGroup()))
		row("consumer", safe(l.GetConsumer()))
		row("record", fmt.Sprintf("%s, partition %d, offset %d, of %s", safe(l.GetTopic()), l.GetPartition(), l.GetOffset(), clock(l.GetRecordedAt())))
		row("key", safe(l.GetKey()))
		row("failed", fmt.Sprintf("%s, after %d tries", clock(l.GetFailedAt()), l.GetAttempts()))
		row("reason", safe(l.GetReason()))
		row("status", word(l.GetStatus(), "DEAD_LETTER_STATUS_"))
		if l.GetHandledBy() != "" {
			row("handled", fmt.Sprintf("%s by %s, redriven %d times: %s", clock(l.GetHandledAt()), safe(l.GetHandledBy()), l.GetRedrives(), safe(l.GetResult())))
		}
		for _, h := range r.GetHeaders() {
			row("header "+safe(h.GetName()), safe(string(h.GetValue())))
		}
		row("value", fmt.Sprintf("%d bytes, SHA-256 %x", l.GetValueBytes(), r.GetValueSha256()))
		if *content {
			row("bytes", fmt.Sprintf("%x", r.GetValue()))
		}
		if res.GetEventType() != "" {
			row("event", res.GetEventType()+" "+res.GetEventJson())
		} else {
			row("event", "none: "+safe(res.GetProblem()))
		}
		return w.Flush()
	}
}

// handled is what redrive and discard answer.
type handled interface {
	proto.Message
	GetResults() []*opsv1.DeadLetterResult
	GetSummary() *opsv1.DeadLetterSummary
}

// follow tells what a stream says, and how it ended.
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
		if c.say(m) {
			continue
		}
		for _, r := range m.GetResults() {
			what := word(r.GetOutcome(), "DEAD_LETTER_OUTCOME_")
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
		c.sum(sum, done, execute)
	}
	if execute && sum.GetMatched() > sum.GetDone() {
		return errLeft
	}
	return nil
}

func (c *call) sum(s *opsv1.DeadLetterSummary, done string, execute bool) {
	if !execute {
		done = "would be " + done
	}
	parts := []string{fmt.Sprintf("%d chosen, %d %s", s.GetMatched(), s.GetDone(), done)}
	for _, p := range []struct {
		n    int64
		text string
	}{
		{s.GetFailed(), "failed again"}, {s.GetBehind(), "left behind an earlier one of their key"}, {s.GetNoHandler(), "of groups that nobody handles here"}, {s.GetTaken(), "taken by somebody else"},
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
		fmt.Fprintln(c.cfg.Stdout, "nothing was done: --execute does it")
	}
}

func redrive(fs *flag.FlagSet) func(*call, []string) error {
	req := &opsv1.RedriveDeadLettersRequest{Filter: bindFilter(fs)}
	fs.BoolVar(&req.All, "all", false, "all that are open")
	fs.BoolVar(&req.Execute, "execute", false, "do it; otherwise tell what would be done")
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

func discard(fs *flag.FlagSet) func(*call, []string) error {
	req := &opsv1.DiscardDeadLettersRequest{Filter: bindFilter(fs)}
	fs.BoolVar(&req.All, "all", false, "all that are open")
	fs.BoolVar(&req.Execute, "execute", false, "do it; otherwise tell what would be done")
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
