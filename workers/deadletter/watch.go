package deadletter

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/lag"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/topic"
)

// Waiting is how many dead letters are open.
type Waiting struct {
	DeadLetters int           // of events; at most maxWatched
	Oldest      time.Duration // since the first of them failed
	Topics      int           // dead letters of topics; with the others at most maxWatched
}

// maxWatched bounds what a Watch remembers; an operator with so many dead letters knows.
const maxWatched = 10_000

// watchEvery is how often a Watch counts.
const watchEvery = time.Minute

// Watch counts the open dead letters for the metrics. It reads each dead letter once, and later
// only what was done about the open ones.
type Watch struct {
	manager *Manager
	every   time.Duration

	mu      sync.Mutex
	waiting Waiting

	// Used by Run alone.
	next  map[int32]int64               // offset to continue at, by partition
	after map[commitlog.Partition]int64 // and of topics of dead letters
	open  []DeadLetter                  // without their records
}

// Watch makes a Watch.
func (m *Manager) Watch() *Watch {
	return &Watch{manager: m, every: watchEvery, next: map[int32]int64{}, after: map[commitlog.Partition]int64{}}
}

// Stats returns the last count; it may be called from any goroutine.
func (w *Watch) Stats() Waiting {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.waiting
}

// Run counts until ctx ends.
func (w *Watch) Run(ctx context.Context, ready func()) error {
	ready()
	t := time.NewTicker(w.every)
	defer t.Stop()
	for {
		if err := w.count(ctx); err != nil && ctx.Err() == nil {
			w.manager.cfg.Logger.Warn("deadletter: open letters cannot be counted", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
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
		l, err := deadLetterFrom(r)
		if err != nil {
			return nil //nolint:nilerr // a record that is no letter is not counted
		}
		return w.add(ctx, l, seen)
	}, m.cfg.Kafka...)
	if err != nil && !errors.Is(err, errStop) {
		return err
	}
	// Dead letters of events do not wait for servers that have topics.
	unread := w.countTopics(ctx, seen)
	if err := w.dropHandled(ctx, 0); err != nil {
		return errors.Join(unread, err)
	}
	now, waiting := m.cfg.Clock(), Waiting{}
	for _, l := range w.open {
		if l.Source == Topics {
			waiting.Topics++
			continue
		}
		waiting.DeadLetters++
		waiting.Oldest = max(waiting.Oldest, now.Sub(l.FailedAt))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting = waiting
	return unread
}

// add remembers a dead letter that has come.
func (w *Watch) add(ctx context.Context, l DeadLetter, seen map[string]bool) error {
	if seen[l.ID()] {
		return nil
	}
	seen[l.ID()] = true
	l.Record = &kafka.Record{Topic: l.Record.Topic, Partition: l.Record.Partition, Offset: l.Record.Offset}
	if l.topic != nil {
		l.topic.Message = nil
	}
	w.open = append(w.open, l)
	if len(w.open)%store.MaxBatchGet == 0 {
		return w.dropHandled(ctx, len(w.open)-store.MaxBatchGet)
	}
	return nil
}

// countTopics reads what has come to topics of dead letters. Parked messages are counted
// where they are parked.
func (w *Watch) countTopics(ctx context.Context, seen map[string]bool) error {
	of := w.manager.cfg.Topics
	if of == nil {
		return nil
	}
	if len(w.after) > maxSeen {
		clear(w.after) // of topics that are gone, mostly; open dead letters are remembered
	}
	t := topicDeadLetters{of}
	news := topic.DeadLetterSelection{After: w.after, Dead: true}
	err := of.Scan(ctx, news, topic.DeadLetterPosition{}, func(l topic.DeadLetter) error {
		if len(w.open) == maxWatched {
			return errStop
		}
		w.after[commitlog.Partition{Topic: l.Number, Number: l.LogPosition.Partition}] = l.LogPosition.Position + 1
		return w.add(ctx, t.deadLetter(l), seen)
	})
	if errors.Is(err, errStop) {
		return nil
	}
	return err
}

// dropHandled drops dead letters, from an index on, that are done with.
func (w *Watch) dropHandled(ctx context.Context, from int) error {
	kept := from
	for i := from; i < len(w.open); i += store.MaxBatchGet {
		chunk := w.open[i:min(i+store.MaxBatchGet, len(w.open))]
		if err := w.manager.loadRows(ctx, chunk); err != nil {
			return err
		}
	}
	gone := w.gone(ctx, w.open[from:])
	now := w.manager.cfg.Clock()
	for i, l := range w.open[from:] {
		if (l.Status == Open || l.Status == Running) && now.Sub(l.FailedAt) < keepFor && !gone[i] {
			l.row = nil
			w.open[kept] = l
			kept++
		}
	}
	clear(w.open[kept:])
	w.open = w.open[:kept]
	return nil
}

// gone reports of each dead letter whether its topic is gone: it no longer has what is older,
// and may be removed itself. While that cannot be found out the dead letter counts.
func (w *Watch) gone(ctx context.Context, list []DeadLetter) []bool {
	gone := make([]bool, len(list))
	var of []topic.DeadLetter
	var at []int
	for i := range list {
		if list[i].topic != nil {
			of, at = append(of, list[i].topic.DeadLetter), append(at, i)
		}
	}
	if len(of) == 0 {
		return gone
	}
	there, err := w.manager.cfg.Topics.There(ctx, of)
	if err != nil {
		w.manager.cfg.Logger.Debug("deadletter: it is not known which topics there are", "error", err)
		return gone
	}
	for n, i := range at {
		gone[i] = !there[n]
	}
	return gone
}
