package operations

import (
	"context"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/parley-chat/parley/server/topic/internal/serving"
	"github.com/parley-chat/parley/server/topic/internal/storage"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// Admin answers operators.
type Admin struct {
	engine *serving.Engine
	jobs   *Jobs
}

// NewAdmin makes an Admin over what the jobs run on.
func NewAdmin(j *Jobs) *Admin { return &Admin{j.engine, j} }

// find returns a topic that is not being removed.
func (a *Admin) find(name string) (*storage.Topic, error) {
	if t := a.engine.Catalog.Topic(name); t != nil && !t.View().Deleting {
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
	return a.engine.Topics.Open(ctx, t)
}

// subscribed returns a group's subscription now.
func subscribed(l *serving.OpenTopic, group string) (*storage.Subscription, error) {
	defer l.Reading().End()
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
	end, err := a.jobs.cfg.Audit(ctx, by, call, string(text))
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
