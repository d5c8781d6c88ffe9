package topic

import (
	"context"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/topic/internal/machine"
	"github.com/parley-chat/parley/server/topic/internal/serving"
	"github.com/parley-chat/parley/server/topic/internal/storage"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// reconfigure changes a topic, or says what that would mean. When it has become one whose
// acknowledgements are answered when they are durable, those of before are, too.
func (s *Service) reconfigure(
	ctx context.Context, t *storage.Topic, r *topicv1.ConfigureTopicRequest, schema *schemaChange,
) (*topicv1.ConfigureTopicResponse, error) {
	l, err := s.engine.Topics.Open(ctx, t)
	if err != nil {
		return nil, err
	}
	defer l.Release()
	answer, err := s.change(ctx, l, r, schema)
	if err != nil || r.GetDryRun() || answer.GetTopic().GetConfig().GetCompletionMode() != storage.ReferenceCounting {
		return answer, err
	}
	for _, g := range l.Groups() {
		if err := s.engine.Flusher.Wait(ctx, g.Name(), l.Parts...); err != nil {
			return nil, err
		}
	}
	return answer, nil
}

func (s *Service) change(
	ctx context.Context, l *serving.OpenTopic, r *topicv1.ConfigureTopicRequest, schema *schemaChange,
) (*topicv1.ConfigureTopicResponse, error) {
	t := l.Topic
	defer t.Changing().End()
	v := t.View()
	if r.GetEtag() != "" && r.GetEtag() != storage.Etag(v.Version) {
		return nil, refusal.New(refusal.TopicExists, "topic %q was changed: its etag is not %.64q", t.Name, r.GetEtag())
	}
	if schema.stale(v.Config.GetSchema()) {
		return nil, serving.ErrSchemaChanged
	}
	config, warnings, err := storage.TopicConfig(v.Config, r.GetConfig(), r.GetPreset())
	if err != nil {
		return nil, err
	}
	queue := t.Subscription(storage.QueueGroup)
	begun := queue != nil && queue.State != storage.Cancelled
	answer := &topicv1.ConfigureTopicResponse{Effects: storage.Effects(v.Config, config, begun)}
	becomes := v.Config.GetSemantics() != config.GetSemantics() && config.GetSemantics() == storage.Queue
	if becomes {
		if err := ended(t); err != nil {
			return nil, err
		}
	}
	if r.GetDryRun() {
		answer.Topic = s.describe(t, warnings)
		answer.Topic.Config = config
		return answer, nil
	}
	if becomes && !begun {
		if err := s.engine.Subscriptions.BeginQueue(ctx, l); err != nil {
			return nil, err
		}
	}
	p := v.Preset
	if r.GetPreset() != 0 {
		p = r.GetPreset()
	}
	set := storage.Settings{Config: config, Preset: p, With: schema.with()}
	if err := s.engine.Catalog.Configure(ctx, t, set); err != nil {
		return nil, err
	}
	if err := s.engine.Sources.Prepare(ctx, t); err != nil {
		return nil, err
	}
	if v.Config.GetPausePins() != config.GetPausePins() {
		for _, g := range l.Groups() {
			_ = g.Do(func(_ int, h *machine.GroupState) error {
				c := *h.Config()
				c.HoldsPaused = config.GetPausePins()
				h.Configure(c)
				return nil
			})
		}
	}
	answer.Topic = s.describe(t, warnings)
	return answer, nil
}

// ended returns a refusal that names the group that keeps a topic of groups from becoming a
// queue. No group prevents the other direction: the group $queue stays, like one that is
// subscribed, until it is cancelled, so that no message in it is lost.
func ended(t *storage.Topic) error {
	for _, sub := range t.Subscriptions() {
		if sub.Group != storage.QueueGroup && sub.State != storage.Cancelled {
			return refusal.New(refusal.InvalidTransition,
				"group %q is subscribed: a topic becomes a queue when all groups are cancelled", sub.Group)
		}
	}
	return nil
}
