package topic

import (
	"context"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/topic/internal/serving"
	"github.com/parley-chat/parley/server/topic/internal/storage"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// backfillWait is for how long the request that starts a small backfill waits for its end.
const backfillWait = 10 * time.Second

// Backfills runs the backfills, for metrics.
func (s *Service) Backfills() *serving.Backfills { return s.engine.Backfills }

// StartBackfill starts or continues a backfill.
func (s *Service) StartBackfill(
	ctx context.Context, c Caller, r *topicv1.StartBackfillRequest,
) (*topicv1.StartBackfillResponse, error) {
	answer := &topicv1.StartBackfillResponse{}
	var messages int64
	l, err := s.changeBackfill(ctx, c, r.GetTopic(), r.GetGroup(), func(change change) error {
		return s.audited(ctx, c, "StartBackfill", r, func() error {
			return change(func(l *serving.OpenTopic, sub *storage.Subscription) (err error) {
				messages, answer.Started, err = s.engine.Backfills.Start(ctx, l, sub, r)
				if err != nil {
					return err
				}
				answer.Differences, err = s.engine.Backfills.Differences(l.Subscription(sub.Group), r)
				return err
			})
		})
	})
	if err != nil {
		return nil, err
	}
	defer l.Release()
	if answer.GetStarted() && !r.GetAsync() && messages <= serving.SmallBackfill {
		s.engine.Backfills.Await(ctx, l, r.GetGroup(), backfillWait)
	}
	answer.Backfill, err = s.backfillOf(l, r.GetGroup())
	return answer, err
}

// CancelBackfill cancels a backfill.
func (s *Service) CancelBackfill(
	ctx context.Context, c Caller, r *topicv1.CancelBackfillRequest,
) (*topicv1.CancelBackfillResponse, error) {
	l, err := s.changeBackfill(ctx, c, r.GetTopic(), r.GetGroup(), func(change change) error {
		return s.audited(ctx, c, "CancelBackfill", r, func() error {
			return change(func(l *serving.OpenTopic, sub *storage.Subscription) error {
				return s.engine.Backfills.Cancel(ctx, l, sub)
			})
		})
	})
	if err != nil {
		return nil, err
	}
	defer l.Release()
	if err := s.engine.Flusher.Wait(ctx, r.GetGroup(), l.Parts...); err != nil {
		return nil, err
	}
	b, err := s.backfillOf(l, r.GetGroup())
	return &topicv1.CancelBackfillResponse{Backfill: b}, err
}

// Backfill returns how far the last backfill of a subscription is.
func (s *Service) Backfill(ctx context.Context, c Caller, topic, group string) (*topicv1.Backfill, error) {
	l, sub, reading, err := s.subscribed(ctx, c, topic, group)
	if err != nil {
		return nil, err
	}
	defer l.Release()
	defer reading.End()
	return s.engine.Backfills.Show(l, sub)
}

// WatchBackfill calls send with how far a backfill is, at intervals until it does not run
// any more, and then once more. Whether the caller may know is asked each time.
func (s *Service) WatchBackfill(
	ctx context.Context, c Caller, topic, group string, every time.Duration, send func(*topicv1.Backfill) error,
) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		b, err := s.Backfill(ctx, c, topic, group)
		if err != nil {
			return err
		}
		if err := send(b); err != nil || b.GetStatus() != topicv1.BackfillStatus_BACKFILL_STATUS_IN_PROGRESS {
			return err
		}
		t := s.engine.Catalog.Topic(topic)
		if t == nil {
			continue
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.engine.Backfills.Ended(t, group):
		case <-tick.C:
		}
	}
}

// change runs what changes a subscription, under the topic's lock for writing.
type change func(func(l *serving.OpenTopic, sub *storage.Subscription) error) error

// changeBackfill changes a subscription's backfill. It returns the topic, which the caller
// releases.
func (s *Service) changeBackfill(
	ctx context.Context, c Caller, topic, group string, do func(change) error,
) (*serving.OpenTopic, error) {
	t, err := s.findGroup(c, topic, group)
	if err != nil {
		return nil, err
	}
	l, err := s.engine.Topics.Open(ctx, t)
	if err != nil {
		return nil, err
	}
	if err = s.engine.Sources.Follow(ctx, l); err == nil {
		err = do(func(f func(l *serving.OpenTopic, sub *storage.Subscription) error) error {
			defer t.Changing().End()
			sub := t.Subscription(group)
			if sub == nil {
				return refusal.NoSubscription(t.Name, group)
			}
			return f(l, sub)
		})
	}
	if err != nil {
		l.Release()
		return nil, err
	}
	return l, nil
}

func (s *Service) backfillOf(l *serving.OpenTopic, group string) (*topicv1.Backfill, error) {
	defer l.Reading().End()
	sub := l.Subscription(group)
	if sub == nil {
		return nil, refusal.NoSubscription(l.Name, group)
	}
	return s.engine.Backfills.Show(l, sub)
}
