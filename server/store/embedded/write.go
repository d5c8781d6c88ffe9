package embedded

import (
	"context"
	"fmt"
	"hash/maphash"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded/itemcodec"
)

// Transact implements store.Store.
func (s *Store) Transact(ctx context.Context, p store.Plan) error {
	if err := p.Validate(); err != nil {
		return err
	}
	return s.write(ctx, p.Writes)
}

// BatchWrite implements store.Store; here it is even atomic.
func (s *Store) BatchWrite(ctx context.Context, writes []store.Write) error {
	if err := store.ValidateBatch(writes); err != nil {
		return err
	}
	return s.write(ctx, writes)
}

func (s *Store) write(ctx context.Context, writes []store.Write) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	defer s.life.RUnlock()
	if s.full() && !onlyDeletes(writes) {
		s.refused.Add(1)
		return store.ErrFull
	}
	b := s.db.NewBatch()
	t, err := s.apply(b, writes)
	if err != nil {
		_ = b.Close() // nothing was written, the error says why
		return err
	}
	if t.outboxDeletes > 0 {
		s.countOutboxDeletes(t.outboxDeletes)
	}
	if !t.written {
		// The conditions may have seen what others have not synced yet, and a plan
		// of checks alone has no sync of its own.
		_ = b.Close()
		return s.barrier.Wait(ctx)
	}
	return s.finish(b, t.ticket)
}

// finish waits for the sync of a batch that is visible.
func (s *Store) finish(b *pebble.Batch, ticket uint64) error {
	s.disk.Wrote(b.Len())
	if !s.opts.noSync {
		if err := b.SyncWait(); err != nil {
			s.fail(err)
			return fmt.Errorf("%w: sync: %w", store.ErrAmbiguous, err)
		}
	}
	s.count(b)
	s.barrier.Done(ticket)
	s.plans.Add(1)
	_ = b.Close() // it only returns memory
	return nil
}

// fail ends the process: visible writes may never reach the disk.
func (s *Store) fail(err error) {
	s.barrier.Fail(fmt.Errorf("%w: a sync failed: %w", store.ErrUnavailable, err))
	s.opts.Fatal(err)
}

// onlyDeletes reports whether writes free space. The few rows of some tables count as if
// they did, because freeing space depends on them: a trim of the log is recorded first
// (meta), and a relay without its lease does not delete published rows (leases). How far
// groups of topics are is stored, too (subscriptions): messages that they have not
// acknowledged are not removed.
func onlyDeletes(writes []store.Write) bool {
	for i := range writes {
		w := &writes[i]
		switch {
		case w.Op == store.OpDelete, w.Op == store.OpCheck, w.Frees:
		case w.Key.Table == store.Meta, w.Key.Table == store.Leases, w.Key.Table == store.Subscriptions:
		default:
			return false
		}
	}
	return true
}

type applied struct {
	written       bool
	ticket        uint64
	outboxDeletes int64
}

// apply evaluates the writes and applies them to the database, with what the batch has
// already, all under the locks of their items. The batch is visible afterwards, but not synced.
func (s *Store) apply(b *pebble.Batch, writes []store.Write) (applied, error) {
	w := newWorkspace(writes)
	defer w.release()
	s.lockAll(w)
	defer s.unlockAll(w)
	now := s.opts.Clock().Unix()
	if err := s.evaluate(w, writes, now); err != nil {
		return applied{}, err
	}
	var out applied
	for i := range writes {
		if writes[i].Op == store.OpCheck {
			continue
		}
		if err := s.stage(b, w, i, &writes[i], now); err != nil {
			return applied{}, err
		}
		if w.items[i].next == nil && writes[i].Key.Table == store.Outbox {
			out.outboxDeletes++
		}
	}
	if b.Empty() {
		return out, nil
	}
	out.written = true
	var err error
	w.hide(s)
	if out.ticket, err = s.publish(b); err == nil {
		w.cache(s)
	}
	return out, err
}

// stage adds what one write leaves to a batch.
func (s *Store) stage(b *pebble.Batch, w *workspace, i int, write *store.Write, now int64) error {
	it := &w.items[i]
	var err error
	if it.next, err = write.Next(it.live(now)); err != nil {
		return err
	}
	it.written = true
	it.updated = write.Op == store.OpUpdate
	it.texts = slices.ContainsFunc(write.Update.Set, func(a store.Attr) bool { return a.Value.Str() != "" })
	if it.ttl {
		err = s.updateExpiry(b, it.key, it.found, it.next)
	}
	switch {
	case err != nil:
	case it.next == nil:
		err = b.Delete(it.key, nil)
	default:
		w.value = itemcodec.Append(w.value[:0], it.next)
		err = b.Set(it.key, w.value, nil)
	}
	return translate(err)
}

// publish makes a batch visible. The ticket must be acquired before that.
func (s *Store) publish(b *pebble.Batch) (ticket uint64, err error) {
	if !s.opts.late {
		if ticket, err = s.barrier.Ticket(); err != nil {
			return 0, err
		}
	}
	if err := s.commit(b); err != nil {
		s.barrier.Done(ticket)
		return 0, translate(err)
	}
	if s.opts.onVisible != nil {
		s.opts.onVisible()
	}
	if s.opts.late {
		return s.barrier.Ticket()
	}
	return ticket, nil
}

// commit applies a batch and starts its sync. Not waiting for the sync is experimental in
// Pebble; this is the only place that depends on it.
func (s *Store) commit(b *pebble.Batch) error {
	if s.opts.noSync {
		return s.db.Apply(b, pebble.NoSync)
	}
	return s.db.ApplyNoSyncWait(b, pebble.Sync)
}

// evaluate reads the items that the writes need and evaluates all conditions.
func (s *Store) evaluate(w *workspace, writes []store.Write, now int64) error {
	var failures []store.Failure
	for i := range writes {
		write, it := &writes[i], &w.items[i]
		def, _ := store.Lookup(write.Key.Table)
		it.ttl = def.TTL
		if write.Fresh || len(write.Cond) == 0 && write.Op != store.OpUpdate && !def.TTL {
			continue
		}
		if err := s.find(it, isAbsent(write.Cond)); err != nil {
			return translate(err)
		}
		if current := it.live(now); !store.Evaluate(write.Cond, current) {
			failures = append(failures, store.Failure{Index: i, Name: write.Name, Current: current})
		}
	}
	if len(failures) > 0 {
		s.failed.Add(1)
		return &store.ConditionError{Failures: failures}
	}
	return nil
}

// find reads the stored item of a write, of which there is probably none if the write
// requires that. The caller holds its lock.
func (s *Store) find(it *writtenItem, absent bool) (err error) {
	ok := false
	if isHot(it.key) && !s.uncached.Load() {
		it.found, ok = s.stripes[it.stripe].recent.Get(it.key)
	}
	switch {
	case ok:
	case absent:
		it.found, err = s.miss(it.key)
	default:
		it.found, err = s.load(it.key)
	}
	return err
}

func (s *Store) stripeOf(key []byte) int { return int(maphash.Bytes(s.seed, key) % stripeCount) }

// lockAll locks the stripes of a workspace's items in ascending order.
func (s *Store) lockAll(w *workspace) {
	for i := range w.items {
		w.items[i].stripe = s.stripeOf(w.items[i].key)
		w.locks = append(w.locks, w.items[i].stripe)
	}
	slices.Sort(w.locks)
	w.locks = slices.Compact(w.locks)
	for _, l := range w.locks {
		s.stripes[l].Lock()
	}
}

func (s *Store) unlockAll(w *workspace) {
	for _, l := range w.locks {
		s.stripes[l].Unlock()
	}
}
