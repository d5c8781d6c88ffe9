package embedded

import (
	"context"
	"encoding/binary"
	"hash/maphash"
	"slices"
	"time"

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
		return store.ErrFull
	}
	b := s.db.NewBatch()
	t, err := s.apply(b, writes)
	if err != nil {
		_ = b.Close()
		return err
	}
	if t.written && !s.opts.noSync {
		if err := b.SyncWait(); err != nil {
			s.opts.Fatal(err)
			return err
		}
	}
	if t.written {
		s.mark.giveBack(t.ticket)
		s.plans.Add(1)
	}
	if t.outboxDeletes > 0 {
		s.countOutboxDeletes(t.outboxDeletes)
	}
	// Conditions may have seen what others have not synced yet, and a plan of
	// checks alone has no sync of its own.
	if err := b.Close(); err != nil || t.written {
		return err
	}
	return s.mark.wait(ctx)
}

func onlyDeletes(writes []store.Write) bool {
	for i := range writes {
		if writes[i].Op != store.OpDelete && writes[i].Op != store.OpCheck {
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
	keys := make([][]byte, len(writes))
	locks := make([]int, len(writes))
	size := 0
	for i := range writes {
		size += 3 + len(writes[i].Key.PK) + len(writes[i].Key.SK)
	}
	buf := make([]byte, 0, size)
	for i := range writes {
		start := len(buf)
		buf = appendKey(buf, writes[i].Key)
		keys[i] = buf[start:len(buf):len(buf)]
		locks[i] = int(maphash.Bytes(s.seed, keys[i]) % stripes)
	}
	slices.Sort(locks)
	locks = slices.Compact(locks)
	for _, l := range locks {
		s.stripe[l].Lock()
	}
	defer func() {
		for _, l := range locks {
			s.stripe[l].Unlock()
		}
	}()

	now := s.opts.Clock().Unix()
	var out applied
	var failures []store.Failure
	var value []byte
	for i := range writes {
		w := &writes[i]
		def, _ := store.Lookup(w.Key.Table)
		var raw, current store.Item
		if len(w.Cond) > 0 || w.Op == store.OpUpdate || def.TTL {
			var err error
			if raw, err = s.load(keys[i]); err != nil {
				return out, err
			}
			if !store.Expired(raw, now) {
				current = raw
			}
		}
		if !store.Evaluate(w.Cond, current) {
			failures = append(failures, store.Failure{Index: i, Name: w.Name, Current: current})
			continue
		}
		if w.Op == store.OpCheck || len(failures) > 0 {
			continue
		}
		next, err := w.Next(current)
		if err != nil {
			return out, err
		}
		if def.TTL {
			if err := s.moveExpiry(b, keys[i], raw, next); err != nil {
				return out, err
			}
		}
		if next == nil {
			err = b.Delete(keys[i], nil)
			if w.Key.Table == store.Outbox {
				out.outboxDeletes++
			}
		} else {
			value = appendItem(value[:0], next)
			err = b.Set(keys[i], value, nil)
		}
		if err != nil {
			return out, err
		}
	}
	if len(failures) > 0 {
		s.failed.Add(1)
		return applied{}, &store.ConditionError{Failures: failures}
	}
	if b.Empty() {
		return out, nil
	}
	// The ticket must be out before the batch can be seen.
	out.ticket, out.written = s.mark.take(), true
	if s.opts.noSync {
		return out, s.db.Apply(b, pebble.NoSync)
	}
	// Apply without waiting for the sync, in the one place where it is used: the
	// function is marked experimental.
	if err := s.db.ApplyNoSyncWait(b, pebble.Sync); err != nil {
		s.mark.giveBack(out.ticket)
		return applied{}, err
	}
	return out, nil
}

// moveExpiry keeps the index of expiries in step with an item.
func (s *Store) moveExpiry(b *pebble.Batch, key []byte, old, next store.Item) error {
	was, is := old.Get(store.ExpiresAtField), next.Get(store.ExpiresAtField)
	if was.Equal(is) {
		return nil
	}
	if was.Kind() != 0 {
		if err := b.Delete(appendExpiry(nil, was.Int64(), key), nil); err != nil {
			return err
		}
	}
	if is.Kind() != 0 {
		return b.Set(appendExpiry(nil, is.Int64(), key), nil, nil)
	}
	return nil
}

// How often expired items are removed, and how many at most in one go.
const (
	sweepEvery = time.Minute
	sweepMax   = 10_000
)

func (s *Store) sweepLoop() {
	t := time.NewTicker(sweepEvery)
	defer t.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-t.C:
			if _, err := s.sweep(sweepMax); err != nil {
				s.opts.Logger.Error("remove expired items", "error", err)
			}
		}
	}
}

// sweep removes up to limit expired items and returns how many it looked at. An
// item that was written anew meanwhile has another entry in the index and stays.
func (s *Store) sweep(limit int) (n int, err error) {
	now := s.opts.Clock().Unix()
	iter, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{spaceExpiry}, UpperBound: appendExpiry(nil, now+1, nil)})
	if err != nil {
		return 0, err
	}
	var entries [][]byte
	for ok := iter.First(); ok && len(entries) < limit; ok = iter.Next() {
		entries = append(entries, slices.Clone(iter.Key()))
	}
	if err := iter.Close(); err != nil {
		return 0, err
	}
	for _, e := range entries {
		if err := s.expire(e, int64(binary.BigEndian.Uint64(e[1:9])), e[9:]); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

func (s *Store) expire(entry []byte, at int64, key []byte) error {
	l := &s.stripe[maphash.Bytes(s.seed, key)%stripes]
	l.Lock()
	defer l.Unlock()
	it, err := s.load(key)
	if err != nil {
		return err
	}
	b := s.db.NewBatch()
	defer b.Close()
	if v := it.Get(store.ExpiresAtField); v.Kind() != 0 && v.Int64() == at {
		if err := b.Delete(key, nil); err != nil {
			return err
		}
	}
	if err := b.Delete(entry, nil); err != nil {
		return err
	}
	// Losing a removal in a crash changes nothing: an expired item is never shown.
	return s.db.Apply(b, pebble.NoSync)
}

// compactAfter is the number of deleted outbox rows whose tombstones are worth a
// compaction.
const compactAfter = 100_000

// countOutboxDeletes starts a compaction of the outbox when it is due: reading an
// emptied shard would otherwise pay for all that was ever in it.
func (s *Store) countOutboxDeletes(n int64) {
	if s.outboxDeletes.Add(n) < compactAfter || !s.compacting.CompareAndSwap(false, true) {
		return
	}
	s.outboxDeletes.Store(0)
	s.background.Go(func() {
		defer s.compacting.Store(false)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		stopped := make(chan struct{})
		defer close(stopped)
		s.background.Go(func() { // Close must not wait for a long compaction
			select {
			case <-s.stop:
				cancel()
			case <-stopped:
			}
		})
		lower := []byte{spaceItems, tableNumbers[store.Outbox]}
		upper := []byte{spaceItems, tableNumbers[store.Outbox] + 1}
		if err := s.db.Compact(ctx, lower, upper, false); err != nil && ctx.Err() == nil {
			s.opts.Logger.Error("compact outbox", "error", err)
			return
		}
		s.compactions.Add(1)
	})
}
