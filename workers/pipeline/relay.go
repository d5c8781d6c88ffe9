package pipeline

import (
	"context"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/eventlog"
	"github.com/parley-chat/parley/server/infra/lifecycle"
	"github.com/parley-chat/parley/server/kafka/versions"
	"github.com/parley-chat/parley/server/store/lease"
	"github.com/parley-chat/parley/workers/observe"
	"github.com/parley-chat/parley/workers/relay"
	"github.com/parley-chat/parley/workers/relay/partitioncount"
	"github.com/parley-chat/parley/workers/relay/slot"
)

// Relay publishes the outbox: a manager of slots, and a relay for each slot that this
// process holds.
type Relay struct {
	Slots     int  // the same in all processes
	Exclusive bool // no other process can hold a slot: the data directory is locked
	// Awaited reports whether anybody but Fanout may be waiting for events; nil: always.
	Awaited func() bool
	// Listen passes on what other processes commit in some shards, until ctx ends. Each
	// commit reaches one process only. Nil where no other process commits, or none can tell.
	Listen func(ctx context.Context, shards []int, nudge func(chat.Commit)) error
}

// relayPart is a Relay in its pipeline.
type relayPart struct {
	Relay
	*Pipeline
	topics    *partitioncount.Watch
	published func(time.Duration) // records the time of a transaction
}

func (c Relay) addTo(_ context.Context, p *Pipeline) error {
	b := p.cfg.Backend
	r := &relayPart{
		Relay: c, Pipeline: p, published: observe.Publish(p.cfg.Metrics),
		topics: partitioncount.New(b.KafkaAddr(), p.cfg.Logger, p.cfg.Schemas.Topics.State, b.KafkaOptions()...),
	}
	slots, err := p.leases(lease.Config{
		Kind: slot.Kind, Slots: c.Slots, Exclusive: c.Exclusive,
		Start: func(ctx context.Context, n int) error { return r.runSlot(ctx, slot.Numbered(n, c.Slots)) },
	})
	if err != nil {
		return err
	}
	observe.Relay(p.cfg.Metrics, &p.relays, slots, r.topics)
	observe.Topics(p.cfg.Metrics, p.cfg.Schemas.Topics)
	p.checks = append(p.checks, func() error {
		return checkProgress("relay",
			max(p.relays.Stats().Stalled, slots.Stats().Stalled))
	})
	p.run("partitions", r.topics.Run)
	p.run("relay", slots.Run)
	return nil
}

// runSlot runs the relay of one slot until ctx ends or another process has the slot.
func (p *relayPart) runSlot(ctx context.Context, s slot.Slot) error {
	b := p.cfg.Backend
	to, err := p.publisher(s.TransactionalID)
	if err != nil {
		return err
	}
	defer to.close()
	r, err := relay.New(relay.Config{
		Store: b.Store, Generation: b.Generation, Serde: p.cfg.Schemas.Serde, Shards: s.Shards, Clock: time.Now,
		Logger: p.cfg.Logger.With("slot", s.Number), Publish: p.topics.Guard(p.measured(to.publish)), Deletes: b.Embedded(),
		Awaited: p.Awaited, Failed: p.cfg.Chats.PublishFailed, Created: observe.Created(p.cfg.Chats),
		Topics: func(ctx context.Context) (versions.State, error) { return versions.Load(ctx, b.Store) },
		Renew: func(ctx context.Context) error {
			if err := to.renew(ctx); err != nil {
				return err
			}
			return slot.Confirm(ctx, b.Store, p.cfg.Process, s)
		},
		Report: func(ctx context.Context, revision int64) error { return p.report(ctx, s, revision) },
	})
	if err != nil {
		return err
	}
	defer p.relays.Add(r)()
	if p.Listen != nil {
		ctx, stop := context.WithCancel(ctx)
		var listening sync.WaitGroup
		listening.Go(func() { p.listen(ctx, s, r) })
		defer listening.Wait()
		defer stop()
	}
	return r.Run(ctx)
}

// measured records the time of a transaction.
func (p *relayPart) measured(
	f func(context.Context, []eventlog.Publication) error,
) func(context.Context, []eventlog.Publication) error {
	return func(ctx context.Context, list []eventlog.Publication) error {
		began := time.Now()
		defer func() { p.published(time.Since(began)) }()
		return f(ctx, list)
	}
}

// listen passes nudges from other processes to the relay of a slot until ctx ends.
func (p *relayPart) listen(ctx context.Context, s slot.Slot, r *relay.Relay) {
	// One name for all slots: without Redis each slot would log a line of its own.
	service := lifecycle.Restarted("nudges", p.cfg.Logger,
		func(ctx context.Context, _ func()) error { return p.Listen(ctx, s.Shards, r.Nudge) })
	_ = service.Run(ctx, func() {})
}

// report records that the relay of a slot publishes by a revision of the topics. It returns an
// error if this process may not publish to the next topic, while that can still be undone.
func (p *relayPart) report(ctx context.Context, s slot.Slot, revision int64) error {
	b := p.cfg.Backend
	state, err := versions.Load(ctx, b.Store)
	if err != nil {
		return err
	}
	if state.Move != nil && state.Frozen(state.Move.Topic) {
		if err := b.CheckPublish(ctx, state.Required()); err != nil {
			return err
		}
	}
	return slot.Report(ctx, b.Store, p.cfg.Process, s, revision)
}
