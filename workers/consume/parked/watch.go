package parked

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Bounds limit what is parked of one partition. Beyond them the partition waits, until an
// operator has dead letters of it redriven or discarded: a handler that fails on everything
// must not move a whole topic to the dead letters. Zero numbers take the defaults.
type Bounds struct {
	Keys    int   // 200
	Records int64 // 50,000
	Bytes   int64 // of keys and values; 64 MiB
}

// WithDefaults returns the bounds with defaults in place of zeros.
func (b Bounds) WithDefaults() Bounds {
	return Bounds{Keys: cmp.Or(max(b.Keys, 0), 200), Records: cmp.Or(max(b.Records, 0), 50_000),
		Bytes: cmp.Or(max(b.Bytes, 0), 64<<20)}
}

// Add adds what a row counts.
func (b *Bounds) Add(p *table.Parked) {
	b.Keys++
	b.Records += p.Records
	b.Bytes += p.Bytes
}

// used is how much of the bounds something takes, in percent.
func (b Bounds) used(of Bounds) int64 {
	return max(int64(100*of.Keys/b.Keys), 100*of.Records/b.Records, 100*of.Bytes/b.Bytes)
}

// Standing is what is parked of all groups.
type Standing struct {
	Keys, Records int64
	Oldest        time.Duration // since the first of the keys was parked
	// Fullest is how much of its bounds a partition of a group takes, in percent, of the one
	// that takes most. At 100 it waits.
	Fullest int64
}

// watchEvery is how often a Watch counts.
const watchEvery = 15 * time.Second

// Watch counts for the metrics what is parked. The rows say it, so it does not matter which
// processes consume, or whether one does.
type Watch struct {
	Store  store.Store
	Clock  func() time.Time
	Logger *slog.Logger
	Bounds Bounds // of all groups

	mu  sync.Mutex
	now Standing
}

// Standing returns the last count; it may be called from any goroutine.
func (w *Watch) Standing() Standing {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

// Run counts until ctx ends.
func (w *Watch) Run(ctx context.Context, ready func()) error {
	ready()
	t := time.NewTicker(watchEvery)
	defer t.Stop()
	for {
		if err := w.count(ctx); err != nil && ctx.Err() == nil {
			w.Logger.Warn("consume: parked keys cannot be counted", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

// count reads all rows: there are never more than the bounds of all partitions allow.
func (w *Watch) count(ctx context.Context) error {
	type part struct {
		group string
		kafka.Partition
	}
	now, by := Standing{}, map[part]Bounds{}
	for p, err := range all(ctx, w.Store, Select{}, "") {
		if err != nil {
			return err
		}
		now.Keys++
		now.Records += p.Records
		now.Oldest = max(now.Oldest, w.Clock().Sub(time.UnixMilli(p.Since)))
		at := part{p.Group, kafka.Partition{Topic: p.At, ID: int32(p.Partition)}}
		of := by[at]
		of.Add(&p)
		by[at] = of
	}
	bounds := w.Bounds.WithDefaults()
	for _, of := range by {
		now.Fullest = max(now.Fullest, bounds.used(of))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = now
	return nil
}
