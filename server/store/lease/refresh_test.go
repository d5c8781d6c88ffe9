package lease

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-chat/parley/server/infra/testkit"
)

// A slot that its holder has released is another's as soon as somebody asks for it, not when
// the next round is due; a holder that died is waited for all the same.
func TestRefreshTakesWhatIsFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, 4)
		a := w.start("a", nil)
		b := w.start("b", nil)
		testkit.Advance(time.Minute)
		a.stop()
		w.want("released", map[string]int{"": 2, "b": 2})
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		testkit.Must(t, b.Refresh(ctx))
		w.want("asked for", map[string]int{"b": 4})
		for n := range 4 {
			if who := b.Holder(n); who != "b" {
				t.Errorf("slot %d is held by %q, expected b", n, who)
			}
		}
		c := w.start("c", nil)
		defer c.stop()
		testkit.Advance(time.Minute)
		w.want("spread", map[string]int{"b": 2, "c": 2})
		b.store.cut.Store(true) // dies, as far as others see
		for range 20 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if err := c.Refresh(ctx); err != nil {
				t.Error(err)
			}
			cancel()
		}
		if got := w.spread()["c"]; got != 2 { // 12 s have not passed
			t.Errorf("c runs %d slots while those of b may be running, expected 2", got)
		}
		testkit.Advance(20 * time.Second)
		w.want("waited for", map[string]int{"c": 4})
		b.stop()
		if err := b.Refresh(t.Context()); !errors.Is(err, ErrStopped) {
			t.Errorf("a manager that has stopped: %v, expected ErrStopped", err)
		}
	})
}

// However often it is asked, a manager reads the leases ten times a second at most, and does
// not renew them more often than it has to.
func TestRefreshIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, 1)
		h := &counted{Store: w.store}
		a := w.start("a", func(c *Config) { c.Store = h })
		defer a.stop()
		testkit.Advance(time.Minute)
		reads, plans := h.reads.Load(), h.plans.Load()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		for ctx.Err() == nil {
			_ = a.Refresh(ctx) // the last one ends with the time
		}
		if n := h.reads.Load() - reads; n < 50 || n > 110 {
			t.Errorf("%d reads of the leases in 10 s, expected about 100", n)
		}
		if n := h.plans.Load() - plans; n > 10 { // a renewal every second, of a lease of 12 s
			t.Errorf("%d renewals in 10 s, expected 10 at most", n)
		}
	})
}
