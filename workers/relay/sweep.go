package relay

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// sweeping is a pass over the outbox: what it finds and what becomes of it.
type sweeping struct {
	whole   bool             // nothing is left to nudges
	stopped map[string]error // chats that could not be published before
	found   int64            // rows
	oldest  int64            // of them, unix ms; 0: none
	ages    map[string]int64 // of chats' oldest rows, unix ms, as far as there is room
	before  string           // chat of the row before
	skipped string           // the chat that was left to nudges last; "" once its rows are published
	plans   []plan           // of many chats: a transaction costs as much for one
}

// sweep reads its shards from their start and publishes what is there and was not
// published yet. Chats whose nudges wait are left to these, unless it is the first sweep
// or something was lost.
func (r *Relay) sweep(ctx context.Context) (err error) {
	s := &sweeping{whole: r.swept.IsZero(), stopped: r.stopped, ages: map[string]int64{}}
	r.stopped = map[string]error{}
	clear(r.aside)
	clear(r.left)
	defer func() { r.noteSweep(s, err) }()
	for shard, mine := range r.mine {
		if !mine {
			continue
		}
		if err := r.sweepShard(ctx, s, shard); err != nil {
			// What was read before an error is published: it has waited long enough.
			return errors.Join(err, r.publish(ctx, s.plans))
		}
	}
	return r.publish(ctx, s.plans)
}

// sweepShard sweeps one shard.
func (r *Relay) sweepShard(ctx context.Context, s *sweeping, shard int) error {
	take := r.gather(ctx, &s.plans)
	q := store.Query{Table: store.Outbox, PK: table.ShardKey(shard), Consistency: store.Strong}
	s.before = ""
	for first := true; first || q.Cursor != ""; first = false {
		page, err := r.cfg.Store.Query(ctx, q)
		if err != nil {
			return fmt.Errorf("sweep outbox: %w", err)
		}
		for _, row := range page.Rows {
			if r.waits[row.Key] {
				continue
			}
			if err := r.sweepRow(ctx, s, row, take); err != nil {
				return err
			}
		}
		q.Cursor = page.Cursor
	}
	return nil
}

// sweepRow publishes the chat of a row.
func (r *Relay) sweepRow(ctx context.Context, s *sweeping, row store.Row, take func([]plan) error) error {
	s.found++
	o, err := read(row)
	if err != nil {
		// Its chat's other rows stay, if it is among them; see queryChat. So the chat is not
		// left to nudges, which would not see it.
		id, _, _ := strings.Cut(row.Key.SK, "#")
		r.setAside(ctx, row.Key, id, err)
		s.stopped[id] = err
		if s.skipped != id {
			return nil
		}
		s.skipped = ""
		last, known := r.last[id]
		return r.queryChat(ctx, id, last, known, take)
	}
	s.note(o.ChatID, o.CreatedAt)
	if o.ChatID == s.before && (!o.Replay || s.skipped != o.ChatID) {
		return nil // its rows were published together
	}
	s.before = o.ChatID
	// Nudges tell nothing of replays, and those of a busy chat never end.
	if !s.whole && !o.Replay && s.stopped[o.ChatID] == nil && r.inbox.has(o.ChatID) {
		s.skipped = o.ChatID
		return nil
	}
	s.skipped = ""
	last, known := r.last[o.ChatID]
	return r.queryChat(ctx, o.ChatID, last, known, take)
}

// note notes the age of a row.
func (s *sweeping) note(chatID string, created int64) {
	if s.oldest == 0 || created < s.oldest {
		s.oldest = created
	}
	if at, ok := s.ages[chatID]; (ok || len(s.ages) < maxChats) && (!ok || created < at) {
		s.ages[chatID] = created
	}
}

// noteSweep notes what a sweep has found and left.
func (r *Relay) noteSweep(s *sweeping, err error) {
	r.poisoned.Store(int64(len(r.aside)))
	r.monitor.swept()
	if err != nil { // what it has found and what was known waits, at least
		r.backlog.Store(max(s.found, r.backlog.Load()))
		if was := r.oldest.Load(); s.oldest > 0 && (was == 0 || s.oldest < was) {
			r.oldest.Store(s.oldest)
		}
		return
	}
	oldest := int64(0)
	for id, at := range s.ages {
		if (r.stopped[id] != nil || r.left[id]) && (oldest == 0 || at < oldest) {
			oldest = at
		}
	}
	r.backlog.Store(s.found)
	r.oldest.Store(oldest)
	r.taken.Store(0)
}
