package operations

import (
	"context"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/topic/internal/serving"
	"github.com/parley-chat/parley/server/topic/internal/storage"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// AdminConfig is what an Admin stands on.
type AdminConfig struct {
	Catalog *storage.Catalog
	// Reader is what a topic's messages are read from.
	Reader func(*storage.Topic) commitlog.Reader
	Clock  func() time.Time
	Audit  func(ctx context.Context, actor, call, request string) (func(code, result string), error)
	Jobs   *Jobs

	// Open returns a topic in use, Hold one that is already, nil for others. Both are released.
	Open func(context.Context, *storage.Topic) (*serving.OpenTopic, error)
	Hold func(number uint64) *serving.OpenTopic
	// Move changes a group's state, and returns once that is durable.
	Move func(ctx context.Context, l *serving.OpenTopic, group string, tr storage.Transition, by string) error
	// Stored returns once what a group has changed is stored.
	Stored func(ctx context.Context, l *serving.OpenTopic, group string) error
}

// Admin answers operators.
type Admin struct{ cfg AdminConfig }

// NewAdmin makes an Admin.
func NewAdmin(c AdminConfig) *Admin { return &Admin{c} }

// find returns a topic that is not being removed.
func (a *Admin) find(name string) (*storage.Topic, error) {
	if t := a.cfg.Catalog.Topic(name); t != nil && !t.View().Deleting {
		return t, nil
	}
	return nil, refusal.New(refusal.TopicNotFound, "there is no topic %.255q", name)
}

// open returns a topic in use. The caller releases it.
func (a *Admin) open(ctx context.Context, name string) (*serving.OpenTopic, error) {
	t, err := a.find(name)
	if err != nil {
		return nil, err
	}
	return a.cfg.Open(ctx, t)
}

// subscribed returns a group's subscription now.
func subscribed(l *serving.OpenTopic, group string) (*storage.Subscription, error) {
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
