package embedded

import ()

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

