package relay

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-chat/parley/server/kafka"
)

// A few published rows wait for a sync until FlushWithin, so that one sync serves many; many
// rows wait for FlushEvery only; and an end of the relay waits for neither.
func TestAFewRowsWaitForTheSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFixture(t)
		id := r.group()
		re := r.relay()
		re.cfg.Clock, re.cfg.Sweep, re.cfg.FlushWithin = time.Now, time.Hour, 5*time.Second
		re.cfg.Publish = Flatten(func(context.Context, []*kafka.Record) error { return nil })
		var syncs atomic.Int64
		re.cfg.Flush = func(context.Context) error { syncs.Add(1); return nil }
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- re.Run(ctx) }()
		send := func(n int) {
			for range n {
				r.send(id)
				re.Nudge(r.commits[len(r.commits)-1])
			}
		}
		expect := func(when string, wantSyncs int64, wantRows int) {
			t.Helper()
			synctest.Wait()
			if s, n := syncs.Load(), r.left(); s != wantSyncs || n != wantRows {
				t.Errorf("%s: %d syncs and %d rows left, want %d and %d", when, s, n, wantSyncs, wantRows)
			}
		}
		time.Sleep(time.Millisecond)
		expect("after the first sweep", 1, 0)
		send(1)
		time.Sleep(4900 * time.Millisecond)
		expect("before FlushWithin", 1, 1)
		time.Sleep(200 * time.Millisecond)
		expect("after FlushWithin", 2, 0)
		send(499)
		time.Sleep(2 * time.Second)
		expect("with 499 rows", 2, 499)
		send(1)
		time.Sleep(200 * time.Millisecond)
		expect("with 500 rows", 3, 0)
		send(1)
		time.Sleep(200 * time.Millisecond)
		stop()
		<-done
		expect("after the end", 4, 0)
	})
}

// A relay of quiet chats rests longer than one under load, whose rest follows the time that
// transactions take, up to a bound.
func TestRest(t *testing.T) {
	for _, tt := range []struct {
		events     int
		took, want time.Duration
	}{
		{1, 2 * time.Millisecond, 50 * time.Millisecond},
		{4, 2 * time.Millisecond, 50 * time.Millisecond},
		{5, 2 * time.Millisecond, 40 * time.Millisecond},
		{200, 30 * time.Millisecond, 60 * time.Millisecond},
		{2000, time.Second, 100 * time.Millisecond},
	} {
		c := Config{Awaited: func() bool { return true }}
		if got := c.rest(tt.events, tt.took); got != tt.want {
			t.Errorf("%d events in %v are followed by a rest of %v, want %v", tt.events, tt.took, got, tt.want)
		}
	}
}

// While nobody waits for events a relay collects them for a second, or until a transaction is
// full; one that comes after the rest goes at once. Once somebody waits, it is as fast as ever.
func TestRestWhileNobodyWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFixture(t)
		id := r.group()
		re := r.relay()
		var awaited atomic.Bool
		var transactions, events atomic.Int64
		re.cfg.Clock, re.cfg.Sweep, re.cfg.Awaited = time.Now, time.Hour, awaited.Load
		re.cfg.Publish = Flatten(func(_ context.Context, records []*kafka.Record) error {
			transactions.Add(1)
			events.Add(int64(len(records)))
			return nil
		})
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		done := make(chan error, 1)
		go func() { done <- re.Run(ctx) }()
		time.Sleep(2 * time.Second)
		first, before := transactions.Load(), events.Load() // of the sweep
		send := func(n int, every time.Duration) {
			for range n {
				r.send(id)
				re.Nudge(r.commits[len(r.commits)-1])
				time.Sleep(every)
			}
		}
		expect := func(when string, wantTransactions, wantEvents int64) {
			t.Helper()
			synctest.Wait()
			if n, e := transactions.Load()-first, events.Load()-before; n != wantTransactions || e != wantEvents {
				t.Errorf("%s: %d events in %d transactions, want %d in %d", when, e, n, wantEvents, wantTransactions)
			}
		}
		send(1, time.Millisecond)
		expect("a lone event", 1, 1)
		send(4, 200*time.Millisecond)
		expect("within the second", 1, 1)
		time.Sleep(250 * time.Millisecond)
		expect("after the second", 2, 5)
		awaited.Store(true)
		time.Sleep(time.Second)
		send(4, 200*time.Millisecond)
		expect("while somebody waits", 6, 9)
		stop()
		<-done
	})
}
