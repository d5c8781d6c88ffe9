package jobs

import (
	"context"
	"errors"
	"time"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/engine"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/lifecycle"
	"github.com/parley-chat/parley/server/link"
	"github.com/parley-chat/parley/server/registry"
	"github.com/parley-chat/parley/server/routing"
	"github.com/parley-chat/parley/server/telemetry"
	"github.com/parley-chat/parley/server/view"
	"github.com/parley-chat/parley/workers/consume"
	"github.com/parley-chat/parley/workers/fanout"
	"github.com/parley-chat/parley/workers/observe"
	"github.com/parley-chat/parley/workers/reconcile"
	"github.com/parley-chat/parley/workers/relay"
	"github.com/parley-chat/parley/workers/relay/slot"
)

// letterID is the schema id of dead letters.
func letterID(ctx context.Context, r *registry.Registry) (int, error) {
	return r.Message(ctx, kafka.DeadLetters, &eventv1.DeadLetter{})
}

// relay makes the services that bring the outbox to Kafka: a manager of slots, and an ear
// for nudges.
func (p *program) relay() ([]lifecycle.Service, error) {
	set, counts := &relay.Set{}, p.metrics.Lifecycle()
	m, err := slot.New(slot.Config{
		Store: p.eng.Store, Holder: p.process, Slots: p.cfg.Slots, Logger: p.cfg.Logger,
		Start: func(ctx context.Context, s slot.Slot) error { return p.runSlot(ctx, set, counts, s) },
	})
	if err != nil {
		return nil, err
	}
	observe.Relay(p.metrics, set, m)
	list := []lifecycle.Service{{Name: "relay", Run: func(ctx context.Context, ready func()) error {
		ready()
		return m.Run(ctx)
	}}}
	if p.eng.Routing != nil {
		list = append(list, lifecycle.Restarted("nudged", p.cfg.Logger, func(ctx context.Context) error {
			return p.eng.Routing.Nudged(ctx, nil, func(n routing.Nudge) {
				// What is no commit, or another version's, is found by the sweep.
				if c, err := link.DecodeCommit(p.eng.Generation, n.Payload); err == nil {
					set.Nudge(c)
				}
			})
		}))
	}
	return list, nil
}

// runSlot runs the relay of one slot until ctx ends or another process takes over.
func (p *program) runSlot(ctx context.Context, set *relay.Set, counts *telemetry.Lifecycle, s slot.Slot) error {
	client, err := kafka.NewTransactional(p.eng.KafkaAddr(), s.TransactionalID, p.eng.KafkaOptions()...)
	if err != nil {
		return err
	}
	defer client.Close()
	r, err := relay.New(relay.Config{
		Store: p.eng.Store, Serde: p.serde, Shards: s.Shards, Clock: time.Now, Logger: p.cfg.Logger.With("slot", s.Number),
		Publish: func(ctx context.Context, records []*kafka.Record) error { return kafka.Transact(ctx, client, records) },
		Failed:  counts.PublishFailed, Created: observe.Created(counts),
	})
	if err != nil {
		return err
	}
	defer set.Add(r)()
	return r.Run(ctx)
}

// parallel is how many chats fanout works on at a time; it waits for Redis.
const parallel = 32

// fanout makes the services that tell servers of what Kafka has.
func (p *program) fanout() ([]lifecycle.Service, error) {
	key, err := p.key()
	if err != nil {
		return nil, err
	}
	tls, err := engine.MutualTLS(p.cfg.LinkCA, p.cfg.LinkCert, p.cfg.LinkKey)
	if err != nil {
		return nil, err
	}
	reader := view.New(view.Config{Store: p.eng.Store, Generation: p.eng.Generation, Clock: time.Now, TokenKey: key.Derive("sync tokens", view.KeySize)})
	recipients := routing.NewRecipients(p.eng.Generation, p.eng.Routing, reader.MemberIDs)
	mesh, err := link.New(link.Config{
		Process: p.process, Generation: p.eng.Generation, Table: p.eng.Routing, Recipients: recipients,
		Secret: key.Derive(link.Purpose, link.SecretSize), TLS: tls, Clock: time.Now, Logger: p.cfg.Logger,
	})
	if err != nil {
		return nil, err
	}
	letters, err := kafka.NewProducer(p.eng.KafkaAddr(), p.eng.KafkaOptions()...)
	if err != nil {
		mesh.Close()
		return nil, err
	}
	p.closers = append(p.closers, mesh.Close, letters.Close)
	lease, err := routing.NewLease(routing.LeaseConfig{
		Table: p.eng.Routing, Server: routing.Server{ID: p.process, Generation: p.eng.Generation},
		Lost: func() {}, Clock: time.Now, Logger: p.cfg.Logger,
	})
	if err != nil {
		return nil, err
	}
	e, err := consume.New(consume.Config{
		Addr: p.eng.KafkaAddr(), Kafka: p.eng.KafkaOptions(), Group: fanout.Group, Consumer: p.process, Topics: fanout.Topics(), Parallel: parallel,
		Batch: fanout.Repairer(p.serde, mesh.Repair),
		Dead:  consume.Publisher(letters, func(b []byte) ([]byte, error) { return event.Frame(p.letter, b) }),
		Store: p.eng.Store, Clock: time.Now, Logger: p.cfg.Logger,
	})
	if err != nil {
		return nil, err
	}
	observe.Fanout(p.metrics, e)
	observe.Links(p.metrics, mesh, recipients)
	// Other jobs of the process need no Redis: they do not wait until it is there. Servers
	// must see this process listed before it sends anything to them.
	listed, open := make(chan struct{}), make(chan struct{})
	p.ready = append(p.ready, func() error {
		select {
		case <-open:
			return nil
		default:
			return errors.New("fanout has no links yet")
		}
	})
	consumer := lifecycle.Restarted("fanout", p.cfg.Logger, func(ctx context.Context) error {
		if !reached(ctx, open) {
			return nil
		}
		return e.Run(ctx)
	})
	consumer.Stop = 20 * time.Second // what it works on is finished and committed
	return []lifecycle.Service{
		{Name: "routing", Run: func(ctx context.Context, ready func()) error {
			ready()
			return lease.Hold(ctx, -1, func() { close(listed) })
		}},
		{Name: "links", Run: func(ctx context.Context, ready func()) error {
			ready()
			if !reached(ctx, listed) {
				return nil
			}
			for err := mesh.Open(ctx); err != nil; err = mesh.Open(ctx) {
				if !pause(ctx, time.Second) {
					return nil
				}
			}
			close(open)
			return mesh.Run(ctx)
		}},
		consumer,
	}, nil
}

// reached waits for a channel to be closed, and reports whether it was before ctx ended.
func reached(ctx context.Context, c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	case <-ctx.Done():
		return false
	}
}

// pause waits, and reports whether ctx goes on.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// reconcile makes the service that completes what crashes left.
func (p *program) reconcile(ctx context.Context) ([]lifecycle.Service, error) {
	chats, err := chat.New(ctx, chat.Config{
		Store: p.eng.Store, Clock: time.Now, Generation: p.eng.Generation, Producer: p.process,
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
