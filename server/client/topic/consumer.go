package topic

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
)

// Errors that end a consumer.
var (
	// ErrSubscriptionGone says that the subscription was cancelled, or is not there.
	ErrSubscriptionGone = errors.New("topic: the subscription is gone")
	// ErrHeartbeat says that the server was not heard from for 10 heartbeats. Others may have
	// the messages by now.
	ErrHeartbeat = errors.New("topic: 10 heartbeats in a row failed")
	// ErrNoHandler says that a consumer has nothing to handle messages with.
	ErrNoHandler = errors.New("topic: zero members: a consumer needs a handler or a batch handler, and not both")
)

// ErrLeaseLost is why a handler's context ends before the consumer does.
var ErrLeaseLost = errors.New("topic: the message is not this consumer's any more")

var errEnded = errors.New("topic: the stream ended")

// errUsed ends a session that got all it had asked for, when that was not enough.
var errUsed = errors.New("topic: the credits of the session are used up")

// GoneError is the reason that the server gave when it ended a consumer's stream for good.
type GoneError struct {
	// Reason is TOPIC_FORBIDDEN, REPLACED, SUBSCRIPTION_GONE, SUBSCRIPTION_NOT_FOUND or
	// TOPIC_DELETED.
	Reason string
}

// Error names the reason.
func (e *GoneError) Error() string { return "topic: the server ended the stream: " + e.Reason }

// Is has those that say that there is no subscription match ErrSubscriptionGone.
func (e *GoneError) Is(target error) bool {
	switch e.Reason {
	case reasonGone, reasonMissing, reasonDeleted:
		return target == ErrSubscriptionGone
	}
	return false
}

// ConsumerConfig says how messages are handled. One of the handlers is required.
type ConsumerConfig struct {
	Handler Handler
	// BatchHandler takes up to BatchSize messages at once, those that are there; 100 by
	// default.
	BatchHandler BatchHandler
	BatchSize    int
	// Concurrency is how many handlers run at once; 1 by default. Messages of one key are
	// handled one after the other in any case.
	Concurrency int

	// Subscribe registers the group before anything is received, unless it is registered. A
	// group that is registered keeps its settings: Log has a warning for each that differs, and
	// [Client.Subscriptions] changes them with UpdateSubscription. A queue needs no subscription.
	Subscribe *topicv1.SubscriptionConfig
	Member    string          // name in the group, its own; the server makes one by default
	Filter    *topicv1.Filter // messages that this consumer takes; all by default
	// Messages and bytes that the server sends before some are acknowledged; by default ten
	// messages for each that handlers take at once, or Limit, and 8 MiB.
	MaxMessages, MaxBytes int
	// Limit ends Run after so many messages, those that failed included; 0: no limit. The
	// server is asked for these and no more, so that others get what follows.
	Limit int

	// DrainTimeout is how long handlers have to finish once Run is to end; 30 s by default.
	// Then their contexts end.
	DrainTimeout time.Duration
	// CancelOnStop ends the subscription at the end of Run if this was its last member.
	CancelOnStop bool

	// OnRestore, if given, is called when the server was put back to an earlier copy of its data: handled messages may
	// be gone, and the group is at its position of that copy. No handler runs meanwhile, and none gets a message of the
	// other history before it has returned nil; after an error it is called again. It may move the group
	// ([Client.Subscriptions]) to have its messages handled once more.
	OnRestore func(ctx context.Context) error

	Log *slog.Logger // of what goes wrong and is tried again; none by default
}

// Consumer is a member of a group.
type Consumer struct {
	client       *Client
	topic, group string
	cfg          ConsumerConfig
	runs         atomic.Bool
}

// Consumer makes a member of a group of a topic; group Queue for a queue. It does nothing
// until Run.
func (c *Client) Consumer(topic, group string, cfg ConsumerConfig) (*Consumer, error) {
	if topic == "" || group == "" {
		return nil, errors.New("topic: a consumer needs a topic and a group")
	}
	if (cfg.Handler == nil) == (cfg.BatchHandler == nil) {
		return nil, ErrNoHandler
	}
	if cfg.BatchSize < 0 || cfg.Concurrency < 0 || cfg.MaxMessages < 0 || cfg.MaxBytes < 0 || cfg.Limit < 0 ||
		cfg.DrainTimeout < 0 {
		return nil, errors.New("topic: the numbers of a consumer must not be negative")
	}
	if cfg.Handler != nil {
		cfg.BatchSize = 1
	}
	cfg.BatchSize = cmp.Or(cfg.BatchSize, 100)
	cfg.Concurrency = cmp.Or(cfg.Concurrency, 1)
	cfg.MaxMessages = min(cmp.Or(cfg.MaxMessages, cfg.Limit, 10*cfg.BatchSize*cfg.Concurrency), 65536)
	cfg.MaxBytes = min(cmp.Or(cfg.MaxBytes, 8<<20), 64<<20)
	cfg.DrainTimeout = cmp.Or(cfg.DrainTimeout, 30*time.Second)
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	cfg.Log = cfg.Log.With("topic", topic, "group", group)
	return &Consumer{client: c, topic: topic, group: group, cfg: cfg}, nil
}

// Run handles messages until ctx ends, over as many connections as it takes. Then it takes
// no more, lets handlers finish, acknowledges what they have done, and returns nil; so it
// does after Limit messages. It ends
// by itself with ErrSubscriptionGone or another GoneError, with ErrHeartbeat, or with an
// error of the server that a repetition would get again. It may be called again, but not
// while it runs.
func (c *Consumer) Run(ctx context.Context) error {
	if !c.runs.CompareAndSwap(false, true) {
		return errors.New("topic: the consumer runs already")
	}
	defer c.runs.Store(false)
	return newRun(c).do(ctx)
}

// attach is what a member says of itself.
func (c *Consumer) attach() *topicv1.Attach {
	return &topicv1.Attach{
		Topic: c.topic, Group: c.group, Member: c.cfg.Member, Filter: c.cfg.Filter, RenewCredits: true,
		Credits: &topicv1.Credits{Messages: int64(c.cfg.MaxMessages), Bytes: int64(c.cfg.MaxBytes)},
	}
}

// register makes the subscription.
func (c *Consumer) register(ctx context.Context) error {
	if c.cfg.Subscribe == nil || c.group == Queue {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	res, err := c.client.subscriptions.CreateSubscription(ctx,
		&topicv1.CreateSubscriptionRequest{Topic: c.topic, Group: c.group, Config: c.cfg.Subscribe})
	for _, w := range res.GetWarnings() {
		c.cfg.Log.Warn("topic: the subscription", "warning", w)
	}
	for _, d := range res.GetDifferences() {
		c.cfg.Log.Warn("topic: the subscription was there with another setting, which it keeps: UpdateSubscription changes it",
			"setting", d.GetName(), "is", d.GetIs(), "asked", d.GetAsked())
	}
	return err
}

// heartbeat says that the group is alive, and reports whether it is gone.
func (c *Consumer) heartbeat(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, heartbeatTimeout)
	defer cancel()
	res, err := c.client.subscriptions.Heartbeat(ctx, &topicv1.HeartbeatRequest{Topic: c.topic, Group: c.group})
	if err != nil {
		return explain(err)
	}
	if res.GetState() == topicv1.SubscriptionState_SUBSCRIPTION_STATE_CANCELLED {
		return &GoneError{reasonGone}
	}
	return nil
}

// detach ends a session, so that unhandled messages go to others at once.
func (c *Consumer) detach(ctx context.Context, session string) error {
	ctx, cancel := context.WithTimeout(ctx, heartbeatTimeout)
	defer cancel()
	_, err := c.client.consumers.Detach(ctx, &topicv1.DetachRequest{Session: session, Cancel: c.cfg.CancelOnStop})
	if err != nil && c.cfg.CancelOnStop {
		return fmt.Errorf("topic: the subscription may not be cancelled: %w", err)
	}
	return nil
}

// Reasons of the server.
const (
	reasonGone      = "SUBSCRIPTION_GONE"
	reasonMissing   = "SUBSCRIPTION_NOT_FOUND"
	reasonDeleted   = "TOPIC_DELETED"
	reasonReplaced  = "REPLACED"
	reasonExpired   = "TOKEN_EXPIRED"
	reasonDraining  = "DRAINING"
	reasonSlow      = "SLOW"
	reasonExists    = "MEMBER_EXISTS"
	reasonNoSession = "SESSION_GONE"
)

// explain makes a GoneError of an error that says the same.
func explain(err error) error {
	switch r := Reason(err); r {
	case reasonGone, reasonMissing, reasonDeleted, reasonReplaced:
		return fmt.Errorf("%w: %w", &GoneError{r}, err)
	}
	return err
}
