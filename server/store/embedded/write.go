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
