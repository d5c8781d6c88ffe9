package app

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/versions"
	"github.com/parley-chat/parley/server/lifecycle"
	"github.com/parley-chat/parley/server/registry"
	registryapi "github.com/parley-chat/parley/server/registry/api"
	"github.com/parley-chat/parley/workers/consume"
	"github.com/parley-chat/parley/workers/fanout"
	"github.com/parley-chat/parley/workers/migrate"
	"github.com/parley-chat/parley/workers/observe"
	"github.com/parley-chat/parley/workers/reconcile"
	"github.com/parley-chat/parley/workers/relay"
	"github.com/parley-chat/parley/workers/relay/counts"
	"github.com/parley-chat/parley/workers/relay/slot"
)

// durable is the durable path in this process: from the outbox to Kafka, and from
// there to the hub again. Where workers are processes of their own there is none.
type durable struct {
	relays  relay.Set
	slots   *slot.Manager
	fanout  *consume.Engine
	letters *kafka.Client       // for dead letters
	schemas *registryapi.Server // for others who read the log
	full    atomic.Bool         // nothing is published until the log has room

	reconciler *reconcile.Reconciler
	operators  operators
	topics     *versions.Watch
	migrator   *migrate.Migrator
	published  func(time.Duration) // takes how long transactions took
	counts     *counts.Watch
}

// nudge tells the relay of a commit.
func (d *durable) nudge(c chat.Commit) {
	if d != nil {
		d.relays.Nudge(c)
	}
}

func (d *durable) close() {
	if d == nil {
		return
	}
	if d.letters != nil {
		d.letters.Close()
	}
	d.schemas.Close()
	d.operators.server.Close()
}

// buildDurable makes the durable path.
func (p *program) buildDurable(ctx context.Context, log logger) error {
	subjects := registry.New(p.eng.Store)
	// The one process of this store brings its schemas itself.
	own, err := subjects.RegisterOwn(ctx, registry.Message{Topic: kafka.DeadLetters, Proto: &eventv1.DeadLetter{}})
	if err != nil {
		return err
	}
	serde, err := event.NewSerde(own.Events, subjects.SubjectsOf)
	if err != nil {
		return err
	}
	serde.OnNewer(func(eventType string, version int32) {
		log.Warn("events of a newer version are read without what they have more", "type", eventType, "version", version)
	})
	letter := own.Messages[0]
	d := &durable{}
	p.durable = d
	if err := p.buildTopics(ctx, d, subjects, log); err != nil {
		return err
	}
	if d.schemas, err = registryapi.Listen(ctx, registryapi.Config{
		Registry: subjects, Listen: p.cfg.Registry, Logger: log,
		Operator: func(h http.Header) (string, error) {
			op, err := p.key.Operator(h, time.Now())
			return op.Name, err
		},
	}); err != nil {
		return err
	}
	if d.letters, err = kafka.NewProducer(p.eng.KafkaAddr(), p.eng.KafkaOptions()...); err != nil {
		return err
	}
	d.fanout, err = consume.New(consume.Config{
		Addr: p.eng.KafkaAddr(), Kafka: p.eng.KafkaOptions(), Group: fanout.Group, Consumer: p.process, Follow: d.topics.Readable(fanout.Topics()...),
		Batch:           fanout.Handler(serde, func(d delivery.Delivery) { p.hub.Deliver(d) }),
		WriteDeadLetter: consume.Publisher(d.letters, func(b []byte) ([]byte, error) { return event.Frame(letter, b) }),
		Store:           p.eng.Store, Clock: time.Now, Logger: log,
		MinFetch: 48 << 10, // it repairs what the hub of this process has mostly seen: it is in no hurry
	})
	if err != nil {
		return err
	}
	d.slots, err = slot.New(slot.Config{
		Store: p.eng.Store, Holder: p.process, Slots: 1, Logger: log,
		Exclusive: true, // the data directory is locked
		Start:     func(ctx context.Context, s slot.Slot) error { return p.runSlot(ctx, serde, s, log) },
	})
	if err != nil {
		return err
	}
	d.counts = counts.New(p.eng.KafkaAddr(), log, d.topics.State, p.eng.KafkaOptions()...)
	observe.Relay(p.metrics, &d.relays, d.slots, d.counts)
	observe.Topics(p.metrics, d.topics)
	d.published = observe.Publish(p.metrics)
	observe.Fanout(p.metrics, d.fanout)
	d.operators, err = p.buildOperators(ctx, serde, log)
	return err
}

// buildTopics makes what follows the versions of topics, and what changes them.
func (p *program) buildTopics(ctx context.Context, d *durable, subjects *registry.Registry, log logger) (err error) {
	if d.topics, err = versions.NewWatch(ctx, p.eng.Store, log); err != nil {
		return err
	}
	if err := migrate.Subjects(ctx, subjects, d.topics.State(), true); err != nil {
		return err
	}
	d.migrator, err = migrate.New(migrate.Config{
		Store: p.eng.Store, Clock: time.Now, Logger: log,
		Cluster: &migrate.Live{
			Store: p.eng.Store, Addr: p.eng.KafkaAddr(), Kafka: p.eng.KafkaOptions(), Registry: subjects, Groups: []string{fanout.Group},
			AddTopic: p.eng.AddTopic, Durable: p.eng.LogStable,
		},
	})
	return err
}

// buildReconciler makes what completes creations that a crash left half done.
func (p *program) buildReconciler(log logger) error {
	if p.durable == nil {
		return nil
	}
	r, err := reconcile.New(reconcile.Config{Store: p.eng.Store, Chats: p.chats, Clock: time.Now, Logger: log})
	if err != nil {
		return err
	}
	p.durable.reconciler = r
	observe.Reconcile(p.metrics, r)
	return nil
}

// runSlot runs the relay of a slot until ctx ends.
func (p *program) runSlot(ctx context.Context, serde *event.Serde, s slot.Slot, log logger) error {
	publisher, err := kafka.NewPublisher(p.eng.KafkaAddr(), s.TransactionalID, p.eng.KafkaOptions()...)
	if err != nil {
		return err
	}
	defer publisher.Close()
	r, err := relay.New(relay.Config{
		Store: p.eng.Store, Serde: serde, Shards: s.Shards, Clock: time.Now, Logger: log, Flush: p.eng.LogStable,
		Failed: p.counts.PublishFailed, Created: observe.Created(p.counts),
		Topics: func(ctx context.Context) (versions.State, error) { return versions.Load(ctx, p.eng.Store) },
		Renew: func(ctx context.Context) error {
			return errors.Join(publisher.Renew(ctx), slot.Confirm(ctx, p.eng.Store, p.process, s))
		},
		Report: func(ctx context.Context, revision int64) error {
			return slot.Report(ctx, p.eng.Store, p.process, s, revision)
		},
		Publish: p.durable.counts.Guard(func(ctx context.Context, records []*kafka.Record) error {
			if p.durable.full.Load() {
				return errLogFull
			}
			if p.eng.Crowded() {
				return errDiskFull
			}
			began := time.Now()
			defer func() { p.durable.published(time.Since(began)) }()
			return publisher.Publish(ctx, records)
		}),
	})
	if err != nil {
		return err
	}
	defer p.durable.relays.Add(r)()
	return r.Run(ctx)
}

// workers are the services of the durable path and of the reconciler that run in
// this process; none where workers are processes of their own.
func (p *program) workers(log logger) []lifecycle.Service {
	d := p.durable
	if d == nil {
		return nil
	}
	return []lifecycle.Service{
		{Name: "log", Run: p.keepLog(log)},
		lifecycle.Restarted("topics", log, d.topics.Run),
		lifecycle.Restarted("migration", log, d.migrator.Guard),
		lifecycle.Restarted("partitions", log, d.counts.Run),
		lifecycle.Restarted("relay", log, d.slots.Run),
		lifecycle.Restarted("fanout", log, d.fanout.Run),
		lifecycle.Restarted("reconcile", log, d.reconciler.Run),
		{Name: "registry", Run: d.schemas.Run},
		{Name: "ops", Run: d.operators.server.Run},
		lifecycle.Restarted("dead letters", log, d.operators.letters.Run),
	}
}

// trimEvery is how often the log is kept within its cap.
const trimEvery = 30 * time.Second

// errLogFull pauses the relay: what is in the log has not been read by all who
// must, and the outbox keeps the rest.
var errLogFull = errors.New("the event log has reached its cap")

// errDiskFull pauses the relay: what is in the outbox is on the disk once, what is
// published twice.
var errDiskFull = errors.New("the disk is almost full")

// keepLog trims the log.
func (p *program) keepLog(log logger) func(context.Context, func()) error {
	return func(ctx context.Context, ready func()) error {
		ready()
		t := time.NewTicker(trimEvery)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-t.C:
			}
			full, err := p.eng.TrimLog()
			p.durable.full.Store(full)
			if err != nil || full {
				log.Error("the event log does not come within its cap; nothing is published until it does", "bytes", p.eng.LogBytes(), "error", err)
			}
		}
	}
}
