package opsctl

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/client/topic"
	"github.com/parley-chat/parley/server/infra/cmdline"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// maxLine is the longest line that is published as a message.
const maxLine = 1 << 20

// publishFlags are what all messages of a command have.
type publishFlags struct {
	key, kind, correlation, id string
	headers                    map[string]string
	ttl, delay                 *durationpb.Duration
	at                         *timestamppb.Timestamp
}

func (p topics) publish() *cobra.Command {
	f := &publishFlags{headers: map[string]string{}}
	return p.command(spec{
		use: "publish TOPIC [TEXT…]", short: "publish messages: each text, or each line of standard input", args: 1,
		more: unbounded,
		long: `  It prints the id of each message once it is on stable storage.

  server topics publish orders 'one' 'two' --key order-1
  seq 1000 | server topics publish numbers
`,
		flags: func(fs *pflag.FlagSet) {
			fs.StringVar(&f.key, "key", "", "`key` of the messages: those of one key stay in order")
			fs.StringVar(&f.kind, "type", "", "`type` of the messages, for filters")
			fs.StringVar(&f.correlation, "correlation-id", "", "what they belong to")
			fs.StringVar(&f.id, "deduplication-id", "", "`id` of the one message: for 5 minutes it is not stored again")
			durationFlag(fs, &f.ttl, "ttl", "how long the messages may be delivered")
			durationFlag(fs, &f.delay, "delay", "how long the messages wait before they are delivered")
			fs.Func("deliver-at", "when the messages are delivered at the earliest, a `time` like 2030-01-02T15:04:05Z",
				func(s string) error {
					at, err := time.Parse(time.RFC3339, s)
					if err != nil {
						return errors.New("must be a time like 2030-01-02T15:04:05Z")
					}
					f.at = timestamppb.New(at)
					return nil
				})
			fs.Func("header", "a header, `NAME=VALUE`; may be repeated", func(s string) error {
				name, value, ok := strings.Cut(s, "=")
				if !ok || name == "" {
					return errors.New("must be NAME=VALUE")
				}
				f.headers[name] = value
				return nil
			})
		},
		run: func(c *call) error { return c.publishAll(f) },
	})
}

// publishAll sends texts as fast as they are stored, and prints where they stand in order.
func (c *call) publishAll(f *publishFlags) error {
	// A server that was never there is not waited for.
	if err := c.reach(); err != nil {
		return err
	}
	pub, err := c.topic.Publisher(c.args[0], topic.PublisherConfig{Log: c.notes()})
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var failed error
	send := func(text string) error {
		mu.Lock()
		err := failed
		mu.Unlock()
		if err != nil {
			return err
		}
		m := &topic.Message{Key: f.key, Type: f.kind, CorrelationId: f.correlation, Headers: f.headers, Payload: []byte(text),
			Ttl: f.ttl, Delay: f.delay, DeliverTime: f.at, DeduplicationId: f.id}
		return pub.Enqueue(c.ctx, m, func(r *topic.Result, err error) {
			mu.Lock()
			defer mu.Unlock()
			if err == nil && !c.printJSON(r) {
				err = c.say("%s", r.GetMessageId())
			}
			failed = cmp.Or(failed, err)
		})
	}
	err = texts(c.args[1:], send)
	closing := c.ctx
	if closing.Err() == nil {
		err = cmp.Or(err, pub.Close(closing))
	} else {
		_ = pub.Close(closing)
	}
	mu.Lock()
	defer mu.Unlock()
	return cmp.Or(failed, err)
}

// texts calls send for each argument, or each line of standard input.
func texts(args []string, send func(string) error) error {
	for _, text := range args {
		if err := send(text); err != nil {
			return err
		}
	}
	if len(args) > 0 {
		return nil
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, maxLine+1)
	for lines.Scan() {
		if err := send(lines.Text()); err != nil {
			return err
		}
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return cmdline.Usagef("a line is longer than a message may be: %d bytes", maxLine)
	}
	return lines.Err()
}

// reach reports whether a server answers. The topic need not be there, nor be the caller's.
func (c *call) reach() error {
	_, err := c.topics().GetTopic(c.ctx, &topicv1.GetTopicRequest{Topic: c.args[0]})
	if topic.Reason(err) == string(refusal.TopicNotFound) || topic.Reason(err) == string(refusal.TopicForbidden) {
		return nil
	}
	return err
}

// tailFlags say how to follow a topic.
type tailFlags struct {
	group, member string
	create        bool
	count         int
	config        topicv1.SubscriptionConfig
}

func (p topics) tail() *cobra.Command {
	f := &tailFlags{}
	return p.command(spec{
		use: "tail TOPIC", short: "follow a topic: print and acknowledge messages until Ctrl-C", args: 1,
		long: `  Without --group it makes a group of its own, which ends with it and takes nothing from others.
  With --group it is a member of that group, and what it prints is acknowledged for the group; with
  --group '$queue' it is a worker of a queue. At Ctrl-C it detaches, and the group continues without it.
  A group that is not subscribed is an error, unless --create subscribes it, for good.

  --json prints the message with its id, topic, partition, position and attempt.

  server topics tail orders --from earliest
  server topics tail jobs --group '$queue'
  server topics tail orders --group billing -n 10 --json
`,
		flags: func(fs *pflag.FlagSet) {
			fs.StringVar(&f.group, "group", "", "`group` to be a member of")
			fs.BoolVar(&f.create, "create", false, "subscribe the group if it is not; it stays when this command ends")
			fs.StringVar(&f.member, "member", "", "`name` in the group")
			fs.IntVarP(&f.count, "count", "n", 0, "end after so many `messages`; default: follow")
			positionFlag(fs, &f.config.Start, "from", "where a new group begins, latest by default")
			filterFlags(fs, &f.config.Filter)
		},
		run: func(c *call) error { return c.follow(f) },
	})
}

// follow prints messages until Ctrl-C, or as many as were asked for.
func (c *call) follow(f *tailFlags) error {
	if f.count < 0 {
		return cmdline.Usagef("topics tail: -n must not be negative")
	}
	ctx, stop := context.WithCancel(c.ctx)
	defer stop()
	group, own := f.group, f.group == ""
	if own {
		group = "tail-" + uuid.NewString()[:8]
	}
	var failed error
	cfg := topic.ConsumerConfig{Member: f.member, CancelOnStop: own, Subscribe: &f.config, Limit: f.count, Log: c.notes()}
	if own {
		if err := c.reach(); err != nil {
			return err
		}
	} else {
		there, err := c.isSubscribed(f)
		if err != nil {
			return err
		}
		cfg.Filter = f.config.Filter // the group's filter is the group's
		cfg.Subscribe = nil
		if !there {
			cfg.Subscribe = &topicv1.SubscriptionConfig{Start: f.config.GetStart()}
		}
	}
	if f.count == 0 {
		cfg.MaxMessages = 100
	}
	cfg.Handler = func(_ context.Context, m *topic.Received) error {
		if failed = c.printMessage(m); failed != nil {
			stop() // no other is handled
		}
		return failed
	}
	consumer, err := c.topic.Consumer(c.args[0], group, cfg)
	if err != nil {
		return err
	}
	if err := consumer.Run(ctx); err != nil {
		return err
	}
	return failed
}

// isSubscribed reports whether the group is subscribed. One that is not is an error, unless
// it is to be created.
func (c *call) isSubscribed(f *tailFlags) (bool, error) {
	res, err := c.subscription(f.group)
	missing := topic.Reason(err) == string(refusal.SubscriptionNotFound)
	if err != nil && !missing {
		return false, err
	}
	there := !missing && res.GetSubscription().GetState() != topicv1.SubscriptionState_SUBSCRIPTION_STATE_CANCELLED
	switch {
	case !there && !f.create:
		return false, fmt.Errorf("group %s is not subscribed to %s; \"topics subscribe\" subscribes it, and so does --create",
			safe(f.group), safe(c.args[0]))
	case there && f.config.GetStart() != nil:
		return false, fmt.Errorf("group %s is subscribed already: --from is for a new one; see \"topics seek\"",
			safe(f.group))
	}
	return there, nil
}

// printMessage prints a message on a line: when, where, key, type, headers, content.
func (c *call) printMessage(m *topic.Received) error {
	if c.json {
		return c.printMessageJSON(m)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %s", m.GetPublishTime().AsTime().UTC().Format(time.RFC3339), m.ID)
	for _, field := range []struct{ name, value string }{
		{"key", m.GetKey()}, {"type", m.GetType()}, {"correlation-id", m.GetCorrelationId()},
	} {
		if field.value != "" {
			fmt.Fprintf(&b, "  %s=%s", field.name, safe(field.value))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.GetHeaders())) {
		fmt.Fprintf(&b, "  %s=%s", safe(name), safe(m.GetHeaders()[name]))
	}
	if m.Attempt > 1 {
		fmt.Fprintf(&b, "  attempt=%d", m.Attempt)
	}
	if p := m.GetPayload(); utf8.Valid(p) {
		fmt.Fprintf(&b, "  %s", safe(string(p)))
	} else {
		fmt.Fprintf(&b, "  0x%x", p)
	}
	_, err := io.WriteString(c.stdout, b.String()+"\n")
	return err
}

// printMessageJSON prints a message as JSON, with where it stands.
func (c *call) printMessageJSON(m *topic.Received) error {
	b, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(m.Message)
	if err != nil {
		return err
	}
	fields := map[string]any{}
	if err := json.Unmarshal(b, &fields); err != nil {
		return err
	}
	fields["id"], fields["topic"] = m.ID, c.args[0]
	if m.Attempt > 0 {
		fields["attempt"] = m.Attempt
	}
	fields["partition"], fields["position"] = m.Partition, strconv.FormatInt(m.Position, 10) // as in all JSON of the API
	if b, err = json.Marshal(fields); err != nil {
		return err
	}
	_, err = fmt.Fprintln(c.stdout, string(b))
	return err
}
