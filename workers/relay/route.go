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
// A relay publishes by a state only after it has renewed: its transactional id is taken
// over anew, so that no transaction begun under an older state can still be committed, by
// itself or by a process that had the slot before, and the slot is still its own, so that no
// other relay has reported a later state.
//
// A freeze counts only once every relay has reported it. Before a relay reports, it deletes
// the rows of what it has published, so that nothing of it comes again on another topic. A
// relay that cannot report publishes the other topics meanwhile: what it would report about
// is held back by the state itself.
type route struct {
	state    versions.State
	followed time.Time // when the state was read last
	renewed  int64     // revision of the last state that the relay may publish by
	reported int64     // revision of the last state that was reported
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
	if s.Revision != t.state.Revision {
		t.state, t.waits = s, map[string]bool{}
		clear(r.outages) // of topics that may not be in use any more
		r.unavailable.Store(0)
	}
	if t.renewed != s.Revision {
		if err := r.renew(ctx, s.Revision); err != nil {
			return err
		}
	}
	if t.renewed == s.Revision && t.reported != s.Revision {
		return r.report(ctx, s.Revision)
	}
	return nil
}

// renew makes sure that only this relay publishes its shards, by the state that it has read.
func (r *Relay) renew(ctx context.Context, revision int64) error {
	if r.cfg.Renew != nil {
		switch err := r.attempt(nil, func() error { return r.cfg.Renew(ctx) }); {
		case errors.Is(err, kafka.ErrFenced):
			return err
		case err != nil:
			if !errors.As(err, new(countedError)) {
				r.failures.Add(1)
			}
			// Rows are counted meanwhile, and stay where they are.
			r.cfg.Logger.Warn("relay: cannot renew its transactional id; publishes nothing until it has", "error", err)
			return nil
		}
	}
	r.route.renewed = revision
	r.swept = time.Time{} // chats that waited
	return nil
}

// report says that the relay goes by a state.
func (r *Relay) report(ctx context.Context, revision int64) error {
	// The settlement that is under way first: what it leaves is in the one after it.
	err := errors.Join(r.finishSettling(), r.settle(ctx, true))
	if err == nil && r.cfg.Report != nil {
		err = r.cfg.Report(ctx, revision)
	}
	switch {
	case errors.Is(err, kafka.ErrFenced):
		return err
	case err != nil:
		r.cfg.Logger.Warn("relay: cannot report the versions of topics; a migration waits for it", "error", err)
		return nil
	}
	r.route.reported = revision
	return nil
}

// settled reports whether the relay may publish by the state that it goes by. Until then it
// publishes nothing: the state may have changed since it was read, and this relay may have
// fenced one that has reported the change.
func (r *route) settled() bool { return r.renewed == r.state.Revision }

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
