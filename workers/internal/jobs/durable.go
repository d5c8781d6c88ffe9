package jobs

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/versions"
	"github.com/parley-chat/parley/server/lifecycle"
	"github.com/parley-chat/parley/server/link"
	"github.com/parley-chat/parley/server/routing"
	"github.com/parley-chat/parley/server/telemetry"
	"github.com/parley-chat/parley/workers/consume"
	"github.com/parley-chat/parley/workers/fanout"
	"github.com/parley-chat/parley/workers/observe"
	"github.com/parley-chat/parley/workers/reconcile"
	"github.com/parley-chat/parley/workers/relay"
	"github.com/parley-chat/parley/workers/relay/counts"
	"github.com/parley-chat/parley/workers/relay/slot"
)

// standstill is how long a job may stand still before its process is not ready.
const standstill = time.Minute

func gettingOn(job string, stalled time.Duration) error {
	if stalled > standstill {
		return errors.New(job + " does not get on")
	}
	return nil
}

// relay makes the services that bring the outbox to Kafka: a manager of slots, and an ear
// for nudges.
func (p *program) relay() ([]lifecycle.Service, error) {
	set, lifecycles := &relay.Set{}, p.lifecycles()
	watch := counts.New(p.eng.KafkaAddr(), p.cfg.Logger, p.topics.State, p.eng.KafkaOptions()...)
	p.published = observe.Publish(p.metrics)
	m, err := slot.New(slot.Config{
		Store: p.eng.Store, Holder: p.process, Slots: p.cfg.Slots, Logger: p.cfg.Logger,
		Start: func(ctx context.Context, s slot.Slot) error { return p.runSlot(ctx, set, watch, lifecycles, s) },
	})
	if err != nil {
		return nil, err
	}
	observe.Relay(p.metrics, set, m, watch)
	observe.Topics(p.metrics, p.topics)
	p.ready = append(p.ready, func() error {
		return gettingOn("relay", max(set.Stats().Stalled, m.Stats().Stalled))
	})
	return []lifecycle.Service{
		lifecycle.Restarted("partitions", p.cfg.Logger, watch.Run),
		{Name: "relay", Run: func(ctx context.Context, ready func()) error {
			ready()
			return m.Run(ctx)
		}},
	}, nil
}

// lifecycles are the metrics of chats, which several jobs feed.
func (p *program) lifecycles() *telemetry.Lifecycle {
	if p.counts == nil {
		p.counts = p.metrics.Lifecycle()
	}
	return p.counts
}

// hear tells a slot's relay of what servers commit in its shards, until ctx ends. Other
// slots' nudges do not come here: each goes to one process, however many there are.
func (p *program) hear(ctx context.Context, r *relay.Relay, s slot.Slot) {
	// The same name for all: without Redis each slot would have a line of its own.
	ear := lifecycle.Restarted("nudges", p.cfg.Logger, func(ctx context.Context) error {
		return p.eng.Routing.Subscribe(ctx, s.Shards, nil, func(n routing.Nudge) {
			// What is no commit, or another version's, is found by the sweep.
			if c, err := link.DecodeCommit(p.eng.Generation, n.Payload); err == nil {
				r.Nudge(c)
			}
		})
	})
	_ = ear.Run(ctx, func() {})
}

// runSlot runs the relay of one slot until ctx ends or another process takes over.
func (p *program) runSlot(ctx context.Context, set *relay.Set, watch *counts.Watch, lifecycles *telemetry.Lifecycle, s slot.Slot) error {
	publisher, err := kafka.NewPublisher(p.eng.KafkaAddr(), s.TransactionalID, p.eng.KafkaOptions()...)
	if err != nil {
		return err
	}
	defer publisher.Close()
	r, err := relay.New(relay.Config{
		Store: p.eng.Store, Serde: p.serde, Shards: s.Shards, Clock: time.Now, Logger: p.cfg.Logger.With("slot", s.Number),
		Publish: watch.Guard(func(ctx context.Context, records []*kafka.Record) error {
			began := time.Now()
			defer func() { p.published(time.Since(began)) }()
			return publisher.Publish(ctx, records)
		}),
		Failed: lifecycles.PublishFailed, Created: observe.Created(lifecycles),
		Topics: func(ctx context.Context) (versions.State, error) { return versions.Load(ctx, p.eng.Store) },
		Renew: func(ctx context.Context) error {
			if err := publisher.Renew(ctx); err != nil {
				return err
			}
			return slot.Confirm(ctx, p.eng.Store, p.process, s)
		},
		Report: func(ctx context.Context, revision int64) error { return p.report(ctx, s, revision) },
	})
	if err != nil {
		return err
	}
	defer set.Add(r)()
	if p.eng.Routing != nil {
		ctx, stop := context.WithCancel(ctx)
		var hearing sync.WaitGroup
		hearing.Go(func() { p.hear(ctx, r, s) })
		defer hearing.Wait()
		defer stop()
	}
	return r.Run(ctx)
}

// report records that the relay of a slot publishes by a revision of the topics. It returns an
// error if this process may not publish to the next topic, while that can still be undone.
func (p *program) report(ctx context.Context, s slot.Slot, revision int64) error {
	state, err := versions.Load(ctx, p.eng.Store)
	if err != nil {
		return err
	}
	if state.Move != nil && state.Frozen(state.Move.Topic) {
		if err := p.eng.CheckPublish(ctx, state.Required()); err != nil {
			return err
		}
	}
	return slot.Report(ctx, p.eng.Store, p.process, s, revision)
}

// parallel is how many chats fanout works on at a time; it waits for Redis.
const parallel = 32

// fanout makes the services that tell servers of what Kafka has.
func (p *program) fanout() ([]lifecycle.Service, error) {
	l, services, err := p.connect()
	if err != nil {
		return nil, err
	}
	letters, err := kafka.NewProducer(p.eng.KafkaAddr(), p.eng.KafkaOptions()...)
	if err != nil {
		return nil, err
	}
	p.closers = append(p.closers, letters.Close)
	e, err := consume.New(consume.Config{
		Addr: p.eng.KafkaAddr(), Kafka: p.eng.KafkaOptions(), Group: fanout.Group, Consumer: p.process, Follow: p.topics.Readable(fanout.Topics()...), Parallel: parallel,
		Batch: fanout.Repairer(p.serde, func(ctx context.Context, d delivery.Delivery) error {
			err := l.mesh.Repair(ctx, d)
			if errors.Is(err, routing.ErrStale) {
				return fmt.Errorf("%w: %w", fanout.ErrHead, err)
			}
			return err
		}),
		WriteDeadLetter: consume.Publisher(letters, func(b []byte) ([]byte, error) { return event.Frame(p.letter, b) }),
		Store:           p.eng.Store, Clock: time.Now, Logger: p.cfg.Logger,
	})
	if err != nil {
		return nil, err
	}
	observe.Fanout(p.metrics, e)
	p.ready = append(p.ready, func() error { return gettingOn("fanout", e.Stats().Stalled) })
	consumer := lifecycle.Restarted("fanout", p.cfg.Logger, func(ctx context.Context) error {
		if !reached(ctx, l.open) {
			return nil
		}
		return e.Run(ctx)
	})
	consumer.Stop = 50 * time.Second // what it works on is finished and committed, also where brokers or servers answer late
	return append(services, consumer), nil
}

// reconcile makes the service that completes what crashes left.
func (p *program) reconcile(ctx context.Context) ([]lifecycle.Service, error) {
	chats, err := chat.New(ctx, chat.Config{
		Store: p.eng.Store, Clock: time.Now, Generation: p.eng.Generation, Producer: p.process, Shared: true,
		Meter: chat.Meter{CreationRetried: p.lifecycles().CreationRetried},
		Committed: func(c chat.Commit) {
			if p.nudger != nil { // delivery has the durable path
				p.nudger.Nudge(c)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	r, err := reconcile.New(reconcile.Config{Store: p.eng.Store, Chats: chats, Clock: time.Now, Logger: p.cfg.Logger})
	if err != nil {
		return nil, err
	}
	p.ready = append(p.ready, func() error {
		if s := r.Stats(); !s.LastPass.IsZero() && time.Since(s.LastPass) > 3*reconcile.Every {
			return errors.New("reconcile makes no passes")
		}
		return nil
	})
	observe.Reconcile(p.metrics, r)
	return []lifecycle.Service{lifecycle.Restarted("reconcile", p.cfg.Logger, r.Run)}, nil
}
