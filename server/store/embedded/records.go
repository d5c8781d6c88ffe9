package embedded

import (
	"context"

	"github.com/cockroachdb/pebble/v2"

	"github.com/parley-chat/parley/server/store"
)

// NewBatch makes a batch of about a size in bytes, for Commit.
func (s *Store) NewBatch(size int) *pebble.Batch { return s.db.NewBatchWithSize(size) }

// Commit applies a batch of records, which lie beside the tables: package records is its
// caller. It follows the rules of a plan: visible when Commit returns, durable when wait,
// which must be called once, returns nil. frees says that the batch makes room.
func (s *Store) Commit(ctx context.Context, b *pebble.Batch, frees bool) (wait func() error, err error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	defer s.life.RUnlock()
	if !frees && s.full() {
		s.refused.Add(1)
		return nil, store.ErrFull
	}
	ticket, err := s.publish(b)
	if err != nil {
		return nil, err
	}
	// A sync needs no open store: closing it syncs what is left.
	return func() error { return s.finish(b, ticket) }, nil
}

// Iterate calls f with an iterator over [lower, upper).
func (s *Store) Iterate(ctx context.Context, lower, upper []byte, f func(*pebble.Iterator) error) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	defer s.life.RUnlock()
	return s.iterate(ctx, lower, upper, f)
}
