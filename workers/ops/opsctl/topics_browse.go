package opsctl

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/client/topic"
	"github.com/parley-chat/parley/server/infra/cmdline"
)

func (p topics) get() *cobra.Command {
	return p.command(spec{
		use: "get TOPIC ID", short: "print a message; groups keep theirs", args: 2,
		long: `  server topics get orders 0-1041
  server topics get orders 0-1041 --json
`,
		run: func(c *call) error {
			res, err := c.topics().GetMessage(c.ctx, &topicv1.GetMessageRequest{Topic: c.args[0], MessageId: c.args[1]})
			if err != nil {
				return err
			}
			return c.printStored(res.GetMessage())
		},
	})
}

// printStored prints a stored message that was read by browsing, not delivered to a member.
func (c *call) printStored(m *topicv1.StoredMessage) error {
	return c.printMessage(&topic.Received{
		Message: m.GetMessage(), ID: m.GetMessageId(), Partition: m.GetPartition(), Position: m.GetPosition(),
	})
}

// browseFlags say what to print of a topic.
type browseFlags struct {
	from       *topicv1.Position
	partitions []int32
	count      int
}

func (p topics) browse() *cobra.Command {
	f := &browseFlags{}
	return p.command(spec{
		use: "browse TOPIC", short: "print the messages of a topic; groups keep theirs", args: 1,
		long: `  It needs no group and changes none: what it prints is still delivered. Partitions come one after the
  other. "topics tail" follows a topic.

  server topics browse orders
  server topics browse orders --from 2h -n 20
  server topics browse orders --partition 3 --from 3-1041 --json
`,
		flags: func(fs *pflag.FlagSet) {
			positionFlag(fs, &f.from, "from", "where to begin in each partition, earliest by default")
			fs.Int32SliceVar(&f.partitions, "partition", nil, "only this `partition`")
			fs.IntVarP(&f.count, "count", "n", 100, "at most so many `messages`; 0 for all")
		},
		run: func(c *call) error { return c.browseAll(f) },
	})
}

// browseAll prints pages until the topic ends, or as many messages as were asked for.
func (c *call) browseAll(f *browseFlags) error {
	if f.count < 0 || len(f.partitions) > 1 {
		return cmdline.Usagef("topics browse: -n must not be negative, and --partition is one")
	}
	req := &topicv1.BrowseMessagesRequest{Topic: c.args[0], From: f.from, MaxMessages: maxPage}
	if len(f.partitions) > 0 {
		req.Partition = &f.partitions[0]
	}
	for left := f.count; ; {
		if f.count > 0 {
			req.MaxMessages = int32(min(left, maxPage))
		}
		res, err := c.topics().BrowseMessages(c.ctx, req)
		if err != nil {
			return err
		}
		for _, m := range res.GetMessages() {
			if err := c.printStored(m); err != nil {
				return err
			}
		}
		left -= len(res.GetMessages())
		req.PageToken = res.GetNextPageToken()
		switch {
		case req.GetPageToken() == "":
			return nil
		case f.count > 0 && left <= 0:
			if c.json {
				return nil
			}
			return c.say("there may be more: -n %d", 2*f.count)
		}
	}
}

func (p topics) purge() *cobra.Command {
	req := &topicv1.PurgeMessagesRequest{}
	var all bool
	return p.command(spec{
		use: "purge TOPIC", short: "remove messages for good, although groups have not acknowledged them", args: 1,
		long: `  It does so at once, and prints what groups lose by it. --all is for all messages that are stored now; messages
  that are published meanwhile may stay. --before PLACE is for those before ` + positionUsage + `.
  A message's id is for its partition only.

  server topics purge orders --before 7d --dry-run
  server topics purge orders --before 0-1041
  server topics purge jobs --all --partition 3
`,
		flags: func(fs *pflag.FlagSet) {
			positionFlag(fs, &req.Before, "before", "remove what lies before this place")
			fs.BoolVar(&all, "all", false, "remove all messages that are stored now")
			fs.Int32SliceVar(&req.Partitions, "partition", nil, "only these `partitions`; may be repeated")
			fs.BoolVar(&req.DryRun, "dry-run", false, "say what would be removed, and remove nothing")
		},
		run: func(c *call) error {
			if all == (req.GetBefore() != nil) {
				return cmdline.Usage(errors.New("topics purge needs either --before PLACE or --all"))
			}
			if all {
				req.Before = &topicv1.Position{At: &topicv1.Position_Latest{Latest: true}}
			}
			req.Topic = c.args[0]
			res, err := c.topics().PurgeMessages(c.ctx, req)
			if err != nil || c.printJSON(res) {
				return err
			}
			return c.printPurge(res, req.GetDryRun())
		},
	})
}

// printPurge prints what was removed, or would be, and what groups lose by it.
func (c *call) printPurge(res *topicv1.PurgeMessagesResponse, dry bool) error {
	removed := int64(0)
	err := c.table(func(w io.Writer) {
		fmt.Fprintln(w, "PARTITION\tFROM\tTO\tREMOVED")
		for _, p := range res.GetPurges() {
			removed += p.GetTo() - p.GetFrom()
			fmt.Fprintf(w, "%d\t%d\t%d\t%d\n", p.GetPartition(), p.GetFrom(), p.GetTo(), p.GetTo()-p.GetFrom())
		}
		if len(res.GetGroups()) > 0 {
			fmt.Fprintln(w, "\nGROUP\tLOSES")
		}
		for _, g := range res.GetGroups() {
			fmt.Fprintf(w, "%s\t%d\n", safe(g.GetGroup()), g.GetMessages())
		}
	})
	if more := int(res.GetGroupCount()) - len(res.GetGroups()); err == nil && more > 0 {
		err = c.say("and %d groups more", more)
	}
	switch {
	case err != nil:
		return err
	case dry:
		return c.say("nothing was removed: it was a dry run; without --dry-run %d messages are", removed)
	}
	return c.say("%d messages removed", removed)
}
