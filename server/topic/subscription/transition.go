package subscription

import (
	"context"

	"github.com/parley-chat/parley/server/topic/catalog"
	"github.com/parley-chat/parley/server/topic/internal/machine"
	"github.com/parley-chat/parley/server/topic/lifecycle"
	"github.com/parley-chat/parley/server/topic/live"
	"github.com/parley-chat/parley/server/topic/refusal"
	"github.com/parley-chat/parley/server/topic/session"
)

// Transition changes a subscription's state: in the store, under the condition that it is
// what this process knows, then for the messages, then for the members. It returns once
// both are durable.
func (m *Manager) Transition(
	ctx context.Context, l *live.Topic, name string, tr lifecycle.Transition, by string,
) (lifecycle.State, error) {
	state, changed, err := m.transition(ctx, l, name, tr, by)
	if err == nil && changed {
		err = m.cfg.Flusher.Wait(ctx, name, l.Parts...)
	}
	return state, err
}

func (m *Manager) transition(
	ctx context.Context, l *live.Topic, name string, tr lifecycle.Transition, by string,
) (state lifecycle.State, changed bool, err error) {
	t := l.Topic
	t.Lock.Lock()
	defer t.Lock.Unlock()
	old := t.Subscription(name)
	if old == nil {
		return 0, false, refusal.NoSubscription(t.Name, name)
	}
	next, ok := lifecycle.Next(old.State, tr)
	if !ok && tr == lifecycle.Beat {
		return old.State, false, refusal.New(refusal.SubscriptionGone, "the subscription of %q has ended", name)
	}
	if !ok {
		return old.State, false, refusal.New(refusal.InvalidTransition, "a subscription that is %s cannot %s",
			catalog.StateName(old.State), tr)
	}
	if next == old.State {
		return next, false, nil
	}
	g := l.Group(name)
	if tr == lifecycle.Expire && g != nil && g.Members() > 0 {
		return old.State, false, refusal.New(refusal.InvalidTransition, "group %q has members", name)
	}
	if tr == lifecycle.Leave && g != nil && g.Members() > 0 { // another has joined meanwhile
		return old.State, false, nil
	}
	sub := *old
	sub.State = next
	if g != nil {
		if tr == lifecycle.Beat {
			g.Pulse.Revived(m.cfg.Clock())
		}
		g.Pulse.Record(&sub.Row)
	}
	sub.Row.LastActiveAt = m.cfg.Clock().UnixMilli()
	if err := m.cfg.Catalog.Put(ctx, t, &sub); err != nil {
		return old.State, false, err
	}
	messages, err := m.apply(l, g, name, old.State, next, tr != lifecycle.Continue)
	m.cfg.Logger.Info("subscription changed", "topic", t.Name, "group", name, "generation", sub.Row.Generation,
		"from", catalog.StateName(old.State), "to", catalog.StateName(next), "messages", messages, "by", by)
	return next, true, err
}

// apply makes of a change of state what it is for the messages, and notifies the members. With
// backfill a dead group gets what it missed. It returns how many messages were released, or
// are to be delivered again.
func (m *Manager) apply(
	l *live.Topic, g *live.Group, name string, from, to lifecycle.State, backfill bool,
) (messages int64, err error) {
	if g == nil { // it had ended
		return 0, nil
	}
	err = g.Do(func(_ int, h *machine.GroupState) error {
		n, err := step(h, from, to, backfill)
		messages += n
		return unexpected(err)
	})
	switch to {
	case lifecycle.Cancelled:
		l.Remove(name)
		g.Close(session.Gone)
	default:
		g.SetState(to)
	}
	if to == lifecycle.Active {
		m.cfg.Watch()
	}
	if to == lifecycle.Dead {
		m.cfg.Counters.Died.Add(1)
	}
	if to == lifecycle.Dead || to == lifecycle.Cancelled {
		m.cfg.Counters.Released.Add(messages)
	}
	return messages, err
}

func step(h *machine.GroupState, from, to lifecycle.State, backfill bool) (messages int64, err error) {
	switch {
	case to == lifecycle.Paused:
		return 0, h.Pause()
	case to == lifecycle.Active && from == lifecycle.Paused:
		return 0, h.Resume()
	case to == lifecycle.Active:
		return h.Resurrect(backfill)
	case to == lifecycle.Dead:
		err = h.Die()
	case to == lifecycle.Cancelled:
		err = h.Cancel()
	}
	if err != nil {
		return 0, err
	}
	return h.Release()
}
