package opsctl

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/proto"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/gen/parley/topic/v1/topicv1connect"
	"github.com/parley-chat/parley/server/client/topic"
	"github.com/parley-chat/parley/server/infra/cmdline"
)

// topics makes the commands on durable topics. A running server does the work, for operators, and for users
// as far as a topic's bindings allow it.
type topics struct{ *program }

// AddTopics adds the commands on durable topics to a program's tree that has those of AddTo.
func AddTopics(root *cobra.Command, config func() (Config, error)) {
	p := topics{&program{config: config, explain: explainTopic, forUsers: true}}
	backfills := cmdline.Group("backfill", "give a group messages from before it",
		p.startBackfill(), p.cancelBackfill(), p.backfillStatus())
	g := cmdline.Group("topics", "commands on durable topics",
		p.create(), p.list(), p.describe(), p.remove(), p.publish(), p.tail(), p.status(),
		p.get(), p.browse(), p.purge(),
		p.groups(), p.subscribe(), p.updateSubscription(), p.pause(), p.resume(), p.cancel(), p.seek(), p.unpark(),
		p.bindings(), backfills,
		p.health(), p.monitors(), p.removeGroup(), p.resurrect(), p.forceComplete(), p.jobs(), p.audit())
	g.GroupID = groupID
	root.AddCommand(g)
}

// command makes a command that has a client for topics.
func (p topics) command(s spec) *cobra.Command {
	run := s.run
	s.run = func(c *call) (err error) {
		if c.topic, err = topic.Dial(topic.Config{BaseURL: c.url, Token: c.token, HTTP: c.http}); err != nil {
			return err
		}
		return run(c)
	}
	return p.program.command(s)
}

// explainTopic is Explain with the reason that topics give.
func explainTopic(err error) string {
	text := Explain(err)
	if r := topic.Reason(err); r != "" && !strings.Contains(text, r) {
		text = fmt.Sprintf("%s (%s)", text, r)
	}
	return text
}

func (c *call) topics() topicv1connect.TopicServiceClient { return c.topic.Topics() }

func (c *call) subscriptions() topicv1connect.SubscriptionServiceClient {
	return c.topic.Subscriptions()
}

func (c *call) topicAdmin() topicv1connect.TopicAdminServiceClient {
	return topicv1connect.NewTopicAdminServiceClient(c.http, c.url, c.with)
}

func (p topics) create() *cobra.Command {
	req := &topicv1.ConfigureTopicRequest{Config: &topicv1.TopicConfig{}}
	var block, pins bool
	var fs *pflag.FlagSet
	var setSchema func() error
	return p.command(spec{
		use: "create TOPIC", short: "make a topic, or change its settings", args: 1,
		long: `  What no flag sets has the preset's value, or the default, in a new topic, and stays as it is in
  one that there is.

  server topics create orders --semantics pub-sub
  server topics create jobs --preset queue --partitions 4
  server topics create messages.persisted --source chat-events
  server topics create payments --preset critical --message-retention 7d
  server topics create jobs --semantics pub-sub --dry-run
  server topics create orders --schema 7 --schema-message shop.v1.Order

  With --schema the server stores only messages that are as a schema of the registry says. To change it,
  name the id of the next one: the gate judges whether it may follow. --no-schema removes it.
`,
		flags: func(f *pflag.FlagSet) {
			fs = f
			cfg := req.GetConfig()
			enumFlag(fs, &cfg.Semantics, "semantics", "SEMANTICS_", topicv1.Semantics_value, "who receives a message")
			enumFlag(fs, &cfg.Source, "source", "SOURCE_", topicv1.Source_value, "where the messages of a new topic come from")
			enumFlag(fs, &cfg.CompletionMode, "mode", "COMPLETION_MODE_", topicv1.CompletionMode_value,
				"when an acknowledgement is answered")
			enumFlag(fs, &req.Preset, "preset", "PRESET_", topicv1.Preset_value, "values for what no flag sets")
			fs.Int32Var(&cfg.Partitions, "partitions", 0, "`partitions` of a new topic, 1 to 256; default 1")
			durationFlag(fs, &cfg.MessageRetention, "message-retention", "how long what all have acknowledged is kept")
			durationFlag(fs, &cfg.MaxRetention, "max-retention", "how long messages are kept at all")
			boundedFlag(fs, &cfg.ZeroSubscriptionRetention, "zero-subscription-retention",
				"how long messages are kept that no group is to receive, 1h to 365d", time.Hour, 365*24*time.Hour)
			durationFlag(fs, &cfg.ZombieSubscriptionTtl, "zombie-subscription-ttl",
				"how long a group that does not move holds messages")
			sizeFlag(fs, &cfg.MaxBytes, "max-bytes", "bytes that its messages may take; default is the server's topic-max-bytes")
			boundedFlag(fs, &cfg.DeadRetention, "dead-retention",
				"how long after its death messages are kept for a group; default 7d, at most 365d", 0, 365*24*time.Hour)
			sizeFlag(fs, &cfg.DeadRetentionBytes, "dead-retention-bytes",
				"bytes of messages that are kept for dead groups alone; default 1GB, 0 for none")
			setSchema = schemaFlags(fs, cfg)
			fs.BoolVar(&block, "block-writes", false, "refuse messages while no subscription is active")
			fs.BoolVar(&pins, "pause-holds", true, "paused groups hold messages")
			fs.StringVar(&req.Etag, "etag", "", "only if the topic has this `etag`")
			fs.BoolVar(&req.DryRun, "dry-run", false, "say what would change, and change nothing")
		},
		run: func(c *call) error {
			req.Topic = c.args[0]
			if n := req.GetConfig().GetPartitions(); fs.Changed("partitions") && (n < 1 || n > 256) {
				return cmdline.Usagef("topics create: --partitions must be 1 to 256, not %d", n)
			}
			if err := setSchema(); err != nil {
				return err
			}
			if fs.Changed("block-writes") {
				req.Config.BlockWritesOnZeroSubscriptions = &block
			}
			if fs.Changed("pause-holds") {
				req.Config.PausePins = &pins
			}
			before, _ := c.topics().GetTopic(c.ctx, &topicv1.GetTopicRequest{Topic: c.args[0]}) // there may be none
			res, err := c.topics().ConfigureTopic(c.ctx, req)
			if err != nil || c.printJSON(res) {
				return err
			}
			if req.GetDryRun() {
				return c.printChange(res, before.GetTopic(), "nothing was changed: it was a dry run")
			}
			if res.GetCreated() {
				return c.printTopic(res.GetTopic())
			}
			return c.printChange(res, before.GetTopic(), "the topic existed; its settings were changed")
		},
	})
}

// printChange prints what a topic became or would become, what that means, and an end that
// says which.
func (c *call) printChange(res *topicv1.ConfigureTopicResponse, before *topicv1.Topic, end string) error {
	if err := c.printTopic(res.GetTopic()); err != nil {
		return err
	}
	if before != nil && proto.Equal(before.GetConfig(), res.GetTopic().GetConfig()) {
		return c.say("the topic existed, with these settings: nothing was changed")
	}
	for _, effect := range res.GetEffects() {
		if err := c.say("- %s", safe(effect)); err != nil {
			return err
		}
	}
	return c.say("%s", end)
}

func (p topics) list() *cobra.Command {
	req := &topicv1.ListTopicsRequest{}
	return p.command(spec{
		use: "list", short: "list topics",
		flags: func(fs *pflag.FlagSet) { pagingFlags(fs, &req.PageSize, &req.PageToken, "topics") },
		run: func(c *call) error {
			res, err := c.topics().ListTopics(c.ctx, req)
			if err != nil || c.printJSON(res) {
				return err
			}
			return c.page("TOPIC\tSEMANTICS\tMODE\tPARTITIONS\tACTIVE GROUPS\tMADE", func(w io.Writer) {
				for _, t := range res.GetTopics() {
					cfg := t.GetConfig()
					fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%s\n", safe(t.GetName()), flagWord(cfg.GetSemantics(), "SEMANTICS_"),
						flagWord(cfg.GetCompletionMode(), "COMPLETION_MODE_"), cfg.GetPartitions(), t.GetActiveSubscriptions(),
						formatTime(t.GetCreatedAt()))
				}
			}, res.GetNextPageToken())
		},
	})
}

func (p topics) describe() *cobra.Command {
	return p.command(spec{
		use: "describe TOPIC", short: "show a topic: settings and partitions", args: 1,
		run: func(c *call) error {
			res, err := c.topics().GetTopic(c.ctx, &topicv1.GetTopicRequest{Topic: c.args[0]})
			if err != nil || c.printJSON(res) {
				return err
			}
			return c.printTopic(res.GetTopic())
		},
	})
}

func (p topics) remove() *cobra.Command {
	var execute bool
	return p.command(spec{
		use: "delete TOPIC", short: "remove a topic with its messages and subscriptions", args: 1,
		flags: func(fs *pflag.FlagSet) { executeFlag(fs, &execute) },
		run: func(c *call) error {
			name := c.args[0]
			if !execute {
				res, err := c.topics().GetTopic(c.ctx, &topicv1.GetTopicRequest{Topic: name})
				if err != nil || c.printJSON(res) {
					return err
				}
				if err := c.printTopic(res.GetTopic()); err != nil {
					return err
				}
				return c.say(dryRun)
			}
			res, err := c.topics().DeleteTopic(c.ctx, &topicv1.DeleteTopicRequest{Topic: name})
			if err != nil || c.printJSON(res) {
				return err
			}
			return c.say("%s is deleted", safe(name))
		},
	})
}

func (p topics) status() *cobra.Command {
	return p.command(spec{
		use: "status TOPIC ID", short: "show who has acknowledged a message", args: 2,
		run: func(c *call) error {
			res, err := c.topics().GetMessageStatus(c.ctx,
				&topicv1.GetMessageStatusRequest{Topic: c.args[0], MessageId: c.args[1]})
			if err != nil || c.printJSON(res) {
				return err
			}
			return c.table(func(w io.Writer) {
				fmt.Fprintf(w, "status\t%s\n", flagWord(res.GetStatus(), "MESSAGE_STATUS_"))
				fmt.Fprintf(w, "for\t%s\n", names(res.GetRequired()))
				fmt.Fprintf(w, "acknowledged by\t%s\n", names(res.GetAcknowledged()))
			})
		},
	})
}

func names(list []string) string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = safe(s)
	}
	if len(out) == 0 {
		return "-"
	}
	return strings.Join(out, ", ")
}
