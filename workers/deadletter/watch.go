package deadletter

import (
	"context"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/inspect"
	"github.com/parley-chat/parley/server/store"
)

// Waiting is how many letters are open.
type Waiting struct {
	Letters int           // at most maxWatched
	Oldest  time.Duration // since the first of them failed
}

// maxWatched bounds what a Watch remembers; an operator who has so many knows.
const maxWatched = 10_000

// watchEvery is how often a Watch looks.
const watchEvery = time.Minute

// Watch keeps count of open letters for the metrics. It reads each letter once, and
// afterwards only what became of those that are open.
type Watch struct {
	office *Office

	mu      sync.Mutex
	waiting Waiting

	// By Run only.
	next map[int32]int64 // offset to read on from, by partition
	open []Letter        // without their records
}

// Watch makes a Watch.
func (o *Office) Watch() *Watch { return &Watch{office: o, next: map[int32]int64{}} }

// Stats returns what the last look has found; it may be called by anybody.
func (w *Watch) Stats() Waiting {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.waiting
}

// Run looks until ctx ends.
func (w *Watch) Run(ctx context.Context) error {
	t := time.NewTicker(watchEvery)
	defer t.Stop()
	for {
		if err := w.look(ctx); err != nil && ctx.Err() == nil {
			w.office.cfg.Logger.Warn("deadletter: open letters cannot be counted", "error", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
	}
}

func (w *Watch) look(ctx context.Context) error {
	o := w.office
	spans, err := inspect.Spans(ctx, o.cfg.Addr, kafka.DeadLetters, o.cfg.Kafka...)
	if err != nil {
		return err
	}
	for i := range spans {
		s := &spans[i]
		s.From = max(s.From, w.next[s.Partition.ID])
	}
	known := map[string]bool{}
	for _, l := range w.open {
		known[l.ID] = true
	}
	err = inspect.Read(ctx, o.cfg.Addr, spans, func(r *kafka.Record) error {
		if len(w.open) == maxWatched {
			return errEnough // the rest comes when these are done with
		}
		w.next[r.Partition] = r.Offset + 1
		if l, err := letterFrom(r); err == nil && !known[l.ID] {
			known[l.ID] = true
			l.Record = &kafka.Record{Topic: l.Record.Topic, Partition: l.Record.Partition, Offset: l.Record.Offset}
			w.open = append(w.open, l)
			if len(w.open)%store.MaxBatchGet == 0 {
				return w.settle(ctx, len(w.open)-store.MaxBatchGet)
			}
		}
		return nil
	}, o.cfg.Kafka...)
	if err != nil && err != errEnough { //nolint:errorlint // our own, as it is
		return err
	}
	if err := w.settle(ctx, 0); err != nil {
		return err
	}
	now, sum := o.cfg.Clock(), Waiting{Letters: len(w.open)}
	for _, l := range w.open {
		sum.Oldest = max(sum.Oldest, now.Sub(l.FailedAt))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting = sum
	return nil
}

// settle forgets letters, from an index on, that are done with.
func (w *Watch) settle(ctx context.Context, from int) error {
	kept := from
	for i := from; i < len(w.open); i += store.MaxBatchGet {
		chunk := w.open[i:min(i+store.MaxBatchGet, len(w.open))]
		if err := w.office.outcomes(ctx, chunk); err != nil {
			return err
		}
	}
	now := w.office.cfg.Clock()
	for _, l := range w.open[from:] {
		// What is older has left the topic.
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
