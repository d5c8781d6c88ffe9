package embedded

import (
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/parley-chat/parley/server/store"
)

// updateExpiry keeps the index of expiries in step with an item.
func (s *Store) updateExpiry(b *pebble.Batch, key []byte, old, next store.Item) error {
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

// How often expired items are removed, how many are looked up in one go, and how
// many are locked and removed together.
const (
	sweepEvery = time.Minute
	sweepMax   = 10_000
	sweepChunk = 64
)

func (s *Store) sweepLoop() {
	t := time.NewTicker(s.opts.sweepEvery)
	defer t.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-t.C:
		}
		s.weigh()
		for n := sweepMax; n == sweepMax && !s.stopping() && !s.opts.ClockSet(); {
			var err error
			if n, err = s.sweep(sweepMax); err != nil {
				s.opts.Logger.Error("remove expired items", "error", err)
				break
			}
		}
	}
}

func (s *Store) stopping() bool {
	select {
	case <-s.stop:
		return true
	default:
		return false
	}
}

// sweep removes up to limit expired items and returns how many it checked.
func (s *Store) sweep(limit int) (int, error) {
	now := s.opts.Clock().Unix()
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{spaceExpiry},
		UpperBound: appendExpiry(nil, now+1, nil)})
	if err != nil {
		return 0, err
	}
	var entries [][]byte
	for ok := it.First(); ok && len(entries) < limit; ok = it.Next() {
		entries = append(entries, slices.Clone(it.Key()))
	}
	if err := it.Close(); err != nil {
		return 0, err
	}
	done := 0
	for chunk := range slices.Chunk(entries, sweepChunk) {
		if s.stopping() {
			break
		}
		if err := s.expire(chunk); err != nil {
			return done, err
		}
		done += len(chunk)
	}
	return done, nil
}

// expire removes the items of some entries of the index. An item that was rewritten since
// the entries were read has another entry and stays: the locks prevent changes between the
// check and the removal.
func (s *Store) expire(entries [][]byte) error {
	keys := make([][]byte, len(entries))
	for i, e := range entries {
		keys[i] = e[expiryPrefix:]
	}
	w := ofKeys(keys)
	defer w.release()
	s.lockAll(w)
	defer s.unlockAll(w)
	b := s.db.NewBatch()
	defer b.Close()
	removed := int64(0)
	for i, e := range entries {
		it, err := s.load(keys[i])
		if err != nil {
			return err
		}
		if v := it.Get(store.ExpiresAtField); v.Kind() != 0 && v.Int64() == expiryTime(e) {
			if err := b.Delete(keys[i], nil); err != nil {
				return err
			}
			w.items[i].written = !s.opts.undead
			removed++
		}
		if err := b.Delete(e, nil); err != nil {
			return err
		}
	}
	w.hide(s)
	// Losing a removal in a crash changes nothing: an expired item is never shown.
	if err := s.db.Apply(b, pebble.NoSync); err != nil {
		return err
	}
	s.expired.Add(removed)
	return nil
}
