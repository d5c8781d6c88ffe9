package opsctl

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	opsv1 "github.com/parley-chat/parley/gen/parley/ops/v1"
)

const (
	eventStatus = "EVENT_STATUS_"
	// readAtOnce is the number of events that one call of a list reads.
	readAtOnce = 100_000
)

// bindEventStatuses declares the flag that chooses statuses; among is what there is.
func bindEventStatuses(fs *flag.FlagSet, p *[]opsv1.EventStatus, help string, among ...opsv1.EventStatus) {
	words := make([]string, len(among))
	for i, s := range among {
		words[i] = enumWord(s, eventStatus)
	}
	list := strings.Join(words, ", ")
	fs.Func("status", list+", or several with commas; "+help, func(s string) error {
		*p = nil
		for word := range strings.SplitSeq(s, ",") {
			found := false
			for i, w := range words {
				if w == strings.ToLower(word) {
					*p, found = append(*p, among[i]), true
				}
			}
			if !found {
				return fmt.Errorf("must be of %s", list)
			}
		}
		return nil
	})
}

// bindContent declares the flag without which a command hides what users wrote.
func bindContent(fs *flag.FlagSet, content *bool) {
	fs.BoolVar(content, "content", false, "show what users wrote; that you asked for it is recorded")
}

func listEvents(fs *flag.FlagSet) func(*call, []string) error {
	req := &opsv1.ListEventsRequest{}
	fs.StringVar(&req.ChatId, "chat", "", "of this chat; otherwise the whole event store is read")
	fs.Int64Var(&req.FromVersion, "from-version", 0, "from this version of the chats on")
	fs.Int64Var(&req.ToVersion, "to-version", 0, "up to this version; 0: the last")
	repeatedFlag(fs, &req.EventTypes, "type", "of this type, such as MessagePersisted")
	fs.Var(timeFlag{&req.FromTime}, "since", "from this time (RFC 3339) on, or within this duration (such as 90m)")
	fs.Var(timeFlag{&req.BeforeTime}, "until", "before this time, or longer ago than this duration")
	fs.StringVar(&req.ActorId, "actor", "", "caused by this user, or system")
	fs.StringVar(&req.CorrelationId, "correlation", "", "with this correlation id")
	fs.StringVar(&req.EventId, "id", "", "with this id")
	bindEventStatuses(fs, &req.Statuses, "all by default", opsv1.EventStatus_EVENT_STATUS_NEW,
		opsv1.EventStatus_EVENT_STATUS_FAILED, opsv1.EventStatus_EVENT_STATUS_PUBLISHED)
	bindContent(fs, &req.Content)
	most := fs.Int("max-read", 1_000_000, "events read at most, matching or not")
	p := bindPaging(fs, "events")
	return func(c *call, args []string) error {
		if err := p.check(args); err != nil {
			return err
		}
		if *most < 1 {
			return errUsage{errors.New("max-read must be at least 1")}
		}
		req.PageToken = p.token
		return c.listEvents(req, p.limit, *most)
	}
}

// listEvents reads on until it has a number of events, has read as many as it may, or has
// read all.
func (c *call) listEvents(req *opsv1.ListEventsRequest, limit, most int) error {
	var found []*opsv1.StoredEvent
	read, told := 0, time.Now()
	for more := true; more; more = req.GetPageToken() != "" && len(found) < limit && read < most {
		req.PageSize, req.MaxRead = int32(limit-len(found)), int32(min(readAtOnce, most-read))
		res, err := c.events.ListEvents(c.ctx, req)
		if err != nil {
			if read > 0 {
				return fmt.Errorf("%w; %d events were read: continue with the same flags and --page-token %s", err, read,
					req.GetPageToken())
			}
			return err
		}
		c.printJSON(res)
		found = append(found, res.GetEvents()...)
		read += int(res.GetRead())
		req.PageToken = res.GetNextPageToken()
		if now := time.Now(); now.Sub(told) >= time.Second {
			fmt.Fprintf(c.cfg.Stderr, "%d events read …\n", read)
			told = now
		}
	}
	if c.json {
		return nil
	}
	err := c.page("CHAT\tVERSION\tTYPE\tAT\tBY\tEVENT\tSTATUS", func(w io.Writer) {
		for _, e := range found {
			fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\t%s\n", safe(e.GetChatId()), e.GetVersion(), safe(e.GetEventType()),
				formatTime(e.GetEventTime()), orDash(e.GetActorId()), safe(e.GetEventId()), eventNote(e))
		}
	}, "")
	if err != nil {
		return err
	}
	fmt.Fprintf(c.cfg.Stdout, "%d events read, %d shown\n", read, len(found))
	if req.GetPageToken() != "" {
		fmt.Fprintf(c.cfg.Stdout, "there may be more: --page-token %s\n", safe(req.GetPageToken()))
	}
	return nil
}

// orDash shows a text of others, or that there is none.
func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return safe(s)
}

// eventNote is the status of an event, as far as it was asked for, and what is wrong with it.
func eventNote(e *opsv1.StoredEvent) string {
	note := "-"
	if e.GetStatus() != opsv1.EventStatus_EVENT_STATUS_UNSPECIFIED {
		note = enumWord(e.GetStatus(), eventStatus)
	}
	if e.GetReplay() {
		note += ", once more"
	}
	if e.GetLastError() != "" {
		note += fmt.Sprintf(", recorded %d times: %s", e.GetAttempts(), safe(e.GetLastError()))
	}
	if e.GetProblem() != "" {
		note += "; unreadable: " + safe(e.GetProblem())
	}
	return note
}

func showEvent(fs *flag.FlagSet) func(*call, []string) error {
	req := &opsv1.GetEventRequest{}
	bindContent(fs, &req.Content)
	return func(c *call, args []string) error {
		const usage = "events show needs a chat and a version"
		if len(args) != 2 {
			return errUsage{errors.New(usage)}
		}
		version, err := strconv.ParseInt(args[1], 10, 64)
		if err != nil {
			return errUsage{fmt.Errorf("%.40q is no version", args[1])}
		}
		req.ChatId, req.Version = args[0], version
		res, err := c.events.GetEvent(c.ctx, req)
		if err != nil || c.printJSON(res) {
			return err
		}
		e := res.GetEvent()
		w := c.table()
		row := func(name, value string) { fmt.Fprintf(w, "%s\t%s\n", name, value) }
		row("chat", safe(e.GetChatId()))
		row("version", fmt.Sprint(e.GetVersion()))
		row("event", safe(e.GetEventId()))
		row("type", safe(e.GetEventType()))
		row("at", formatTime(e.GetEventTime()))
		row("by", orDash(e.GetActorId()))
		row("correlation", orDash(e.GetCorrelationId()))
		row("cause", orDash(e.GetCausationId()))
		row("size", fmt.Sprintf("%d bytes", e.GetBytes()))
		row("status", eventNote(e))
		if e.GetEventJson() != "" {
			row("content", e.GetEventJson())
		}
		return w.Flush()
	}
}

func foldChat(fs *flag.FlagSet) func(*call, []string) error {
	req := &opsv1.FoldChatRequest{}
	fs.Int64Var(&req.Version, "version", 0, "after this version; 0: the last")
	fs.Var(timeFlag{&req.At}, "at", "at this time (RFC 3339), or this long ago (such as 90m)")
	bindContent(fs, &req.Content)
	return func(c *call, args []string) (err error) {
		if req.ChatId, err = oneArgument(args, "events fold needs one chat"); err != nil {
			return err
		}
		if req.GetVersion() != 0 && req.GetAt() != nil {
			return errUsage{errors.New("events fold takes --version or --at, not both")}
		}
		stream, err := c.events.FoldChat(c.ctx, req)
		if err != nil {
			return err
		}
		defer stream.Close()
		var last *opsv1.FoldChatResponse
		for stream.Receive() {
			last = stream.Msg()
			if !c.printJSON(last) && last.GetChat() == nil {
				fmt.Fprintf(c.cfg.Stderr, "version %d …\n", last.GetVersion())
			}
		}
		if err := stream.Err(); err != nil {
			return err
		}
		if !c.json {
			if err := c.printChat(last.GetChat()); err != nil {
				return err
			}
		}
		if last.GetProblem() != "" {
			return errors.New(safe(last.GetProblem()))
		}
		return nil
	}
}

// printChat prints what a chat was.
func (c *call) printChat(s *opsv1.ChatState) error {
	w := c.table()
	row := func(name, value string) { fmt.Fprintf(w, "%s\t%s\n", name, value) }
	row("chat", safe(s.GetChatId()))
	row("version", fmt.Sprintf("%d, of %s", s.GetVersion(), formatTime(s.GetChangedAt())))
	row("type", orDash(s.GetChatType()))
	row("name", orDash(s.GetName()))
	row("created", fmt.Sprintf("%s by %s", formatTime(s.GetCreatedAt()), orDash(s.GetCreatedBy())))
	row("history", orDash(s.GetHistoryType()))
	row("messages", fmt.Sprint(s.GetSequence()))
	if m := s.GetLastMessage(); m != nil {
		row("last message", fmt.Sprintf("%d, of %s by %s: %s", m.GetSequence(), formatTime(m.GetSentAt()),
			safe(m.GetSenderId()), safe(m.GetPreview())))
	}
	fmt.Fprintf(w, "\nMEMBER\tROLE\tSINCE\tVERSION\tMESSAGES BEFORE\n")
	for _, m := range s.GetMembers() {
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\n", safe(m.GetUserId()), safe(m.GetRoleType()), formatTime(m.GetJoinedAt()),
			m.GetJoinedVersion(), m.GetJoinedSequence())
	}
	for _, id := range s.GetPendingIds() {
		fmt.Fprintf(w, "%s\tis on their way in\n", safe(id))
	}
	if s.GetDepartedCount() > 0 {
		fmt.Fprintf(w, "\nLEFT\tAT\tVERSION\n")
	}
	for _, d := range s.GetDeparted() {
		fmt.Fprintf(w, "%s\t%s\t%d\n", safe(d.GetUserId()), formatTime(d.GetLeftAt()), d.GetLeftVersion())
	}
	if rest := s.GetDepartedCount() - int64(len(s.GetDeparted())); rest > 0 {
		fmt.Fprintf(w, "and %d others\n", rest)
	}
	return w.Flush()
}
