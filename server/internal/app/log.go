package app

import (
	"context"
	"time"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/registry"
	"github.com/parley-chat/parley/server/telemetry"
	"github.com/parley-chat/parley/workers/relay"
)

// relayID is the transactional id of the one relay of the embedded mode.
const relayID = "parley-relay-0"

// buildRelay makes the durable path's first part: from the outbox to Kafka.
func (p *program) buildRelay(ctx context.Context, log logger) error {
	ids, err := registry.New(p.eng.Store).Events(ctx)
	if err != nil {
		return err
	}
	serde, err := event.NewSerde(ids)
	if err != nil {
		return err
	}
	if p.log, err = kafka.NewTransactional(p.eng.KafkaAddr(), relayID); err != nil {
		return err
	}
	p.relay, err = relay.New(relay.Config{
		Store: p.eng.Store, Serde: serde, Clock: time.Now, Logger: log, Stable: p.eng.LogStable,
		Publish: func(ctx context.Context, records []*kafka.Record) error { return kafka.Transact(ctx, p.log, records) },
	})
	return err
}

// trimEvery is how often the log is kept within its cap.
const trimEvery = 30 * time.Second

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
			if full, err := p.eng.TrimLog(); err != nil || full {
				log.Warn("the event log does not come within its cap", "bytes", p.eng.LogBytes(), "error", err)
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
	p.metrics.Gauge(telemetry.LogBytes, "Bytes of the embedded event log.", func() float64 { return float64(p.eng.LogBytes()) })
}
