package relay

import (
	"context"
	"errors"
	"time"

	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/versions"
)

// route is where events go at present. While a topic is frozen, a chat whose next event
// belongs to it waits, with all that comes later; other chats go on.
//
// A freeze counts only once every relay has said that it has seen it. Before a relay says
// so, it deletes the rows of what it has published, so that nothing of it comes again on
// another topic, and sees to it that no transaction begun under the older state can still
// be committed, by itself or by a process that had the slot before.
type route struct {
	state    versions.State
	followed time.Time // when the state was read last
	seen     int64     // revision of the last state that was reported
	waits    map[string]bool
}

// due is when the state is to be read again.
func (r *route) due(cfg Config) time.Time {
	if cfg.Topics == nil {
		return cfg.Clock().Add(time.Hour)
	}
	return r.followed.Add(versions.FollowEvery)
}

// frozen reports whether any topic is.
func (r *route) frozen() bool { return r.state.Move != nil && r.state.Frozen(r.state.Move.Topic) }

// goes reports whether events of a chat go to a partition.
func (r *route) goes(chatID string, p kafka.Partition) bool {
	base, _, ok := versions.Base(p.Topic)
	return ok && r.state.Place(base, chatID) == p
}

// followTopics reads the state, the first time before anything is published.
func (r *Relay) followTopics(ctx context.Context) error {
	t := &r.route
	now := r.cfg.Clock()
	if r.cfg.Topics == nil || now.Before(t.due(r.cfg)) {
		return nil
	}
	s, err := r.cfg.Topics(ctx)
	if err != nil {
		if t.followed.IsZero() {
			return err
		}
		r.cfg.Logger.Warn("relay: the versions of topics cannot be read; the last ones hold", "error", err)
		t.followed = now
		return nil
	}
	t.followed = now
	if s.Revision == t.seen && s.Revision == t.state.Revision {
		return nil
	}
	t.state, t.waits = s, map[string]bool{}
	clear(r.outages) // of topics that may not be in use any more
	r.unavailable.Store(0)
	// The settlement that is under way first: what it leaves is in the one after it.
	err = errors.Join(r.finishSettling(), r.settle(ctx, true))
	if err == nil && r.cfg.Seen != nil {
		err = r.cfg.Seen(ctx, s.Revision)
	}
	if errors.Is(err, kafka.ErrFenced) {
		return err
	}
	if err != nil {
		// Rows are counted meanwhile, and stay where they are.
		r.cfg.Logger.Warn("relay: publishes nothing until it could report the versions of topics", "error", err)
		return nil
	}
	t.seen = s.Revision
	r.swept = time.Time{} // chats that waited
	return nil
}

// settled reports whether the state that the relay goes by was reported. Until then it
// publishes nothing: the state may have changed since it was read, and this relay may have
// fenced one that has reported the change.
func (r *route) settled() bool { return r.seen == r.state.Revision }

// holds reports whether a plan has to wait for its topic. What follows of its chat waits
// until the state changes: nobody asks the outbox for it meanwhile.
func (r *Relay) holds(p plan) bool {
	if !r.route.settled() {
		r.left[p.chatID] = true
		return true
	}
	if !p.frozen {
		return false
	}
	if len(r.route.waits) >= maxChats {
		clear(r.route.waits)
	}
	r.route.waits[p.chatID] = true
	r.left[p.chatID] = true
	return true
}
