package serving

import (
	"context"

	"github.com/parley-chat/parley/server/topic/internal/machine"
	"github.com/parley-chat/parley/server/topic/internal/storage"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// Transition changes a subscription's state: in the store, under the condition that it is
// what this process knows, then for the messages, then for the members. It returns once
// both are durable.
func (m *SubscriptionManager) Transition(
	ctx context.Context, l *OpenTopic, name string, tr storage.Transition, by string,
) (storage.State, error) {
	return m.changed(ctx, l, name, tr, by, hookGone{})
}

// PauseGone pauses a subscription whose webhook wants no more messages, if the subscription is as it was when
// the webhook was asked, by its etag.
func (m *SubscriptionManager) PauseGone(ctx context.Context, l *OpenTopic, name, by, etag string) error {
	_, err := m.changed(ctx, l, name, storage.Pause, by, hookGone{m.engine.Clock().UnixMilli(), etag})
	return err
}

// hookGone is when a webhook said that it wants no more messages, and the etag of its subscription then.
type hookGone struct {
	at   int64 // unix ms; 0: it did not
	etag string
}

func (m *SubscriptionManager) changed(
	ctx context.Context, l *OpenTopic, name string, tr storage.Transition, by string, gone hookGone,
) (storage.State, error) {
	state, changed, err := m.transition(ctx, l, name, tr, by, gone)
	if err == nil && changed {
		err = m.engine.Flusher.Wait(ctx, name, l.Parts...)
	}
	return state, err
}

func (m *SubscriptionManager) transition(
	ctx context.Context, l *OpenTopic, name string, tr storage.Transition, by string, gone hookGone,
) (state storage.State, changed bool, err error) {
	t := l.Topic
	defer t.Changing().End()
	old := t.Subscription(name)
	if old == nil {
		return 0, false, refusal.NoSubscription(t.Name, name)
	}
	if gone.at != 0 && gone.etag != storage.Etag(old.Row.Version) {
		return old.State, false, nil
	}
	next, ok := storage.NextState(old.State, tr)
	if !ok && tr == storage.Heartbeat {
		return old.State, false, refusal.New(refusal.SubscriptionGone, "the subscription of %q has ended", name)
	}
	if !ok {
		return old.State, false, refusal.New(refusal.InvalidTransition, "a subscription that is %s cannot %s",
			storage.StateName(old.State), tr)
	}
	if next == old.State {
		return next, false, nil
	}
	g := l.Group(name)
	if tr == storage.Expire && g != nil && g.Members() > 0 {
		return old.State, false, refusal.New(refusal.InvalidTransition, "group %q has members", name)
	}
	if tr == storage.Leave && g != nil && g.Members() > 0 { // another has joined meanwhile
		return old.State, false, nil
	}
	sub := *old
	sub.State, sub.Push = next, old.Push.WithGone(gone.at)
	if next == storage.Cancelled { // its secrets are of no use any more
		sub.Push = nil
	}
	if g != nil {
		if tr == storage.Heartbeat {
			g.Heartbeats.Revived(m.engine.Clock())
		}
		g.Heartbeats.Fill(&sub.Row)
	}
	sub.Row.LastActiveAt = m.engine.Clock().UnixMilli()
	if err := m.engine.Catalog.Put(ctx, t, &sub); err != nil {
		return old.State, false, err
	}
	limit := old.Config.GetMaxBackfillMessages()
	if tr == storage.Continue {
		limit = 0
	}
	messages, err := m.apply(l, g, name, old.State, next, limit)
	m.engine.Logger.Info("subscription changed", "topic", t.Name, "group", name, "generation", sub.Row.Generation,
		"from", storage.StateName(old.State), "to", storage.StateName(next), "messages", messages, "by", by)
	return next, true, err
}

// apply makes of a change of state what it is for the messages, and notifies the members. A dead
// group gets most of the messages that it missed, those of all partitions together; negative: all.
// It returns how many messages were released, or are to be delivered again.
func (m *SubscriptionManager) apply(
	l *OpenTopic, g *Group, name string, from, to storage.State, limit int64,
) (messages int64, err error) {
	if g == nil { // it had ended
		return 0, nil
	}
	rest := machine.ByBound
	if limit == 0 { // asked for
		rest = machine.BySeek
	}
	shares := make([]int64, len(l.Parts))
	if from == storage.Dead && to == storage.Active {
		shares = split(limit, missed(l, name))
	}
	err = g.Do(func(n int, h *machine.GroupState) error {
		released, err := step(h, from, to, shares[n], rest)
		messages += released
		return unexpected(err)
	})
	switch to {
	case storage.Cancelled:
		m.engine.EndGroup(l, g)
	default:
		g.SetState(to)
	}
	if to == storage.Active {
		m.engine.Observer.GroupActive()
	}
	if to == storage.Dead {
		m.engine.Counters.Died.Add(1)
	}
	if to == storage.Dead || to == storage.Cancelled {
		m.engine.Counters.Released.Add(messages)
	}
	return messages, err
}

// missed is how many messages of each partition a group has missed.
func missed(l *OpenTopic, name string) []int64 {
	list := make([]int64, len(l.Parts))
	for n, p := range l.Parts {
		p.Do(func(m *machine.Machine) {
			if g := m.Group(name); g != nil {
				list[n] = g.Missed()
			}
		})
	}
	return list
}

func step(
	h *machine.GroupState, from, to storage.State, limit int64, rest machine.Cause,
) (messages int64, err error) {
	switch {
	case to == storage.Paused:
		return 0, h.Pause()
	case to == storage.Active && from == storage.Paused:
		return 0, h.Resume()
	case to == storage.Active:
		return h.Resurrect(limit, rest)
	case to == storage.Dead:
		err = h.Die()
	case to == storage.Cancelled:
		err = h.Cancel()
	}
	if err != nil {
		return 0, err
	}
	return h.Release()
}
