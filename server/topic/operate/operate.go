// Package operate is what operators of topics do: see how groups are and what is wrong,
// remove groups, resurrect them, complete what waits for nobody, and run jobs.
//
// It owns what is looked for and the order of the steps. What a transition is for messages
// it asks package topic for, when jobs run package jobs. Its callers have checked that an
// operator calls; refusals are those of package refusal.
//
// Concurrency: an Admin may be used by many goroutines. Locks are those of package topic.
package operate

import (
	"context"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/topic/catalog"
	"github.com/parley-chat/parley/server/topic/jobs"
	"github.com/parley-chat/parley/server/topic/lifecycle"
	"github.com/parley-chat/parley/server/topic/live"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// Config is what an Admin stands on.
type Config struct {
	Catalog *catalog.Catalog
	// Reader is what a topic's messages are read from.
	Reader func(*catalog.Topic) commitlog.Reader
	Clock  func() time.Time
	Audit  func(ctx context.Context, actor, call, request string) (func(code, result string), error)
	Jobs   *jobs.Jobs

	// Open returns a topic in use, Hold one that is already, nil for others. Both are released.
	Open func(context.Context, *catalog.Topic) (*live.Topic, error)
	Hold func(number uint64) *live.Topic
	// Move changes a group's state, and returns once that is durable.
	Move func(ctx context.Context, l *live.Topic, group string, tr lifecycle.Transition, by string) error
	// Stored returns once what a group has changed is stored.
	Stored func(ctx context.Context, l *live.Topic, group string) error
}

// Admin answers operators.
type Admin struct{ cfg Config }

// New makes an Admin.
func New(c Config) *Admin { return &Admin{c} }

// find returns a topic that is not being removed.
func (a *Admin) find(name string) (*catalog.Topic, error) {
	if t := a.cfg.Catalog.Topic(name); t != nil && !t.View().Deleting {
		return t, nil
	}
	return nil, refusal.New(refusal.TopicNotFound, "there is no topic %.255q", name)
}

// open returns a topic in use. The caller releases it.
func (a *Admin) open(ctx context.Context, name string) (*live.Topic, error) {
	t, err := a.find(name)
	if err != nil {
		return nil, err
	}
	return a.cfg.Open(ctx, t)
}

// subscribed returns a group's subscription now.
func subscribed(l *live.Topic, group string) (*catalog.Subscription, error) {
	l.Lock.RLock()
	defer l.Lock.RUnlock()
	if sub := l.Subscription(group); sub != nil {
		return sub, nil
	}
	return nil, refusal.NoSubscription(l.Name, group)
}

// audited runs a call that changes something between its two rows. do returns what the
// second one says.
func (a *Admin) audited(
	ctx context.Context, by, call string, request proto.Message, do func() (result string, err error),
) error {
	text, err := protojson.Marshal(request)
	if err != nil {
		return err
	}
	end, err := a.cfg.Audit(ctx, by, call, string(text))
	if err != nil {
		return err
	}
	result, err := do()
	if r, refused := refusal.Of(err); refused {
		end("failed", string(r.Reason))
	} else if err != nil {
		end("failed", "INTERNAL")
	} else {
		end("ok", result)
	}
	return err
}
