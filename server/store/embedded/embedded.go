// Package embedded is the storage engine for one machine: Pebble in the data
// directory, durable by fsync with group commit.
//
// It owns the data directory (lock, FORMAT, generation), the encoding of keys and
// items, the expiry of items and the compaction of the outbox; the contract is
// package store's, and no row is known here.
//
// # Concurrency
//
// A plan locks the stripes of all its items (4,096 stripes, in ascending order,
// so that plans cannot deadlock), reads, evaluates, applies one batch, unlocks,
// and only then waits for the sync. Early release is safe: the log has the order
// of the commits, so whoever built on a plan is synced after it. What is visible
// may thus not be durable yet; see mark for how readers wait. Lock order: Store.life
// (shared), then stripes, then mark.mu.
package embedded

import (
	"context"
	"errors"
	"hash/maphash"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/parley-chat/parley/server/store"
)

const stripes = 4096

// Store is the engine.
type Store struct {
	opts       Options
	db         *pebble.DB
	lock       io.Closer
	generation string
	seed       maphash.Seed
	stripe     [stripes]sync.Mutex
	mark       mark
	disk       diskWatch

	life       sync.RWMutex // held shared by every call; Close takes it for itself
	closed     bool
	stop       chan struct{}
	background sync.WaitGroup

	outboxDeletes atomic.Int64
	compacting    atomic.Bool
	compactions   atomic.Int64
	plans         atomic.Int64
	failed        atomic.Int64
}

var _ store.Store = (*Store)(nil)

// Generation is the random id that this store got when it was created or restored.
func (s *Store) Generation() string { return s.generation }

// Stats are counters since the engine was opened.
type Stats struct {
	Plans       int64 // committed
	Failed      int64 // with failed conditions
	Compactions int64 // of the outbox
	DiskBytes   uint64
}

// Stats returns the counters.
func (s *Store) Stats() Stats {
	if s.begin(context.Background()) != nil {
		return Stats{}
	}
	defer s.life.RUnlock()
	return Stats{Plans: s.plans.Load(), Failed: s.failed.Load(), Compactions: s.compactions.Load(), DiskBytes: s.db.Metrics().DiskSpaceUsage()}
}

// begin admits a call; the caller must release s.life if there was no error.
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

// load reads an item by its encoded key, expired or not.
func (s *Store) load(key []byte) (store.Item, error) {
	v, closer, err := s.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	it, err := decodeItem(v)
	return it, errors.Join(err, closer.Close())
}

func (s *Store) live(key []byte, now int64) (store.Item, error) {
	it, err := s.load(key)
	if err != nil || store.Expired(it, now) {
		return nil, err
	}
	return it, nil
}

// Get implements store.Store; both consistencies are the same here.
func (s *Store) Get(ctx context.Context, key store.Key, _ store.Consistency) (store.Item, error) {
	if err := key.Validate(); err != nil {
		return nil, err
	}
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	defer s.life.RUnlock()
	return s.live(appendKey(make([]byte, 0, 96), key), s.opts.Clock().Unix())
}

// BatchGet implements store.Store.
func (s *Store) BatchGet(ctx context.Context, keys []store.Key, _ store.Consistency) ([]store.Item, error) {
	if err := store.ValidateKeys(keys); err != nil {
		return nil, err
	}
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	defer s.life.RUnlock()
	now := s.opts.Clock().Unix()
	items := make([]store.Item, len(keys))
	buf := make([]byte, 0, 96)
	var err error
	for i, k := range keys {
		if items[i], err = s.live(appendKey(buf[:0], k), now); err != nil {
			return nil, err
		}
	}
	return items, nil
}

// Query implements store.Store.
func (s *Store) Query(ctx context.Context, q store.Query) (store.Page, error) {
	if err := q.Validate(); err != nil {
		return store.Page{}, err
	}
	if err := s.begin(ctx); err != nil {
		return store.Page{}, err
	}
	defer s.life.RUnlock()
	prefix := appendPartition(make([]byte, 0, 96), q.Table, q.PK)
	at := func(sk string) []byte { return append(slices.Clip(prefix), sk...) }
	// The bytes after a key's: nothing lies between the key and it.
	after := func(sk string) []byte { return append(at(sk), 0) }
	lower, upper := at(q.From), append(slices.Clip(prefix[:len(prefix)-1]), 1)
	if q.To != "" {
		upper = after(q.To)
	}
	if q.Cursor != "" && q.Descending {
		if c := at(q.Cursor); string(c) < string(upper) {
			upper = c
		}
	} else if q.Cursor != "" {
		if c := after(q.Cursor); string(c) > string(lower) {
			lower = c
		}
	}
	if string(lower) >= string(upper) {
		return store.Page{}, nil
	}
	pager := store.NewPager(q.Limit, s.opts.Clock())
	err := s.iterate(ctx, lower, upper, q.Descending, func(key []byte, it store.Item) (bool, error) {
		k := store.Key{Table: q.Table, PK: q.PK, SK: string(key[len(prefix):])}
		return pager.Add(store.Row{Key: k, Item: it}, k.SK), nil
	})
	return pager.Page, err
}

// Scan implements store.Store.
func (s *Store) Scan(ctx context.Context, q store.Scan) (store.Page, error) {
	if err := q.Validate(); err != nil {
		return store.Page{}, err
	}
	if err := s.begin(ctx); err != nil {
		return store.Page{}, err
	}
	defer s.life.RUnlock()
	lower, upper := []byte{spaceItems, tableNumbers[q.Table]}, []byte{spaceItems, tableNumbers[q.Table] + 1}
	if q.Cursor != "" {
		lower = append(append(lower, q.Cursor...), 0)
	}
	pager := store.NewPager(q.Limit, s.opts.Clock())
	err := s.iterate(ctx, lower, upper, false, func(key []byte, it store.Item) (bool, error) {
		k, err := parseKey(q.Table, key)
		if err != nil || store.Segment(k.PK, q.Segments) != q.Segment {
			return true, err
		}
		return pager.Add(store.Row{Key: k, Item: it}, k.PK+"\x00"+k.SK), nil
	})
	return pager.Page, err
}

// iterate calls f for the items in [lower, upper) until it returns false.
func (s *Store) iterate(ctx context.Context, lower, upper []byte, descending bool, f func(key []byte, it store.Item) (bool, error)) (err error) {
	iter, err := s.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, iter.Close()) }()
	first, next := iter.First, iter.Next
	if descending {
		first, next = iter.Last, iter.Prev
	}
	n := 0
	for ok := first(); ok; ok = next() {
		if n++; n%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		v, err := iter.ValueAndErr()
		if err != nil {
			return err
		}
		it, err := decodeItem(v)
		if err != nil {
			return err
		}
		if more, err := f(iter.Key(), it); !more || err != nil {
			return err
		}
	}
	return iter.Error()
}

// Durable implements store.Store.
func (s *Store) Durable(ctx context.Context) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	defer s.life.RUnlock()
	return s.mark.wait(ctx)
}

// Close implements store.Store. It waits for calls under way.
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

// minFree is the part of the disk that must be free for writes, in percent.
const minFree = 5

// diskWatch asks the file system now and then how much is free.
type diskWatch struct {
	next atomic.Int64 // unix ms of the next question
	full atomic.Bool
}

const diskEvery = 2 * time.Second

// full reports whether less than minFree percent of the disk is free. File
// systems that do not know count as free.
func (s *Store) full() bool {
	now := time.Now().UnixMilli()
	if next := s.disk.next.Load(); now >= next && s.disk.next.CompareAndSwap(next, now+diskEvery.Milliseconds()) {
		u, err := s.opts.FS.GetDiskUsage(s.opts.Dir)
		full := err == nil && u.TotalBytes > 0 && u.AvailBytes*100 < u.TotalBytes*minFree
		if full != s.disk.full.Swap(full) {
			s.opts.Logger.Warn("free disk space changed", "writes_refused", full, "free_bytes", u.AvailBytes)
		}
	}
	return s.disk.full.Load()
}
