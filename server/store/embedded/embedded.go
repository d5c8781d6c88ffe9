// Package embedded is the storage engine for one machine: Pebble in the data
// directory, durable by fsync with group commit.
//
// It owns the data directory (lock, FORMAT, generation), the encoding of keys, the removal of
// expired items, the compaction of the outbox and the watch on free space. It owns neither the
// contract, which is package store's, nor any row: those are package table's.
//
// # Concurrency
//
// A plan locks the stripes of all its items (4,096 stripes, in ascending order, so that
// plans cannot deadlock), reads, evaluates, applies one batch, unlocks, and only then waits
// for the sync. Early release is safe: the log has the order of the commits, so a plan that
// depends on another is synced after it. A visible write may thus not be durable yet; see
// package barrier for how readers wait. A stripe also caches what is read most, under the
// same lock (cache.go).
//
// Lock order: Store.life (shared by every call, exclusive in Close), then stripes in
// ascending order, then the barrier's. Pebble's own locks come last. Background work (the
// sweeper, a compaction) takes no life; Close stops it before it closes Pebble.
package embedded

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded/barrier"
	"github.com/parley-chat/parley/server/store/embedded/iowatch"
	"github.com/parley-chat/parley/server/store/embedded/space"
)

const stripeCount = 4096

// Store is the engine.
type Store struct {
	opts       Options
	db         *pebble.DB
	lock       io.Closer
	generation string
	ancestors  []ancestor   // of the generation, the newest first
	shown      atomic.Int64 // see Shown
	lacks      error        // of a read-only store: the missing parts by its seal
	sealing    sync.Mutex   // of SEAL and the probes; taken alone
	probes     uint64       // of the seal; guarded by sealing
	seed       maphash.Seed
	stripes    [stripeCount]stripe
	uncached   atomic.Bool // the database changes below the contract: nothing cached counts
	blocks     int64       // bytes of the cache that memtables do not take
	unfiltered atomic.Bool // filters would take too many of them
	barrier    *barrier.Barrier
	disk       space.Watch
	io         *iowatch.Watch

	life       sync.RWMutex // shared by every call, exclusive in Close
	closed     bool
	stop       chan struct{}
	background sync.WaitGroup

	outboxDeletes atomic.Int64
	compacting    atomic.Bool
	damaged       atomic.Bool // a file could not be read as it was written

	plans, failed, refused, expired, compactions atomic.Int64
}

var _ store.Store = (*Store)(nil)

// Stats are counters since the engine was opened, and gauges.
type Stats struct {
	Plans       int64  // plans and batches committed
	Failed      int64  // plans with failed conditions
	Refused     int64  // plans and batches refused for want of space
	Expired     int64  // items removed after their time
	Compactions int64  // of the outbox
	Unsynced    int64  // gauge: committed, not on disk yet
	Full        bool   // gauge: writes are refused
	DiskBytes   uint64 // gauge: files of the store
	LogBytes    uint64 // bytes written to the log
}

// Stats returns the counters; all zero once the store is closed.
func (s *Store) Stats() Stats {
	if s.begin(context.Background()) != nil {
		return Stats{}
	}
	defer s.life.RUnlock()
	m := s.db.Metrics()
	return Stats{
		Plans: s.plans.Load(), Failed: s.failed.Load(), Refused: s.refused.Load(), Expired: s.expired.Load(),
		Compactions: s.compactions.Load(), Unsynced: int64(s.barrier.InFlight()), Full: s.disk.Refusing(),
		DiskBytes: m.DiskSpaceUsage(), LogBytes: m.WAL.BytesWritten,
	}
}

// begin starts a call; without an error the caller must unlock s.life.
func (s *Store) begin(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.life.RLock()
	if s.closed {
		s.life.RUnlock()
		return store.ErrClosed
	}
	return nil
}

// translate turns an error of Pebble or of a file into one of the contract.
func translate(err error) error {
	switch {
	case err == nil, errors.Is(err, store.ErrCorrupt), errors.Is(err, context.Canceled),
		errors.Is(err, context.DeadlineExceeded):
		return err
	case pebble.IsCorruptionError(err):
		return fmt.Errorf("%w: %w", store.ErrCorrupt, plain(err))
	}
	return fmt.Errorf("%w: %w", store.ErrUnavailable, err)
}

// Durable implements store.Store.
func (s *Store) Durable(ctx context.Context) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	defer s.life.RUnlock()
	if s.opts.noWait {
		return nil
	}
	return s.barrier.Wait(ctx)
}

// Close implements store.Store. It waits for calls in progress.
func (s *Store) Close() error {
	s.life.Lock()
	if s.closed {
		s.life.Unlock()
		return nil
	}
	s.closed = true
	s.life.Unlock()
	close(s.stop)
	s.background.Wait()
	return errors.Join(s.db.Close(), s.lock.Close())
}
