package serving

import (
	"context"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/topic/internal/machine"
	"github.com/parley-chat/parley/server/topic/internal/storage"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// Seek moves a subscription in all partitions or, if the position cannot be found in one, in
// none.
func (m *SubscriptionManager) Seek(
	ctx context.Context, l *OpenTopic, r *topicv1.SeekSubscriptionRequest,
) ([]*topicv1.Seek, error) {
	if err := m.engine.Sources.Follow(ctx, l); err != nil {
		return nil, err
	}
	t := l.Topic
	defer t.Changing().End()
	sub := t.Subscription(r.GetGroup())
	if sub == nil {
		return nil, refusal.NoSubscription(t.Name, r.GetGroup())
	}
	g := l.Group(sub.Group)
	if !storage.Receives(sub.State) || g == nil {
		return nil, refusal.New(refusal.InvalidTransition, "a subscription can be moved while it is active or paused")
	}
	to := make([]int64, len(l.Parts))
	for n := range l.Parts {
		position, err := m.Resolve(ctx, l, n, r.GetTo())
		if err != nil {
			return nil, err
		}
		to[n] = position
	}
	var seeks []*topicv1.Seek
	err := g.Do(func(n int, h *machine.GroupState) error {
		move := h.SeekTo
		if r.GetDryRun() {
			move = h.Preview
		}
		s, err := move(to[n])
		if err != nil {
			return unexpected(err)
		}
		seeks = append(seeks, &topicv1.Seek{
			Partition: int32(n), From: s.From, To: s.To, Redelivered: s.Redelivered, Skipped: s.Skipped, Gap: s.Gap,
		})
		return nil
	})
	return seeks, err
}
