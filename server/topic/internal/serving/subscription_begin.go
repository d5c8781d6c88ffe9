package serving

import (
	"context"
	"errors"
	"slices"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/topic/internal/machine"
	"github.com/parley-chat/parley/server/topic/internal/storage"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// maxSubscriptions is the number of a topic's subscriptions that have not ended.
const maxSubscriptions = 10_000

// BeginQueue begins the group of a queue, which needs no subscription of anybody. Messages
// that groups were to receive before and have all acknowledged are not for it. The caller
// holds the topic's lock for writing.
func (m *SubscriptionManager) BeginQueue(ctx context.Context, l *OpenTopic) error {
	_, _, err := m.Begin(ctx, l, storage.QueueGroup, &topicv1.SubscriptionConfig{
		Start:    &topicv1.Position{At: &topicv1.Position_Earliest{Earliest: true}},
		Backfill: true, MaxBackfillMessages: storage.Unlimited,
	}, storage.PushedBy{})
	return err
}

// Begin begins a subscription. Cursors are stored before the row: without it they are
// nothing. secret is that of a webhook, if it was made. The caller holds the topic's lock for writing.
func (m *SubscriptionManager) Begin(
	ctx context.Context, l *OpenTopic, name string, wanted *topicv1.SubscriptionConfig, by storage.PushedBy,
) (warnings []string, secret string, err error) {
	t := l.Topic
	if t.View().Deleting {
		return nil, "", refusal.Forbidden(t.Name)
	}
	if len(t.Subscriptions()) >= maxSubscriptions {
		return nil, "", refusal.New(refusal.TooMany, "topic %q has %d subscriptions", t.Name, maxSubscriptions)
	}
	config, warnings, err := storage.SubscriptionConfig(wanted, t.View().Preset)
	if err != nil {
		return nil, "", err
	}
	now := m.engine.Clock().UnixMilli()
	sub := &storage.Subscription{Group: name, State: storage.Active, Config: config, Row: table.Subscription{
		Generation: 1, SubscribedAt: now, LastActiveAt: now,
	}}
	if old := t.Subscription(name); old != nil {
		sub.Row.Generation = old.Row.Generation + 1
	}
	if config.GetPush() != nil {
		sub.Push, secret = storage.SetPush(nil, by, m.engine.Clock())
	}
	g, err := StoredGroupOf(sub, t.View().Config.GetPausePins())
	if err != nil {
		return nil, "", err
	}
	if err = m.addGroup(ctx, l, g.Config, sub); err == nil {
		err = m.engine.Catalog.Put(ctx, t, sub)
	}
	if err != nil {
		for _, p := range l.Parts {
			err = errors.Join(err, p.Forget(name))
		}
		return nil, "", err
	}
	m.engine.Topics.Register(l, t.Subscription(name))
	if sub.Row.Generation > 1 {
		m.engine.Flusher.Quiesce()
		if err := m.engine.Catalog.DropCursors(ctx, t, name, sub.Row.Generation-1); err != nil { // they are only in the way
			m.engine.Logger.Warn("old positions of a subscription cannot be removed",
				"topic", t.Name, "group", name, "error", err)
		}
	}
	return warnings, secret, nil
}

// addGroup puts a new group into all partitions, and stores its cursors.
func (m *SubscriptionManager) addGroup(
	ctx context.Context, l *OpenTopic, c machine.Config, sub *storage.Subscription,
) error {
	var writes []store.Write
	changed := false
	starts, ends, reached := make([]int64, len(l.Parts)), make([]int64, len(l.Parts)), make([]int64, len(l.Parts))
	for n, p := range l.Parts {
		at, err := m.Resolve(ctx, l, n, sub.Config.GetStart())
		if err != nil {
			return err
		}
		start, end := p.Bounds()
		sub.Row.Gap = sub.Row.Gap || at < start
		starts[n], ends[n], reached[n] = max(at, start), end, end-max(at, start)
	}
	for n, limit := range split(sub.Config.GetMaxBackfillMessages(), reached) { // the bound is that of all partitions
		starts[n] = max(starts[n], ends[n]-limit)
	}
	for n, p := range l.Parts {
		var err error
		p.Do(func(m *machine.Machine) {
			_, _, _, err = m.Subscribe(c, machine.Begin{
				Start: starts[n], Backfill: sub.Config.GetBackfill(), Rest: sub.Group == storage.QueueGroup,
			})
		})
		if err != nil {
			return unexpected(err)
		}
		changed = p.MarkState() || changed
		writes = append(writes, p.First(sub.Group))
	}
	if changed { // what an earlier generation has done is known without it
		if err := m.engine.Flusher.Wait(ctx, sub.Group, l.Parts...); err != nil {
			return err
		}
	}
	for part := range slices.Chunk(writes, store.MaxBatchWrite) {
		if err := m.engine.Store.BatchWrite(ctx, part); err != nil {
			return err
		}
	}
	return nil
}

// Resolve returns the position in a partition that a topicv1.Position stands for.
func (m *SubscriptionManager) Resolve(ctx context.Context, l *OpenTopic, n int, at *topicv1.Position) (int64, error) {
	p := l.Parts[n]
	start, end := p.Bounds()
	switch x := at.GetAt().(type) {
	case *topicv1.Position_Earliest:
		return start, nil
	case *topicv1.Position_Time:
		position, err := m.engine.Sources.Reader(l.Topic).PositionAt(ctx, p.Address, x.Time.AsTime())
		return min(position, end), err
	case *topicv1.Position_MessageId:
		number, position, err := l.Message(x.MessageId)
		if err != nil || number != n {
			return end, err
		}
		if position > end {
			return 0, refusal.New(refusal.PositionOutOfRange, "the next message of the partition is %s",
				MessageID(int32(n), end))
		}
		return position, nil
	}
	return end, nil
}

// unexpected converts errors of the machine.
func unexpected(err error) error {
	switch {
	case errors.Is(err, machine.ErrState):
		return refusal.New(refusal.InvalidTransition, "the subscription's state does not allow it")
	case errors.Is(err, machine.ErrOutOfRange):
		return refusal.New(refusal.PositionOutOfRange, "the position is beyond the end")
	}
	return err
}
