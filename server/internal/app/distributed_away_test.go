//go:build !windows

package app_test

import (
	"context"
	"os"
	"testing"
	"time"
)

// TestKafkaAway: while no broker runs, people at both servers chat live; when they are back
// everything is published, in order. PARLEY_KAFKA_AWAY sets for how long they are away.
func TestKafkaAway(t *testing.T) {
	in := newInstallation(t)
	if why := in.engines.notRun(); why != "" {
		t.Skip(why)
	}
	away := 20 * time.Second
	if s := os.Getenv("PARLEY_KAFKA_AWAY"); s != "" {
		var err error
		if away, err = time.ParseDuration(s); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute+2*away)
	defer cancel()
	x := &trouble{t: t, ctx: ctx, in: in, load: newLoad(ctx, t, in), probe: newLagProbe(ctx, in)}
	calm, err := x.probe.drain(ctx, x.load.shown())
	if err != nil {
		t.Fatal(err)
	}
	x.load.latency()
	x.load.more(100)
	before := x.load.latency()

	in.engines.kill(in.engines.brokers...)
	begun := x.load.acknowledged()
	x.pass(away)
	// Everything acknowledged so far is shown before a broker is there again.
	if err := x.load.shown()(ctx); err != nil {
		t.Fatal(err)
	}
	meanwhile := x.load.latency()
	sent := x.load.acknowledged() - begun
	rows, err := x.probe.outbox(ctx)
	if err != nil || len(rows) < sent/2 {
		t.Fatalf("%d rows wait in the outbox for Kafka after %d messages, %v", len(rows), sent, err)
	}
	in.engines.start(in.engines.brokers...)
	x.recovered("Kafka was away", true, calm)
	x.load.check(x.probe)
	t.Logf("%d messages while Kafka was away for %v, %d rows in the outbox at its end; live before: %s; meanwhile: %s",
		sent, away, len(rows), before, meanwhile)
}
