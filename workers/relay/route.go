package relay

import (
	"context"
	"errors"
	"time"

	"github.com/parley-chat/parley/server/infra/bounded"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/versions"
)

// route is where events go at present. While a topic is frozen, a chat whose next event goes
// to it waits with all its later events; other chats are published.
//
// A relay publishes by a state only after a renewal, which establishes two facts. No
// transaction that began under an older state can still commit, whether it is this relay's
// or that of an earlier holder of the slot. And no other relay of the slot has reported a
// later state, because the slot is still held by this process.
//
// A freeze is in force once every relay has reported it. Before a relay reports, it deletes
// the rows that it has published, so that none of them is published again to another topic.
// While a relay cannot report, it publishes the other topics: the state itself keeps the
// events of the frozen topic back.
type route struct {
	state       versions.State
	lastRead    time.Time       // when the state was last read
	renewed     int64           // revision of the state that the relay may publish by
	reported    int64           // revision of the state that was last reported
	frozenChats map[string]bool // chats that wait for the frozen topic
}

// due returns when the state must be read again.
func (r *route) due(cfg Config) time.Time {
	if cfg.Topics == nil {
		return cfg.Clock().Add(time.Hour)
	}
	return r.lastRead.Add(versions.FollowEvery)
}

// frozen reports whether a topic is frozen.
func (r *route) frozen() bool { return r.state.Move != nil && r.state.Frozen(r.state.Move.Topic) }

// leadsTo reports whether events of a chat go to a partition.
func (r *route) leadsTo(chatID string, p kafka.Partition) bool {
	base, _, ok := versions.Base(p.Topic)
	return ok && r.state.PartitionOf(base, chatID) == p
}

// refreshTopics reads the state, for the first time before anything is published.
func (r *Relay) refreshTopics(ctx context.Context) error {
	t := &r.route
	now := r.cfg.Clock()
	if r.cfg.Topics == nil || now.Before(t.due(r.cfg)) {
		return nil
	}
	s, err := r.cfg.Topics(ctx)
	if err != nil {
		if t.lastRead.IsZero() {
			return err
		}
		r.cfg.Logger.Warn("relay: cannot read the versions of topics; using the last ones", "error", err)
		t.lastRead = now
		return nil
	}
	t.lastRead = now
	if s.Revision != t.state.Revision {
		t.state, t.frozenChats = s, map[string]bool{}
		clear(r.outages) // their topics may be unused now
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

// renew fences earlier producers, so that only this relay publishes its shards, by the state
// that it has read.
func (r *Relay) renew(ctx context.Context, revision int64) error {
	if r.cfg.Renew != nil {
		switch err := r.attempt(nil, func() error { return r.cfg.Renew(ctx) }); {
		case errors.Is(err, kafka.ErrFenced):
			return err
		case err != nil:
			if ctx.Err() != nil {
				return nil //nolint:nilerr // the relay ends
			}
			if !errors.As(err, new(countedError)) {
				r.failures.Add(1)
			}
			// Sweeps count the rows meanwhile, and publish none.
			r.cfg.Logger.Warn("relay: cannot renew the transactional id; publishing nothing until then", "error", err)
			return nil
		}
	}
	r.route.renewed = revision
	r.lastSweep = time.Time{} // chats that waited
	return nil
}

// report records for the migration that the relay publishes by a state.
func (r *Relay) report(ctx context.Context, revision int64) error {
	// Rows that the deletion in the background cannot delete are in the next one.
	err := errors.Join(r.finishDeletion(), r.deletePublished(ctx, true))
	if err == nil && r.cfg.Report != nil {
		err = r.cfg.Report(ctx, revision)
	}
	switch {
	case errors.Is(err, kafka.ErrFenced):
		return err
	case err != nil:
		r.cfg.Logger.Warn("relay: cannot report the versions of topics; a migration waits for the report", "error", err)
		return nil
	}
	r.route.reported = revision
	return nil
}

// isRenewed reports whether the relay may publish by the present state. Without a renewal
// the state may have changed since it was read, and this relay may have fenced another that
// has reported the change.
func (r *route) isRenewed() bool { return r.renewed == r.state.Revision }

// waitsForTopic reports whether a plan has to wait for its topic. Its chat then waits until
// the state changes, and is not queried meanwhile.
func (r *Relay) waitsForTopic(p plan) bool {
	if !r.route.isRenewed() {
		r.deferred[p.chatID] = true
		return true
	}
	if !p.frozen {
		return false
	}
	bounded.Put(r.route.frozenChats, p.chatID, true, maxChats)
	r.deferred[p.chatID] = true
	return true
}
