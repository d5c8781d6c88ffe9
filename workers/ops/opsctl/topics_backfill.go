package opsctl

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/durationpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/cmdline"
)

func (p topics) startBackfill() *cobra.Command {
	req := &topicv1.StartBackfillRequest{Limits: &topicv1.BackfillLimits{}}
	var watch bool
	return p.command(spec{
		use: "start TOPIC GROUP", short: "start a backfill, or continue one that was cancelled or failed",
		args: 2,
		long: `  What was published before the group is delivered to it beside what is published, and is kept until it has
  acknowledged it. What all other groups are done with is left out, unless --scope all-retained says otherwise.

  server topics backfill start orders billing --watch
  server topics backfill start orders audit --from 7d --scope all-retained --preset conservative
`,
		flags: func(fs *pflag.FlagSet) {
			positionFlag(fs, &req.From, "from", "where it begins, earliest by default")
			enumFlag(fs, &req.Scope, "scope", "BACKFILL_SCOPE_", topicv1.BackfillScope_value, "which messages")
			enumFlag(fs, &req.Preset, "preset", "BACKFILL_PRESET_", topicv1.BackfillPreset_value, "how fast")
			fs.Int64Var(&req.MaxMessages, "max", 0, "at most so many `messages`, the newest; default 1,000,000, -1: no limit")
			fs.Int32Var(&req.Limits.MaxRate, "rate", 0, "at most so many `messages` a second")
			fs.Int32Var(&req.Limits.Batch, "batch", 0, "let so many `messages` go at a time")
			boundedFlag(fs, &req.Limits.TargetLatency, "target", "slow down when publishes take longer", 0, 10*time.Second)
			fs.BoolVar(&req.Again, "again", false, "start another one if the last is completed")
			fs.BoolVar(&watch, "watch", false, "show how far it is until it ends")
		},
		run: func(c *call) error {
			req.Topic, req.Group, req.Async = c.args[0], c.args[1], watch
			res, err := c.topic.Backfills().StartBackfill(c.ctx, req)
			if err != nil {
				return err
			}
			if !watch && c.printJSON(res) {
				return nil
			}
			if !c.json {
				if err := c.sayDifferences(res.GetDifferences()); err != nil {
					return err
				}
			}
			if watch {
				return c.watchBackfill()
			}
			if err := c.printBackfill(res.GetBackfill()); err != nil || res.GetStarted() {
				return err
			}
			if res.GetBackfill().GetStatus() == topicv1.BackfillStatus_BACKFILL_STATUS_COMPLETED {
				return c.say("it was completed before; add --again to start another one")
			}
			return c.say("it runs already")
		},
	})
}

func (p topics) cancelBackfill() *cobra.Command {
	return p.command(spec{
		use: "cancel TOPIC GROUP", short: "stop a backfill; start continues it", args: 2,
		run: func(c *call) error {
			res, err := c.topic.Backfills().CancelBackfill(c.ctx,
				&topicv1.CancelBackfillRequest{Topic: c.args[0], Group: c.args[1]})
			if err != nil || c.printJSON(res) {
				return err
			}
			return c.printBackfill(res.GetBackfill())
		},
	})
}

func (p topics) backfillStatus() *cobra.Command {
	var watch bool
	return p.command(spec{
		use: "status TOPIC GROUP", short: "show how far a backfill is", args: 2,
		flags: func(fs *pflag.FlagSet) { fs.BoolVar(&watch, "watch", false, "until it ends") },
		run: func(c *call) error {
			if watch {
				return c.watchBackfill()
			}
			res, err := c.topic.Backfills().GetBackfill(c.ctx,
				&topicv1.GetBackfillRequest{Topic: c.args[0], Group: c.args[1]})
			if err != nil || c.printJSON(res) {
				return err
			}
			return c.printBackfill(res.GetBackfill())
		},
	})
}

// watchBackfill shows how far a backfill is until it ends: on a terminal as one line that
// changes, elsewhere as a line for each.
func (c *call) watchBackfill() error {
	every := time.Second
	if cmdline.Terminal(c.stdout) {
		every = 200 * time.Millisecond
	}
	stream, err := c.topic.Backfills().WatchBackfill(c.ctx, &topicv1.WatchBackfillRequest{
		Topic: c.args[0], Group: c.args[1], Interval: durationpb.New(every),
	})
	if err != nil {
		return err
	}
	var last *topicv1.Backfill
	for stream.Receive() {
		last = stream.Msg().GetBackfill()
		if c.printJSON(stream.Msg()) {
			continue
		}
		if cmdline.Terminal(c.stdout) {
			_, err = fmt.Fprintf(c.stdout, "\r\x1b[K%s", backfillLine(last))
		} else {
			err = c.say("%s", backfillLine(last))
		}
		if err != nil {
			return err
		}
	}
	if err := stream.Err(); err != nil || last == nil || c.json {
		return err
	}
	if cmdline.Terminal(c.stdout) {
		if err := c.say(""); err != nil {
			return err
		}
	}
	return c.printBackfill(last)
}

const barWidth = 30

// backfillLine is a bar and what it stands for, in one line.
func backfillLine(b *topicv1.Backfill) string {
	full := max(0, min(barWidth, int(b.GetPercent()/100*barWidth)))
	line := fmt.Sprintf("[%s%s] %5.1f %%  %d of %d", strings.Repeat("#", full), strings.Repeat(".", barWidth-full),
		b.GetPercent(), b.GetProcessed(), b.GetTotal())
	if b.GetStatus() != topicv1.BackfillStatus_BACKFILL_STATUS_IN_PROGRESS {
		return line + "  " + flagWord(b.GetStatus(), "BACKFILL_STATUS_")
	}
	line += fmt.Sprintf("  %.0f/s", b.GetRate())
	if b.GetEta() != nil {
		line += "  " + formatDuration(b.GetEta()) + " left"
	}
	if b.GetThrottled() {
		line += "  slowed: publishes take " + b.GetLiveP95().AsDuration().Round(time.Millisecond).String()
	}
	return line
}

func (c *call) printBackfill(b *topicv1.Backfill) error {
	return c.table(func(w io.Writer) {
		row := rowsOf(w)
		row("topic", safe(b.GetTopic()))
		row("group", safe(b.GetGroup()))
		row("status", flagWord(b.GetStatus(), "BACKFILL_STATUS_"))
		if b.GetNumber() == 0 {
			return
		}
		row("messages", fmt.Sprintf("%d of %d, %.1f %%", b.GetProcessed(), b.GetTotal(), b.GetPercent()))
		if b.GetLimitReached() {
			row("limit", fmt.Sprintf("there were more than %d", b.GetMaxMessages()))
		}
		row("scope", flagWord(b.GetScope(), "BACKFILL_SCOPE_"))
		l := b.GetLimits()
		row("limits", fmt.Sprintf("%d at a time, %d a second, publishes within %s", l.GetBatch(), l.GetMaxRate(),
			formatDuration(l.GetTargetLatency())))
		row("started", formatTime(b.GetStartedAt()))
		row("ended", formatTime(b.GetCompletedAt()))
		if b.GetError() != "" {
			row("error", safe(b.GetError()))
		}
	})
}
