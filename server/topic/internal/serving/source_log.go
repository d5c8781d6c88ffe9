package serving

import (
	"context"
	"fmt"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/topic/internal/storage"
)

// Prepare passes a topic and its settings to the log, if its messages are in the log.
func (s *Sources) Prepare(ctx context.Context, t *storage.Topic) error {
	c := t.View().Config
	if storage.OfChats(c) {
		return nil
	}
	err := s.Log.Create(ctx, commitlog.Topic{
		Number: t.Number, Name: t.Name, Partitions: c.GetPartitions(), Retention: c.GetMaxRetention().AsDuration(),
		Shared: storage.Shared(c), Bytes: t.MaxBytes(s.MaxBytes),
	})
	if err != nil {
		return fmt.Errorf("log of topic %s: %w", t.Name, err)
	}
	return nil
}

// FollowLog lets groups have what others than publishers of this process write to the log,
// until the context ends. It ends with commitlog.ErrFenced if another process has the log. hold
// returns a topic in use, which is released.
func (s *Sources) FollowLog(ctx context.Context, hold func(number uint64) *OpenTopic) error {
	f, ok := s.Log.(commitlog.Follower)
	if !ok {
		return nil
	}
	return f.Follow(ctx, func(p commitlog.Partition, end int64) {
		l := hold(p.Topic)
		if l == nil {
			return
		}
		defer l.Release()
		if int(p.Number) >= len(l.Parts) {
			return
		}
		l.Parts[p.Number].Durable(end)
		l.Wake(int(p.Number))
	})
}
