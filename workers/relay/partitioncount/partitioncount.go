// Package partitioncount checks, while a relay runs, that topics have their declared number of
// partitions.
//
// The partition of a chat follows from the declared number. If an operator adds partitions to
// a topic, readers and other producers that use the real number expect the chat in another
// partition. So the relay publishes nothing to that topic until the numbers agree again; the
// outbox keeps the events, and other topics are published. Using the new number instead would
// break the order of every chat that moves.
//
// The package owns the check and the refusal; package relay decides what happens to the
// chats that wait. Concurrency: all methods are safe for concurrent use.
package partitioncount

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
	"github.com/parley-chat/parley/server/eventlog"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/lag"
	"github.com/parley-chat/parley/server/kafka/versions"
)

const (
	checkEvery   = 10 * time.Second
	checkTimeout = 10 * time.Second
)

// ErrCount is the error of a topic that has another number of partitions than declared.
var ErrCount = errors.New("the topic has another number of partitions than declared")

// Watch finds the topics of events that have another number of partitions than declared.
type Watch struct {
	addr    string
	options []kafka.Option
	log     *slog.Logger
	state   func() versions.State

	mu         sync.RWMutex
	mismatched map[string]count // by topic
}

// count is how many partitions a topic has, and how many it should have.
type count struct{ has, declared int }

// New makes a Watch of the cluster at an address. state returns which topics events are
// published to.
func New(addr string, log *slog.Logger, state func() versions.State, options ...kafka.Option) *Watch {
	return &Watch{addr: addr, options: options, log: log, state: state, mismatched: map[string]count{}}
}

// Repartitioned returns how many topics have another number of partitions than declared.
func (w *Watch) Repartitioned() int64 {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return int64(len(w.mismatched))
}

// Run checks periodically until ctx ends. While the cluster does not answer, the last result
// remains.
func (w *Watch) Run(ctx context.Context, ready func()) error {
	ready()
	t := time.NewTicker(checkEvery)
	defer t.Stop()
	for {
		if err := w.Check(ctx); err != nil && ctx.Err() == nil {
			w.log.Warn("relay: cannot count the partitions of topics", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

// Check checks once.
func (w *Watch) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	declared := w.declared()
	have, err := lag.Counts(ctx, w.addr, slices.Collect(maps.Keys(declared)), w.options...)
	if err != nil {
		return err
	}
	w.compare(have, declared)
	return nil
}

// declared returns the present topics of events with their numbers of partitions.
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
	// it is no longer published to
	maps.DeleteFunc(w.mismatched, func(topic string, _ count) bool { return list[topic] == 0 })
	for topic, n := range have {
		declared := list[topic]
		was, odd := w.mismatched[topic]
		switch {
		case n != declared && (!odd || was.has != n):
			w.mismatched[topic] = count{n, declared}
			w.log.Error("relay: a topic has another number of partitions than declared; nothing is published there", "topic",
				topic, "partitions", n, "declared", declared)
		case n == declared && odd:
			delete(w.mismatched, topic)
			w.log.Info("relay: a topic has its declared number of partitions again", "topic", topic, "partitions", n)
		}
	}
}

// Guard wraps publish. It refuses a transaction with records of repartitioned topics. The
// error is a *kafka.PartitionError with their partitions, so that a relay can publish the
// rest.
func (w *Watch) Guard(
	publish func(context.Context, []eventlog.Publication) error,
) func(context.Context, []eventlog.Publication) error {
	return func(ctx context.Context, list []eventlog.Publication) error {
		if refused := w.refused(list); refused != nil {
			return refused
		}
		return publish(ctx, list)
	}
}

func (w *Watch) refused(list []eventlog.Publication) error {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if len(w.mismatched) == 0 {
		return nil
	}
	e := &kafka.PartitionError{}
	for _, publication := range list {
		for _, r := range publication.Records {
			n, odd := w.mismatched[r.Topic]
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
	}
	if e.Err == nil {
		return nil
	}
	return e
}
