package embedded

import (
	"context"
	"errors"

	"github.com/parley-chat/parley/server/store"
)

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
		lower, upper := outboxRange()
		if err := s.compact(context.Background(), lower, upper); err != nil {
			if !errors.Is(err, context.Canceled) {
				s.opts.Logger.Error("compact outbox", "error", err)
			}
			return
		}
		s.compactions.Add(1)
	})
}

// compact merges a range into the lowest level, with what is in memory of it, until the store
// closes, which must not wait for it. It is a background task.
func (s *Store) compact(ctx context.Context, lower, upper []byte) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stopped := make(chan struct{})
	defer close(stopped)
	s.background.Go(func() {
		select {
		case <-s.stop:
			cancel()
		case <-stopped:
		}
	})
	return translate(s.db.Compact(ctx, lower, upper, false))
}

func outboxRange() (lower, upper []byte) {
	n := tableNumbers[store.Outbox]
	return []byte{spaceItems, n}, []byte{spaceItems, n + 1}
}
