package app

import (
	"context"
	"errors"
	"time"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/lifecycle"
	"github.com/parley-chat/parley/server/registry"
	"github.com/parley-chat/parley/server/telemetry"
	"github.com/parley-chat/parley/workers/consume"
	"github.com/parley-chat/parley/workers/fanout"
	"github.com/parley-chat/parley/workers/relay"
)

// relayID is the transactional id of the one relay of the embedded mode.
const relayID = "parley-relay-0"

// buildRelay makes the durable path's first part: from the outbox to Kafka.
func (p *program) buildRelay(ctx context.Context, log logger) error {
	schemas := registry.New(p.eng.Store)
	ids, err := schemas.Events(ctx)
	if err != nil {
		return err
	}
	serde, err := event.NewSerde(ids)
	if err != nil {
		return err
	}
	letter, err := schemas.Message(ctx, kafka.DeadLetters, &eventv1.DeadLetter{})
	if err != nil {
		return err
	}
	if p.letters, err = kafka.NewProducer(p.eng.KafkaAddr()); err != nil {
		return err
	}
	p.fanout, err = consume.New(consume.Config{
		Addr: p.eng.KafkaAddr(), Group: fanout.Group, Consumer: p.process, Topics: fanout.Topics(),
		Handle: fanout.Handler(serde, func(d delivery.Delivery) { p.hub.Deliver(d) }),
		Dead:   consume.Publisher(p.letters, func(b []byte) ([]byte, error) { return event.Frame(letter, b) }),
		Store:  p.eng.Store, Clock: time.Now, Logger: log,
	})
	if err != nil {
		return err
	}
	if p.log, err = kafka.NewTransactional(p.eng.KafkaAddr(), relayID); err != nil {
		return err
	}
	p.relay, err = relay.New(relay.Config{
		Store: p.eng.Store, Serde: serde, Clock: time.Now, Logger: log, Stable: p.eng.LogStable,
		Publish: func(ctx context.Context, records []*kafka.Record) error {
			if p.logFull.Load() {
				return errLogFull
			}
			return kafka.Transact(ctx, p.log, records)
		},
	})
	return err
}

// runFanout consumes, and begins anew if it had to end: a worker's failure is not
// the server's.
func (p *program) runFanout(log logger) func(context.Context, func()) error {
	return func(ctx context.Context, ready func()) error {
		ready()
		for ctx.Err() == nil {
			if err := p.fanout.Run(ctx); err != nil && ctx.Err() == nil {
				log.Error("fanout ended and begins anew", "error", err)
				select {
				case <-ctx.Done():
				case <-time.After(time.Second):
				}
			}
		}
		return nil
	}
}

// workers are the services of the durable path that run in this process; none where
// workers are processes of their own.
func (p *program) workers(log logger) []lifecycle.Service {
	if p.relay == nil {
		return nil
	}
	return []lifecycle.Service{
		{Name: "log", Run: p.keepLog(log)},
		{Name: "relay", Run: func(ctx context.Context, ready func()) error { ready(); return p.relay.Run(ctx) }},
		{Name: "fanout", Run: p.runFanout(log)},
	}
}

// trimEvery is how often the log is kept within its cap.
const trimEvery = 30 * time.Second

// errLogFull pauses the relay: what is in the log has not been read by all who
// must, and the outbox keeps the rest.
var errLogFull = errors.New("the event log has reached its cap")

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
			p.logFull.Store(full)
			if err != nil || full {
				log.Error("the event log does not come within its cap; nothing is published until it does", "bytes", p.eng.LogBytes(), "error", err)
			}
		}
	}
}

// measureLog connects the counters of the durable path to the metrics.
func (p *program) measureLog() {
	of := func(read func(relay.Stats) float64) func() float64 {
		return func() float64 { return read(p.relay.Stats()) }
	}
	p.metrics.Counter(telemetry.RelayPublished, "Records published.", of(func(s relay.Stats) float64 { return float64(s.Published) }))
	p.metrics.Counter(telemetry.RelayFailures, "Cycles that failed and were repeated.", of(func(s relay.Stats) float64 { return float64(s.Failures) }))
	p.metrics.Counter(telemetry.RelayDropped, "Nudges dropped, for the sweep to make good.", of(func(s relay.Stats) float64 { return float64(s.Dropped) }))
	p.metrics.Gauge(telemetry.RelayPoisoned, "Outbox rows that cannot be published.", of(func(s relay.Stats) float64 { return float64(s.Poisoned) }))
	p.metrics.Gauge(telemetry.RelayBacklog, "Unpublished outbox rows found by the last sweep.", of(func(s relay.Stats) float64 { return float64(s.Backlog) }))
	p.metrics.Gauge(telemetry.RelayOldest, "Age of the oldest of them.", of(func(s relay.Stats) float64 { return s.Oldest.Seconds() }))
	by := func(read func(consume.Stats) int64) func() float64 {
		return func() float64 { return float64(read(p.fanout.Stats())) }
	}
	p.metrics.Counter(telemetry.FanoutHandled, "Records that fanout has handled.", by(func(s consume.Stats) int64 { return s.Handled }))
	p.metrics.Counter(telemetry.FanoutDead, "Records that became dead letters.", by(func(s consume.Stats) int64 { return s.Dead }))
	p.metrics.Counter(telemetry.FanoutHeld, "Times that a partition had to wait.", by(func(s consume.Stats) int64 { return s.Held }))
	p.metrics.Gauge(telemetry.LogBytes, "Bytes of the embedded event log.", func() float64 { return float64(p.eng.LogBytes()) })
}
