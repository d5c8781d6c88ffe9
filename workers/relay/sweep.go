package relay

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// sweepState is the state of one sweep of the outbox.
type sweepState struct {
	complete bool             // no chat is left to nudges
	stopped  map[string]error // chats that the sweep before could not publish
	found    int64            // rows
	oldest   int64            // of the rows found, unix ms; 0: none
	ages     map[string]int64 // of the oldest row of each chat, unix ms; bounded
	previous string           // chat of the row before
	skipped  string           // the chat that was last left to nudges; "" once its rows are published
	plans    []plan           // of many chats: a transaction of one plan costs as much
}

// sweep reads the assigned shards and publishes the rows that are not published yet. It
// leaves chats with nudges in the inbox to these, unless it is the first sweep or nudges may
// have been lost.
func (r *Relay) sweep(ctx context.Context) (err error) {
	s := &sweepState{complete: r.lastSweep.IsZero(), stopped: r.blocked, ages: map[string]int64{}}
	r.blocked = map[string]error{}
	clear(r.quarantined)
	r.beginPass()
	r.sweeps++
	defer func() { r.recordSweep(s, err) }()
	for shard, mine := range r.assigned {
		if !mine {
			continue
		}
		if err := r.sweepShard(ctx, s, shard); err != nil {
			// Plans that were read before the error are published.
			return errors.Join(err, r.publish(ctx, s.plans))
		}
	}
	return r.publish(ctx, s.plans)
}

// sweepShard sweeps one shard.
func (r *Relay) sweepShard(ctx context.Context, s *sweepState, shard int) error {
	emit := r.batcher(ctx, &s.plans)
	q := store.Query{Table: store.Outbox, PK: table.ShardKey(shard), Consistency: store.Strong}
	s.previous = ""
	for row, err := range store.QueryAll(ctx, r.cfg.Store, q) {
		if err != nil {
			return fmt.Errorf("sweep outbox: %w", err)
		}
		if r.isPending[row.Key] {
			continue
		}
		if err := r.sweepRow(ctx, s, row, emit); err != nil {
			return err
		}
	}
	return nil
}

// sweepRow publishes the chat of a row.
func (r *Relay) sweepRow(ctx context.Context, s *sweepState, row store.Row, emit func([]plan) error) error {
	s.found++
	if a := r.aside[row.Key]; a != nil {
		a.sweep = r.sweeps
	}
	o, err := read(row)
	if err != nil {
		// It blocks its chat if it is among the chat's rows, see queryAggregate. So the chat is not
		// left to nudges, which do not see the row.
		id, _, _ := strings.Cut(row.Key.SK, "#")
		r.quarantine(ctx, row.Key, id, err)
		s.stopped[id] = err
		if s.skipped != id {
			return nil
		}
		s.skipped = ""
		return r.queryAggregate(ctx, id, emit)
	}
	s.recordAge(o.AggregateID, o.CreatedAt)
	if o.AggregateID == s.previous && (!o.Replay || s.skipped != o.AggregateID) {
		return nil // all its rows were published together
	}
	s.previous = o.AggregateID
	// There are no nudges of replays, and a busy chat always has nudges.
	if !s.complete && !o.Replay && s.stopped[o.AggregateID] == nil && r.inbox.contains(o.AggregateID) {
		s.skipped = o.AggregateID
		return nil
	}
	s.skipped = ""
	return r.queryAggregate(ctx, o.AggregateID, emit)
}

// recordAge records the age of a row.
func (s *sweepState) recordAge(chatID string, created int64) {
	if s.oldest == 0 || created < s.oldest {
		s.oldest = created
	}
	if at, ok := s.ages[chatID]; (ok || len(s.ages) < maxChats) && (!ok || created < at) {
		s.ages[chatID] = created
	}
}

// recordSweep records what a sweep has found, and what it could not publish.
func (r *Relay) recordSweep(s *sweepState, err error) {
	r.poisoned.Store(int64(len(r.quarantined)))
	r.monitor.swept()
	if err != nil { // at least what it has found waits, and what waited before
		r.backlog.Store(max(s.found, r.backlog.Load()))
		if was := r.oldest.Load(); s.oldest > 0 && (was == 0 || s.oldest < was) {
			r.oldest.Store(s.oldest)
		}
		return
	}
	oldest := int64(0)
	for id, at := range s.ages {
		if (r.blocked[id] != nil || r.deferred[id]) && (oldest == 0 || at < oldest) {
			oldest = at
		}
	}
	if at := r.reportAside(); at > 0 && (oldest == 0 || at < oldest) {
		oldest = at
	}
	r.backlog.Store(s.found)
	r.oldest.Store(oldest)
	r.inFlightSince.Store(0)
}
