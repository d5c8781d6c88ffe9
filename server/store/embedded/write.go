package embedded

import (
	"context"
	"fmt"
	"hash/maphash"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/parley-chat/parley/server/store"
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
	s.disk.Wrote(b.Len())
	if !s.opts.noSync {
		if err := b.SyncWait(); err != nil {
			s.fail(err)
			return fmt.Errorf("%w: sync: %w", store.ErrAmbiguous, err)
		}
	}
	s.barrier.Done(t.ticket)
	s.plans.Add(1)
	_ = b.Close() // it only returns memory
	return nil
}

// fail ends the process: what is visible may never reach the disk.
func (s *Store) fail(err error) {
	s.barrier.Fail(fmt.Errorf("%w: a sync failed: %w", store.ErrUnavailable, err))
	s.opts.Fatal(err)
}

// onlyDeletes reports whether writes free space. The few rows of some tables count as if
// they did, because freeing space depends on them: a trim of the log is recorded first
// (meta), a relay without its lease does not delete published rows (leases), and every
// deletion by an operator is recorded (audit).
func onlyDeletes(writes []store.Write) bool {
	for i := range writes {
		w := &writes[i]
		switch {
		case w.Op == store.OpDelete, w.Op == store.OpCheck:
		case w.Key.Table == store.Meta, w.Key.Table == store.Leases, w.Key.Table == store.Audit:
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

// apply evaluates the writes and applies them to the database, all under the
// locks of their items. The batch is visible afterwards, but not synced.
func (s *Store) apply(b *pebble.Batch, writes []store.Write) (applied, error) {
	keys := encodeKeys(writes)
	locks := s.lockAll(keys)
	defer s.unlockAll(locks)
	now := s.opts.Clock().Unix()
	found, err := s.evaluate(keys, writes, now)
	if err != nil {
		return applied{}, err
	}
	var out applied
	var value []byte
	for i := range writes {
		w := &writes[i]
		if w.Op == store.OpCheck {
			continue
		}
		next, err := w.Next(found[i].live(now))
		if err != nil {
			return applied{}, err
		}
		if found[i].ttl {
			err = s.updateExpiry(b, keys[i], found[i].item, next)
		}
		switch {
		case err != nil:
		case next == nil:
			err = b.Delete(keys[i], nil)
			if w.Key.Table == store.Outbox {
				out.outboxDeletes++
			}
		default:
			value = appendItem(value[:0], next)
			err = b.Set(keys[i], value, nil)
		}
		if err != nil {
			return applied{}, translate(err)
		}
	}
	if b.Empty() {
		return out, nil
	}
	out.written = true
	out.ticket, err = s.publish(b)
	return out, err
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

// found is the stored item of a write, expired or not, if the write needs it.
type found struct {
	item store.Item
	ttl  bool
}

func (f *found) live(now int64) store.Item {
	if f.ttl && store.Expired(f.item, now) {
		return nil
	}
	return f.item
}

// evaluate reads the items that the writes need and evaluates all conditions.
func (s *Store) evaluate(keys [][]byte, writes []store.Write, now int64) ([]found, error) {
	var failures []store.Failure
	list := make([]found, len(writes))
	for i := range writes {
		w, f := &writes[i], &list[i]
		def, _ := store.Lookup(w.Key.Table)
		f.ttl = def.TTL
		if len(w.Cond) == 0 && w.Op != store.OpUpdate && !def.TTL {
			continue
		}
		var err error
		if f.item, err = s.load(keys[i]); err != nil {
			return nil, translate(err)
		}
		if current := f.live(now); !store.Evaluate(w.Cond, current) {
			failures = append(failures, store.Failure{Index: i, Name: w.Name, Current: current})
		}
	}
	if len(failures) > 0 {
		s.failed.Add(1)
		return nil, &store.ConditionError{Failures: failures}
	}
	return list, nil
}

func encodeKeys(writes []store.Write) [][]byte {
	size := 0
	for i := range writes {
		size += 3 + len(writes[i].Key.PK) + len(writes[i].Key.SK)
	}
	keys, buf := make([][]byte, len(writes)), make([]byte, 0, size)
	for i := range writes {
		start := len(buf)
		buf = appendKey(buf, writes[i].Key)
		keys[i] = buf[start:len(buf):len(buf)]
	}
	return keys
}

// lockAll locks the stripes of keys in ascending order and returns them.
func (s *Store) lockAll(keys [][]byte) []int {
	locks := make([]int, len(keys))
	for i, k := range keys {
		locks[i] = int(maphash.Bytes(s.seed, k) % stripes)
	}
	slices.Sort(locks)
	locks = slices.Compact(locks)
	for _, l := range locks {
		s.stripe[l].Lock()
	}
	return locks
}

func (s *Store) unlockAll(locks []int) {
	for _, l := range locks {
		s.stripe[l].Unlock()
	}
}
