package topic

import (
	"context"
	"strings"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/topic/internal/serving"
	"github.com/parley-chat/parley/server/topic/internal/storage"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// reading returns a topic whose messages the caller may read, in use. The caller releases it. A subscriber
// that is bound to groups may: a group of its own receives all messages.
func (s *Service) reading(ctx context.Context, c Caller, topic string) (*serving.OpenTopic, error) {
	t, err := s.find(c, topic, subscriber)
	if err != nil {
		return nil, err
	}
	return s.engine.Topics.Open(ctx, t)
}

// Message returns a message.
func (s *Service) Message(ctx context.Context, c Caller, topic, id string) (*topicv1.StoredMessage, error) {
	l, err := s.reading(ctx, c, topic)
	if err != nil {
		return nil, err
	}
	defer l.Release()
	return s.engine.Message(ctx, l, id)
}

// Browse returns a page of a topic's messages. The messages stay available to all groups.
func (s *Service) Browse(
	ctx context.Context, c Caller, r *topicv1.BrowseMessagesRequest,
) (*topicv1.BrowseMessagesResponse, error) {
	l, err := s.reading(ctx, c, r.GetTopic())
	if err != nil {
		return nil, err
	}
	defer l.Release()
	return s.engine.Browse(ctx, l, r)
}

// Purge removes messages that groups have not acknowledged.
func (s *Service) Purge(
	ctx context.Context, c Caller, r *topicv1.PurgeMessagesRequest,
) (*topicv1.PurgeMessagesResponse, error) {
	t, err := s.find(c, r.GetTopic(), admin)
	if err != nil {
		return nil, err
	}
	if err := refusePurge(t); err != nil {
		return nil, err
	}
	l, err := s.engine.Topics.Open(ctx, t)
	if err != nil {
		return nil, err
	}
	defer l.Release()
	if r.GetDryRun() {
		before, err := s.engine.PurgePositions(ctx, l, r.GetPartitions(), r.GetBefore())
		if err != nil {
			return nil, err
		}
		return s.jobs.ForecastPurge(l, before), nil
	}
	var answer *topicv1.PurgeMessagesResponse
	err = s.auditedWith(ctx, c, "PurgeMessages", r, func() (result string, err error) {
		before, err := s.engine.PurgePositions(ctx, l, r.GetPartitions(), r.GetBefore())
		if err != nil {
			return "", err
		}
		answer, result, err = s.jobs.Purge(ctx, l, before)
		return result, err
	})
	if err != nil {
		return nil, err
	}
	s.cfg.Logger.Info("messages purged", "topic", t.Name, "groups", answer.GetGroupCount(), "by", c.Principal)
	return answer, nil
}

// refusePurge refuses topics whose messages others remove.
func refusePurge(t *storage.Topic) error {
	if storage.OfChats(t.View().Config) {
		return refusal.New(refusal.TopicReadOnly,
			"topic %q holds the events of chats: they are removed where they are kept, by their retention", t.Name)
	}
	if strings.HasSuffix(t.Name, storage.DeadLetterSuffix) {
		return refusal.New(refusal.InvalidArgument,
			"topic %q holds dead letters, which are not purged: discard them with \"deadletters discard\"", t.Name)
	}
	return nil
}
