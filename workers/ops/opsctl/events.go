package opsctl

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	opsv1 "github.com/parley-chat/parley/gen/parley/ops/v1"
	"github.com/parley-chat/parley/gen/parley/ops/v1/opsv1connect"
	"github.com/parley-chat/parley/server/infra/cmdline"
)

func (p *program) events() *cobra.Command {
	return cmdline.Group("events", "the event store, and what a chat was", p.foldChat(), p.listEvents(), p.showEvent())
}

func (c *call) events() opsv1connect.EventServiceClient {
	return opsv1connect.NewEventServiceClient(c.http, c.url, c.with)
}

const (
	eventStatus = "EVENT_STATUS_"
	// readAtOnce is the number of events that one call of a list reads.
	readAtOnce = 100_000
)

// eventStatusFlag declares the flag that chooses statuses; among is what there is.
func eventStatusFlag(fs *pflag.FlagSet, p *[]opsv1.EventStatus, help string, among ...opsv1.EventStatus) {
	words := make([]string, len(among))
	for i, s := range among {
		words[i] = word(s, eventStatus)
	}
	list := strings.Join(words, ", ")
	fs.Func("status", "`status` "+list+", or several with commas; "+help, func(s string) error {
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

// versionFlags declares the flags that choose versions of chats.
func versionFlags(fs *pflag.FlagSet, from, to *int64) {
	fs.Int64Var(from, "from-version", 0, "from this `version` of the chats on")
	fs.Int64Var(to, "to-version", 0, "up to this `version`; 0: the last")
}

// contentFlag declares the flag without which a command hides what users wrote.
func contentFlag(fs *pflag.FlagSet, content *bool) {
	fs.BoolVar(content, "content", false, "show what users wrote; that you asked for it is recorded")
}

func (p *program) listEvents() *cobra.Command {
	req := &opsv1.ListEventsRequest{}
	var limit int32
	var most int
	return p.command(spec{
		use: "list", short: "list events by chat, type, time, cause and status",
		flags: func(fs *pflag.FlagSet) {
			fs.StringVar(&req.ChatId, "chat", "", "of this `chat`; otherwise the whole event store is read")
			versionFlags(fs, &req.FromVersion, &req.ToVersion)
			fs.StringArrayVar(&req.EventTypes, "type", nil,
				"of this `type`, such as MessagePersisted; may come several times")
			timeFlag(fs, &req.FromTime, "since", "from this time on")
			timeFlag(fs, &req.BeforeTime, "until", "before this time")
			fs.StringVar(&req.ActorId, "actor", "", "caused by this `user`, or system")
			fs.StringVar(&req.CorrelationId, "correlation", "", "with this correlation `id`")
			fs.StringVar(&req.EventId, "id", "", "with this `id`")
			eventStatusFlag(fs, &req.Statuses, "all by default", opsv1.EventStatus_EVENT_STATUS_NEW,
				opsv1.EventStatus_EVENT_STATUS_FAILED, opsv1.EventStatus_EVENT_STATUS_PUBLISHED)
			contentFlag(fs, &req.Content)
			fs.IntVar(&most, "max-read", 1_000_000, "`events` read at most, matching or not")
			pagingFlags(fs, &limit, &req.PageToken, "events")
		},
		run: func(c *call) error {
			if most < 1 {
				return cmdline.Usagef("max-read must be at least 1")
			}
			return c.listEvents(req, int(limit), most)
		},
	})
}

// listEvents reads on until it has a number of events, has read as many as it may, or has
// read all.
func (c *call) listEvents(req *opsv1.ListEventsRequest, limit, most int) error {
	var found []*opsv1.StoredEvent
	read, reported := 0, time.Now()
	for more := true; more; more = req.GetPageToken() != "" && len(found) < limit && read < most {
		req.PageSize, req.MaxRead = int32(limit-len(found)), int32(min(readAtOnce, most-read))
		res, err := c.events().ListEvents(c.ctx, req)
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
		if now := time.Now(); now.Sub(reported) >= time.Second {
			fmt.Fprintf(c.stderr, "%d events read …\n", read)
			reported = now
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
	fmt.Fprintf(c.stdout, "%d events read, %d shown\n", read, len(found))
	if req.GetPageToken() != "" {
		fmt.Fprintf(c.stdout, "there may be more: --page-token %s\n", safe(req.GetPageToken()))
	}
	return nil
}

// eventNote is the status of an event, as far as it was asked for, and what is wrong with it.
func eventNote(e *opsv1.StoredEvent) string {
	note := "-"
	if e.GetStatus() != opsv1.EventStatus_EVENT_STATUS_UNSPECIFIED {
		note = word(e.GetStatus(), eventStatus)
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

func (p *program) showEvent() *cobra.Command {
	req := &opsv1.GetEventRequest{}
	return p.command(spec{
		use: "show CHAT VERSION", short: "show one", args: 2, needs: "a chat and a version",
		flags: func(fs *pflag.FlagSet) { contentFlag(fs, &req.Content) },
		run: func(c *call) error {
			version, err := strconv.ParseInt(c.args[1], 10, 64)
			if err != nil {
				return cmdline.Usagef("%.40q is no version", c.args[1])
			}
			req.ChatId, req.Version = c.args[0], version
			res, err := c.events().GetEvent(c.ctx, req)
			if err != nil || c.printJSON(res) {
				return err
			}
			return c.table(func(w io.Writer) { printEvent(w, res.GetEvent()) })
		},
	})
}

func printEvent(w io.Writer, e *opsv1.StoredEvent) {
	row := rowsOf(w)
	row("chat", safe(e.GetChatId()))
	row("version", e.GetVersion())
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
}

func (p *program) foldChat() *cobra.Command {
	req := &opsv1.FoldChatRequest{}
	return p.command(spec{
		use: "fold CHAT", short: "derive from its events what a chat was at a version or a time", args: 1, needs: "one chat",
		flags: func(fs *pflag.FlagSet) {
			fs.Int64Var(&req.Version, "version", 0, "after this `version`; 0: the last")
			timeFlag(fs, &req.At, "at", "at this time")
			contentFlag(fs, &req.Content)
		},
		run: func(c *call) error {
			if req.GetVersion() != 0 && req.GetAt() != nil {
				return cmdline.Usagef("events fold takes --version or --at, not both")
			}
			req.ChatId = c.args[0]
			return c.fold(req)
		},
	})
}

func (c *call) fold(req *opsv1.FoldChatRequest) error {
	stream, err := c.events().FoldChat(c.ctx, req)
	if err != nil {
		return err
	}
	defer stream.Close()
	var last *opsv1.FoldChatResponse
	for stream.Receive() {
		last = stream.Msg()
		if !c.printJSON(last) && last.GetChat() == nil {
			fmt.Fprintf(c.stderr, "version %d …\n", last.GetVersion())
		}
	}
	if err := stream.Err(); err != nil {
		return err
	}
	if !c.json {
		if err := c.table(func(w io.Writer) { printChat(w, last.GetChat()) }); err != nil {
			return err
		}
	}
	if last.GetProblem() != "" {
		return errors.New(safe(last.GetProblem()))
	}
	return nil
}

// printChat prints what a chat was.
func printChat(w io.Writer, s *opsv1.ChatState) {
	row := rowsOf(w)
	row("chat", safe(s.GetChatId()))
	row("version", fmt.Sprintf("%d, of %s", s.GetVersion(), formatTime(s.GetChangedAt())))
	row("type", orDash(s.GetChatType()))
	row("name", orDash(s.GetName()))
	row("created", fmt.Sprintf("%s by %s", formatTime(s.GetCreatedAt()), orDash(s.GetCreatedBy())))
	row("history", orDash(s.GetHistoryType()))
	row("messages", s.GetSequence())
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
}
