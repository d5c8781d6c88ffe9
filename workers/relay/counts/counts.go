// Package counts watches, while a relay runs, that topics have as many partitions as are
// declared.
//
// The partition of a chat is made of the declared number. Where somebody adds partitions
// to a topic, readers and other producers that go by the real number look for the chat
// elsewhere: nothing more is published there until the numbers agree again. What is
// published elsewhere goes on, and the outbox keeps the rest. Going by the new number
// instead would tear the order of every chat that moves.
//
// It owns the look and the refusal; what becomes of chats that wait is package relay's
// matter. Concurrency: all methods may be called by anybody.
package counts

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/inspect"
	"github.com/parley-chat/parley/server/kafka/versions"
)

const (
	lookEvery = 10 * time.Second
	lookTime  = 10 * time.Second
)

// ErrCount says that a topic has another number of partitions than declared.
var ErrCount = errors.New("the topic has another number of partitions than declared")

// Watch knows which topics of events have another number of partitions than declared.
type Watch struct {
	addr    string
	options []kafka.Option
	log     *slog.Logger
	state   func() versions.State

	mu  sync.RWMutex
	odd map[string]count // by topic
}

// count is how many partitions a topic has, and how many it should have.
type count struct{ has, declared int }

// New makes a Watch of the cluster at an address; state says which topics events are
// published to now.
func New(addr string, log *slog.Logger, state func() versions.State, options ...kafka.Option) *Watch {
	return &Watch{addr: addr, options: options, log: log, state: state, odd: map[string]count{}}
}

// Odd is how many topics have another number of partitions than declared.
func (w *Watch) Repartitioned() int64 {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return int64(len(w.odd))
}

// Run looks until ctx ends. While the cluster does not answer, what was found stays.
func (w *Watch) Run(ctx context.Context) error {
	t := time.NewTicker(lookEvery)
	defer t.Stop()
	for {
		if err := w.Check(ctx); err != nil && ctx.Err() == nil {
			w.log.Warn("relay: the partitions of topics cannot be counted", "error", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
	}
}

// Look looks once.
func (w *Watch) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	declared := w.declared()
	have, err := inspect.Counts(ctx, w.addr, slices.Collect(maps.Keys(declared)), w.options...)
	if err != nil {
		return err
	}
	w.compare(have, declared)
	return nil
}

// declared are the topics of events as they are now, with their numbers of partitions.
func (w *Watch) declared() map[string]int {
	state, list := w.state(), map[string]int{}
	for _, s := range event.Specs() {
		v := state.Current(s.Topic)
		list[versions.Name(s.Topic, v.Number)] = int(v.Partitions)
	}
	return list
}

func (w *Watch) compare(have, list map[string]int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.odd, func(topic string, _ count) bool { return list[topic] == 0 }) // nothing is published there any more
	for topic, n := range have {
		declared := list[topic]
		was, odd := w.odd[topic]
		switch {
		case n != declared && (!odd || was.has != n):
			w.odd[topic] = count{n, declared}
			w.log.Error("relay: a topic has another number of partitions than declared; nothing is published there", "topic", topic, "partitions", n, "declared", declared)
		case n == declared && odd:
			delete(w.odd, topic)
			w.log.Info("relay: a topic has its declared number of partitions again", "topic", topic, "partitions", n)
		}
	}
}

// Guard refuses records of topics whose number of partitions is another one, before
// publish sees any of the transaction. The error is a *kafka.PartitionError with their
// partitions, so that a relay goes on with the rest.
func (w *Watch) Guard(publish func(context.Context, []*kafka.Record) error) func(context.Context, []*kafka.Record) error {
	return func(ctx context.Context, records []*kafka.Record) error {
		if refused := w.refused(records); refused != nil {
			return refused
		}
		return publish(ctx, records)
	}
}

func (w *Watch) refused(records []*kafka.Record) error {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if len(w.odd) == 0 {
		return nil
	}
	e := &kafka.PartitionError{}
	for _, r := range records {
		n, odd := w.odd[r.Topic]
		if !odd {
			continue
		}
		if e.Err == nil {
			e.Err = fmt.Errorf("%w: %s has %d, declared are %d", ErrCount, r.Topic, n.has, n.declared)
		}
		if p := (kafka.Partition{Topic: r.Topic, ID: r.Partition}); !slices.Contains(e.Partitions, p) {
			e.Partitions = append(e.Partitions, p)
		}
	}
	if e.Err == nil {
		return nil
	}
	return e
}
