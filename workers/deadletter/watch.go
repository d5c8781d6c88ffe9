package deadletter

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/lag"
	"github.com/parley-chat/parley/server/store"
)

// Waiting is how many letters are open.
type Waiting struct {
	Letters int           // at most maxWatched
	Oldest  time.Duration // since the first of them failed
}

// maxWatched bounds what a Watch remembers; an operator with so many letters knows.
const maxWatched = 10_000

// watchEvery is how often a Watch counts.
const watchEvery = time.Minute

// Watch counts the open letters for the metrics. It reads each letter once, and later only
// what was done about the open ones.
type Watch struct {
	manager *Manager

	mu      sync.Mutex
	waiting Waiting

	// Used by Run alone.
	next map[int32]int64 // offset to continue at, by partition
	open []Letter        // without their records
}

// Watch makes a Watch.
func (m *Manager) Watch() *Watch { return &Watch{manager: m, next: map[int32]int64{}} }

// Stats returns the last count; it may be called from any goroutine.
func (w *Watch) Stats() Waiting {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.waiting
}

// Run counts until ctx ends.
func (w *Watch) Run(ctx context.Context) error {
	t := time.NewTicker(watchEvery)
	defer t.Stop()
	for {
		if err := w.count(ctx); err != nil && ctx.Err() == nil {
			w.manager.cfg.Logger.Warn("deadletter: open letters cannot be counted", "error", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
	}
}

func (w *Watch) count(ctx context.Context) error {
	m := w.manager
	spans, err := lag.Spans(ctx, m.cfg.Addr, kafka.DeadLetters, m.cfg.Kafka...)
	if err != nil {
		return err
	}
	for i := range spans {
		s := &spans[i]
		s.From = max(s.From, w.next[s.Partition.ID])
	}
	seen := map[string]bool{}
	for _, l := range w.open {
		seen[l.ID()] = true
	}
	err = lag.Read(ctx, m.cfg.Addr, spans, func(r *kafka.Record) error {
		if len(w.open) == maxWatched {
			return errStop // the rest is counted when these are done with
		}
		w.next[r.Partition] = r.Offset + 1
		l, err := letterFrom(r)
		if err != nil || seen[l.ID()] {
			return nil //nolint:nilerr // a record that is no letter is not counted
		}
		seen[l.ID()] = true
		l.Record = &kafka.Record{Topic: l.Record.Topic, Partition: l.Record.Partition, Offset: l.Record.Offset}
		w.open = append(w.open, l)
		if len(w.open)%store.MaxBatchGet == 0 {
			return w.dropHandled(ctx, len(w.open)-store.MaxBatchGet)
		}
		return nil
	}, m.cfg.Kafka...)
	if err != nil && !errors.Is(err, errStop) {
		return err
	}
	if err := w.dropHandled(ctx, 0); err != nil {
		return err
	}
	now, waiting := m.cfg.Clock(), Waiting{Letters: len(w.open)}
	for _, l := range w.open {
		waiting.Oldest = max(waiting.Oldest, now.Sub(l.FailedAt))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting = waiting
	return nil
}

// dropHandled drops letters, from an index on, that are done with.
func (w *Watch) dropHandled(ctx context.Context, from int) error {
	kept := from
	for i := from; i < len(w.open); i += store.MaxBatchGet {
		chunk := w.open[i:min(i+store.MaxBatchGet, len(w.open))]
		if err := w.manager.loadRows(ctx, chunk); err != nil {
			return err
		}
	}
	now := w.manager.cfg.Clock()
	for _, l := range w.open[from:] {
		// The topic no longer has what is older.
		if (l.Status == Open || l.Status == Running) && now.Sub(l.FailedAt) < keepFor {
			l.row = nil
			w.open[kept] = l
			kept++
		}
	}
	clear(w.open[kept:])
	w.open = w.open[:kept]
	return nil
}
