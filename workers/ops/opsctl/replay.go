package opsctl

import (
	"errors"
	"flag"
	"fmt"

	opsv1 "github.com/parley-chat/parley/gen/parley/ops/v1"
)

// repeatedFlag declares a flag that may come several times.
func repeatedFlag(fs *flag.FlagSet, p *[]string, name, help string) {
	fs.Func(name, help+"; may come several times", func(s string) error {
		*p = append(*p, s)
		return nil
	})
}

func replayEvents(fs *flag.FlagSet) func(*call, []string) error {
	req := &opsv1.ReplayEventsRequest{}
	repeatedFlag(fs, &req.ChatIds, "chat", "of this chat")
	fs.BoolVar(&req.AllChats, "all-chats", false, "of all chats; reads the whole event store")
	fs.Int64Var(&req.FromVersion, "from-version", 0, "from this version of the chats on")
	fs.Int64Var(&req.ToVersion, "to-version", 0, "up to this version; 0: the last")
	repeatedFlag(fs, &req.EventTypes, "type", "of this type, such as MessagePersisted, or search_click of search events")
	fs.Var(timeFlag{&req.FromTime}, "since", "from this time (RFC 3339) on, or within this duration (such as 90m)")
	fs.Var(timeFlag{&req.BeforeTime}, "until", "before this time, or longer ago than this duration")
	bindEventStatuses(fs, &req.Statuses, "published by default", opsv1.EventStatus_EVENT_STATUS_FAILED,
		opsv1.EventStatus_EVENT_STATUS_PUBLISHED)
	bindExecute(fs, &req.Execute)
	fs.StringVar(&req.Resume, "resume", "", "where a replay of all chats with the same flags ended early")
	limit := fs.Int("limit", 0, "events; 0: all")
	rate := fs.Int("rate", 1000, "events a second, 1 to 100000")
	return func(c *call, args []string) error {
		if err := noArguments(args); err != nil {
			return err
		}
		if (len(req.GetChatIds()) == 0) != req.GetAllChats() {
			return errUsage{errors.New("replay needs either --chat or --all-chats")}
		}
		if *rate < 1 {
			return errUsage{errors.New("rate must be 1 to 100000")}
		}
		req.Limit, req.Rate = int32(min(*limit, 1<<30)), int32(min(*rate, 1<<30))
		stream, err := c.client.ReplayEvents(c.ctx, req)
		if err != nil {
			return err
		}
		defer stream.Close()
		resume := req.GetResume()
		for stream.Receive() {
			m := stream.Msg()
			resume = m.GetResume()
			if c.printJSON(m) {
				continue
			}
			fmt.Fprintln(c.cfg.Stdout, replayed(m, req.GetExecute()))
		}
		if err := stream.Err(); err != nil {
			if req.GetExecute() && resume != "" {
				return fmt.Errorf("%w; continue with the same flags and --resume %q", err, resume)
			}
			return err
		}
		if !req.GetExecute() && !c.json {
			fmt.Fprintln(c.cfg.Stdout, dryRun)
		}
		return nil
	}
}

// replayed describes the progress of a replay in one line.
func replayed(m *opsv1.ReplayEventsResponse, execute bool) string {
	done := "are published again"
	if !execute {
		done = "would be published again"
	}
	line := fmt.Sprintf("%d chats, %d events %s", m.GetChats(), m.GetEvents(), done)
	if m.GetUnpublished() > 0 {
		line += fmt.Sprintf(", %d still wait for their first time", m.GetUnpublished())
	}
	if m.GetLost() > 0 {
		line += fmt.Sprintf(", %d failed rows have no readable events", m.GetLost())
	}
	switch {
	case m.GetMore():
		line += ", and there may be more"
	case !m.GetDone():
		line += " …"
	}
	return line
}
