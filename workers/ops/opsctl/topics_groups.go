package opsctl

import (
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/cmdline"
)

func (p topics) groups() *cobra.Command {
	req := &topicv1.ListSubscriptionsRequest{}
	return p.command(spec{
		use: "groups TOPIC [GROUP]", short: "list a topic's groups and how far they are, or show one", args: 1, more: 1,
		flags: func(fs *pflag.FlagSet) { pagingFlags(fs, &req.PageSize, &req.PageToken, "groups") },
		run: func(c *call) error {
			if len(c.args) == 2 {
				res, err := c.subscription(c.args[1])
				if err != nil || c.printJSON(res) {
					return err
				}
				return c.printGroup(res.GetSubscription())
			}
			req.Topic = c.args[0]
			res, err := c.subscriptions().ListSubscriptions(c.ctx, req)
			if err != nil || c.printJSON(res) {
				return err
			}
			// A list has no places.
			list := res.GetSubscriptions()
			for i, s := range list {
				if one, err := c.subscription(s.GetGroup()); err == nil {
					list[i] = one.GetSubscription()
				}
			}
			return c.next(c.printGroups(list), res.GetNextPageToken())
		},
	})
}

func (c *call) subscription(group string) (*topicv1.GetSubscriptionResponse, error) {
	return c.subscriptions().GetSubscription(c.ctx, &topicv1.GetSubscriptionRequest{Topic: c.args[0], Group: group})
}

func (p topics) subscribe() *cobra.Command {
	cfg := &topicv1.SubscriptionConfig{}
	var secret string
	return p.command(spec{
		use: "subscribe TOPIC GROUP", short: "register a group, which receives from then on", args: 2,
		long: `  server topics subscribe orders billing
  server topics subscribe orders audit --from earliest --backfill
  server topics subscribe orders ledger --ordering key --where region=eu,uk
  server topics subscribe orders shop --push-url https://hooks.example.com/orders
`,
		flags: func(fs *pflag.FlagSet) {
			subscriptionFlags(fs, cfg)
			secretFlag(fs, &secret)
		},
		run: func(c *call) error {
			res, err := c.subscriptions().CreateSubscription(c.ctx,
				&topicv1.CreateSubscriptionRequest{Topic: c.args[0], Group: c.args[1], Config: cfg, PushSecret: secret})
			if err != nil || c.printJSON(res) {
				return err
			}
			res.Subscription.Partitions = nil // it has just begun, or "groups" shows them
			if err := c.printGroup(res.GetSubscription()); err != nil {
				return err
			}
			if err := c.saySecret(res.GetPushSecret()); err != nil {
				return err
			}
			if err := c.warn(res.GetWarnings()); err != nil || res.GetCreated() {
				return err
			}
			if err := c.sayDifferences(res.GetDifferences()); err != nil {
				return err
			}
			return c.say("the group was subscribed already, as above")
		},
	})
}

// sayDifferences says which settings are not as the command line asks for.
func (c *call) sayDifferences(list []*topicv1.SettingDifference) error {
	for _, d := range list {
		if err := c.say("warning: %s is %s, not %s", safe(d.GetName()), safe(d.GetIs()), safe(d.GetAsked())); err != nil {
			return err
		}
	}
	return nil
}

func (p topics) updateSubscription() *cobra.Command {
	req := &topicv1.UpdateSubscriptionRequest{Config: &topicv1.SubscriptionConfig{}}
	var noFilter, noPush bool
	var fs *pflag.FlagSet
	return p.command(spec{
		use: "update-subscription TOPIC GROUP", short: "change settings of a group's subscription", args: 2,
		long: `  Settings that no flag names stay as they are. The members attach again and get the new settings. What they
  are working on is delivered again, which counts no attempt; what is acknowledged stays so. A change of
  --max-in-flight alone takes nothing from members. The group of a queue is $queue.

  server topics update-subscription orders billing --lease 60s --max-attempts 10
  server topics update-subscription jobs '$queue' --lease 10m
  server topics update-subscription orders ledger --no-filter
  server topics update-subscription orders billing --max-in-flight 100
  server topics update-subscription orders billing --push-url https://hooks.example.com/orders
  server topics update-subscription orders billing --push-secret-file new-secret.txt
`,
		flags: func(f *pflag.FlagSet) {
			fs = f
			changeableFlags(fs, req.GetConfig())
			secretFlag(fs, &req.PushSecret)
			fs.BoolVar(&noFilter, "no-filter", false, "all messages are for the group")
			fs.BoolVar(&noPush, "no-push", false, "the group has no webhook any more: members attach to it")
			fs.StringVar(&req.Etag, "etag", "", "only if the subscription has this `etag`")
		},
		run: func(c *call) error {
			if noFilter && req.GetConfig().GetFilter() != nil {
				return cmdline.Usagef("topics update-subscription takes --no-filter, or --types and --where")
			}
			if noPush && (req.GetConfig().GetPush() != nil || req.GetPushSecret() != "") {
				return cmdline.Usagef("topics update-subscription takes --no-push, or --push-url and --push-secret-file")
			}
			req.Topic, req.Group, req.UpdateMask = c.args[0], c.args[1], &fieldmaskpb.FieldMask{}
			fs.Visit(func(f *pflag.Flag) {
				if path, ok := settingOfFlag[f.Name]; ok && !slices.Contains(req.GetUpdateMask().GetPaths(), path) {
					req.UpdateMask.Paths = append(req.UpdateMask.Paths, path)
				}
			})
			if len(req.GetUpdateMask().GetPaths()) == 0 {
				return cmdline.Usagef("topics update-subscription takes a flag for each setting that changes, such as --lease 60s")
			}
			res, err := c.subscriptions().UpdateSubscription(c.ctx, req)
			if err != nil || c.printJSON(res) {
				return err
			}
			res.Subscription.Partitions = nil // "groups" shows them
			if err := c.printGroup(res.GetSubscription()); err != nil {
				return err
			}
			if err := c.saySecret(res.GetPushSecret()); err != nil {
				return err
			}
			return c.warn(res.GetWarnings())
		},
	})
}

// transition makes a command that changes the state of a subscription.
func (p topics) transition(
	name, short, long string, do func(*call) (subscribed, error),
) *cobra.Command {
	return p.command(spec{
		use: name + " TOPIC GROUP", short: short, long: long, args: 2,
		run: func(c *call) error {
			res, err := do(c)
			if err != nil || c.printJSON(res) {
				return err
			}
			return c.say("%s is %s", safe(c.args[1]), stateOf(res.GetSubscription()))
		},
	})
}

// subscribed is an answer with a subscription as it is now.
type subscribed interface {
	proto.Message
	GetSubscription() *topicv1.Subscription
}

func (p topics) pause() *cobra.Command {
	const short = "deliver nothing to a group until it is resumed"
	const long = `  The leases of what members are working on end at once, and no attempt is counted. Acknowledgements of
  these messages are refused as NOT_ACTIVE: after a resume they are delivered again, although they were handled.
  To avoid that, stop the members first.
`
	return p.transition("pause", short, long, func(c *call) (subscribed, error) {
		return c.subscriptions().PauseSubscription(c.ctx,
			&topicv1.PauseSubscriptionRequest{Topic: c.args[0], Group: c.args[1]})
	})
}

func (p topics) resume() *cobra.Command {
	return p.transition("resume", "continue where the pause began", "", func(c *call) (subscribed, error) {
		return c.subscriptions().ResumeSubscription(c.ctx,
			&topicv1.ResumeSubscriptionRequest{Topic: c.args[0], Group: c.args[1]})
	})
}

func (p topics) cancel() *cobra.Command {
	var execute bool
	return p.command(spec{
		use: "cancel TOPIC GROUP", short: "end a subscription for good: it holds nothing any more", args: 2,
		flags: func(fs *pflag.FlagSet) { executeFlag(fs, &execute) },
		run: func(c *call) error {
			if !execute {
				res, err := c.subscription(c.args[1])
				if err != nil || c.printJSON(res) {
					return err
				}
				if err := c.printGroups([]*topicv1.Subscription{res.GetSubscription()}); err != nil {
					return err
				}
				return c.say(dryRun)
			}
			res, err := c.subscriptions().CancelSubscription(c.ctx,
				&topicv1.CancelSubscriptionRequest{Topic: c.args[0], Group: c.args[1]})
			if err != nil || c.printJSON(res) {
				return err
			}
			return c.say("%s is %s", safe(c.args[1]), stateOf(res.GetSubscription()))
		},
	})
}

func (p topics) seek() *cobra.Command {
	var execute bool
	return p.command(spec{
		use: "seek TOPIC GROUP PLACE", short: "move a group to another place", args: 3,
		long: `  PLACE is ` + positionUsage + `.
  Going back, what was acknowledged is delivered again; going forward, what lies between is not delivered.

  server topics seek orders billing 2h
  server topics seek orders billing 0-1500 --execute
`,
		flags: func(fs *pflag.FlagSet) { executeFlag(fs, &execute) },
		run: func(c *call) error {
			to, err := parsePosition(c.args[2])
			if err != nil {
				return cmdline.Usage(err)
			}
			res, err := c.subscriptions().SeekSubscription(c.ctx,
				&topicv1.SeekSubscriptionRequest{Topic: c.args[0], Group: c.args[1], To: to, DryRun: !execute})
			if err != nil || c.printJSON(res) {
				return err
			}
			err = c.table(func(w io.Writer) {
				fmt.Fprintln(w, "PARTITION\tFROM\tTO\tREDELIVERED\tSKIPPED")
				for _, s := range res.GetSeeks() {
					gap := ""
					if s.GetGap() {
						gap = "\tno longer kept: from the oldest that is"
					}
					fmt.Fprintf(w, "%d\t%d\t%d\t%d\t%d%s\n", s.GetPartition(), s.GetFrom(), s.GetTo(), s.GetRedelivered(),
						s.GetSkipped(), gap)
				}
			})
			if err != nil || execute {
				return err
			}
			return c.say(dryRun)
		},
	})
}

func (p topics) unpark() *cobra.Command {
	return p.command(spec{
		use: "unpark TOPIC GROUP [KEY…]", short: "deliver messages again that wait with their keys; all without a key", args: 2,
		more: unbounded,
		run: func(c *call) error {
			res, err := c.subscriptions().UnparkKeys(c.ctx,
				&topicv1.UnparkKeysRequest{Topic: c.args[0], Group: c.args[1], Keys: c.args[2:]})
			if err != nil || c.printJSON(res) {
				return err
			}
			return c.say("%d messages unparked", res.GetMessages())
		},
	})
}
