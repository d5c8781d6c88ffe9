package opsctl

import (
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	opsv1 "github.com/parley-chat/parley/gen/parley/ops/v1"
	"github.com/parley-chat/parley/server/infra/cmdline"
)

func (p *program) replay() *cobra.Command {
	req := &opsv1.ReplayEventsRequest{}
	var limit, rate int
	return p.command(spec{
		use: "replay", short: "publish events again, or have the relay retry failed rows",
		flags: func(fs *pflag.FlagSet) {
			fs.StringArrayVar(&req.ChatIds, "chat", nil, "of this `chat`; may come several times")
			fs.BoolVar(&req.AllChats, "all-chats", false, "of all chats; reads the whole event store")
			versionFlags(fs, &req.FromVersion, &req.ToVersion)
			fs.StringArrayVar(&req.EventTypes, "type", nil,
				"of this `type`, such as MessagePersisted, or search_click of search events; may come several times")
			timeFlag(fs, &req.FromTime, "since", "from this time on")
			timeFlag(fs, &req.BeforeTime, "until", "before this time")
			eventStatusFlag(fs, &req.Statuses, "published by default", opsv1.EventStatus_EVENT_STATUS_FAILED,
				opsv1.EventStatus_EVENT_STATUS_PUBLISHED)
			executeFlag(fs, &req.Execute)
			fs.StringVar(&req.Resume, "resume", "", "where a replay of all chats with the same flags ended early")
			fs.IntVar(&limit, "limit", 0, "`events`; 0: all")
			fs.IntVar(&rate, "rate", 1000, "`events` a second, 1 to 100000")
		},
		run: func(c *call) error {
			if (len(req.GetChatIds()) == 0) != req.GetAllChats() {
				return cmdline.Usagef("replay needs either --chat or --all-chats")
			}
			if rate < 1 {
				return cmdline.Usagef("rate must be 1 to 100000")
			}
			req.Limit, req.Rate = bounded(limit), bounded(rate)
			return c.replay(req)
		},
	})
}

func (c *call) replay(req *opsv1.ReplayEventsRequest) error {
	stream, err := c.ops().ReplayEvents(c.ctx, req)
	if err != nil {
		return err
	}
	defer stream.Close()
	resume := req.GetResume()
	for stream.Receive() {
		m := stream.Msg()
		resume = m.GetResume()
		if !c.printJSON(m) {
			fmt.Fprintln(c.stdout, replayed(m, req.GetExecute()))
		}
	}
	if err := stream.Err(); err != nil {
		if req.GetExecute() && resume != "" {
			return fmt.Errorf("%w; continue with the same flags and --resume %q", err, resume)
		}
		return err
	}
	if !req.GetExecute() && !c.json {
		return c.say(dryRun)
	}
	return nil
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
