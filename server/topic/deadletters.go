package topic

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/topic/internal/operations"
	"github.com/parley-chat/parley/server/topic/internal/serving"
	"github.com/parley-chat/parley/server/topic/internal/storage"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// letterKeep is how long dead letters are kept.
const letterKeep = 30 * 24 * time.Hour

// graveyard returns the topic of a topic's dead letters, and makes it when it is needed
// first: not for a topic that is being deleted. Release follows.
func (s *Service) graveyard(ctx context.Context, l *serving.OpenTopic) (*serving.OpenTopic, error) {
	l.Lock.RLock()
	defer l.Lock.RUnlock()
	if l.View().Deleting {
		return nil, refusal.Forbidden(l.Name)
	}
	name := l.Name + storage.DeadLetterSuffix
	t := s.catalog.Topic(name)
	if t == nil {
		config, _, err := storage.TopicConfig(nil, &topicv1.TopicConfig{
			Semantics: storage.PubSub, Partitions: int32(len(l.Parts)), MessageRetention: durationpb.New(letterKeep),
			MaxRetention: durationpb.New(letterKeep), ZeroSubscriptionRetention: durationpb.New(letterKeep),
		}, 0)
		if err != nil {
			return nil, err
		}
		if t, _, err = s.create(ctx, Caller{Operator: true, Principal: "server"}, name, config, 0); err != nil {
			return nil, err
		}
	}
	return s.topics.Open(ctx, t)
}

// appendLetters stores batches in a topic of dead letters.
func (s *Service) appendLetters(ctx context.Context, to *serving.OpenTopic, appends []commitlog.Append) error {
	_, err := s.publisher.Append(ctx, to, appends, false)
	return err
}

// Letters finds the dead letters of all topics.
func (s *Service) Letters() *operations.DeadLetterStore {
	return operations.NewDeadLetterStore(operations.DeadLettersConfig{
		Catalog: s.catalog, Reader: s.sources.Reader, Logger: s.cfg.Logger, Open: s.topics.Open, Append: s.appendLetters,
		Stored: func(ctx context.Context, l *serving.OpenTopic, group string) error {
			return s.flusher.Wait(ctx, group, l.Parts...)
		},
	})
}
