package embedded

import (
	"context"

	"github.com/cockroachdb/pebble/v2"

	"github.com/parley-chat/parley/server/store"
)

// NewBatch makes a batch of about a size in bytes, for Commit.
func (s *Store) NewBatch(size int) *pebble.Batch { return s.db.NewBatchWithSize(size) }

// Commit applies a batch of records, which lie beside the tables, and deletes rows: package
// records is its caller. It follows the rules of a plan: visible when Commit returns, durable
// when wait, which must be called once, returns nil. frees says that the records make room.
//
// The caller may hold locks of its own over its records. The locks of the rows are taken
// behind these, as by every plan, and no plan waits for a lock of a caller.
func (s *Store) Commit(
	ctx context.Context, b *pebble.Batch, frees bool, rows []store.Key,
) (wait func() error, err error) {
	deletes := make([]store.Write, len(rows))
	for i, k := range rows {
		if err := k.Validate(); err != nil {
			return nil, err
		}
		deletes[i] = store.Write{Op: store.OpDelete, Key: k}
	}
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	defer s.life.RUnlock()
	if !frees && s.full() && (len(rows) == 0 || s.disk.Crowded(s.opts.now())) {
		s.refused.Add(1)
		return nil, store.ErrFull
	}
	t, err := s.apply(b, deletes)
	if err != nil {
		return nil, err
	}
	s.countOutboxDeletes(t.outboxDeletes)
	if !t.written { // nothing to write, but what was seen must be on the disk
		return func() error {
			_ = b.Close()
			return s.barrier.Wait(ctx)
		}, nil
	}
	// A sync needs no open store: closing it syncs what is left.
	return func() error { return s.finish(b, t.ticket) }, nil
}

// Iterate calls f with an iterator over [lower, upper).
func (s *Store) Iterate(ctx context.Context, lower, upper []byte, f func(*pebble.Iterator) error) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	defer s.life.RUnlock()
	return s.iterate(ctx, lower, upper, f)
}

// Reclaim gives the space of what was removed from [lower, upper) back to the disk. It returns when
// that is done, or with the context's error once the store closes.
func (s *Store) Reclaim(ctx context.Context, lower, upper []byte) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	done := make(chan error, 1)
	s.background.Go(func() { done <- s.reclaim(ctx, lower, upper) }) // Close waits for it, and ends it
	s.life.RUnlock()
	return <-done
}

// reclaim merges a range until most of it is gone. A merge goes down to the level that has files of
// the range when it begins: one by which the engine is just moving the range further down, after many
// writes, makes it end too early, with the removals above what they remove.
func (s *Store) reclaim(ctx context.Context, lower, upper []byte) error {
	const tries = 5
	for n := 1; ; n++ {
		before, err := s.db.EstimateDiskUsage(lower, upper)
		if err == nil {
			err = s.compact(ctx, lower, upper)
		}
		if err != nil {
			return translate(err)
		}
		if after, err := s.db.EstimateDiskUsage(lower, upper); err != nil || after <= max(before/16, 2<<20) || n == tries {
			return translate(err)
		}
	}
}

// Size is about how many bytes the files have of [lower, upper), with what was removed there and is
// not merged yet.
func (s *Store) Size(lower, upper []byte) (int64, error) {
	if err := s.begin(context.Background()); err != nil {
		return 0, err
	}
	defer s.life.RUnlock()
	n, err := s.db.EstimateDiskUsage(lower, upper)
	return int64(n), translate(err)
}

// Short reports whether less than twice the reserve is free.
func (s *Store) Short() bool {
	return s.disk.Short()
}
