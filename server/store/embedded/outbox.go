package embedded

import (
	"context"

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
		lower, upper := outboxRange()
		if err := s.db.Compact(ctx, lower, upper, false); err != nil && ctx.Err() == nil {
			s.opts.Logger.Error("compact outbox", "error", err)
			return
		}
		s.compactions.Add(1)
	})
}

func outboxRange() (lower, upper []byte) {
	n := tableNumbers[store.Outbox]
	return []byte{spaceItems, n}, []byte{spaceItems, n + 1}
}
