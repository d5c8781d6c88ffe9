package slot

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// hooked is a process's way to the store, with something in between.
type hooked struct {
	store.Store
	plan atomic.Pointer[func(p store.Plan, do func() error) error]
}

func (h *hooked) Transact(ctx context.Context, p store.Plan) error {
	do := func() error { return h.Store.Transact(ctx, p) }
	if f := h.plan.Load(); f != nil {
		return (*f)(p, do)
	}
	return do()
}

func (w *fixture) runs(n int) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.running[n]
}

// A process that cannot read the leases says for how long, and goes on being well after.
func TestStalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, 1)
		a := w.start("a", nil)
		defer a.stop()
		time.Sleep(5 * time.Minute)
		if s := a.Stats().Stalled; s > 3*time.Second {
			t.Errorf("stalled for %v, and well", s)
		}
		a.store.cut.Store(true)
		time.Sleep(5 * time.Minute)
		if s := a.Stats().Stalled; s < 5*time.Minute-3*time.Second {
			t.Errorf("stalled for %v after five minutes without the store", s)
		}
		a.store.cut.Store(false)
		time.Sleep(time.Minute)
		if s := a.Stats().Stalled; s > 3*time.Second {
			t.Errorf("stalled for %v, and well again", s)
		}
	})
}

// A lease is taken only as it was seen: one that is renewed between the look and the
// taking stays its holder's.
func TestRenewalBeforeTheTaking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, 1)
		key := table.LeaseKey(kind, 0)
		put := func(count int64) {
			l := table.Lease{Holder: "a", Count: count, TotalSlots: 1}
			if err := w.store.Transact(t.Context(), store.Plan{Writes: []store.Write{{Op: store.OpPut, Key: key, Item: l.Item()}}}); err != nil {
				t.Error(err)
			}
		}
		put(7)
		h := &hooked{Store: w.store}
		var renewed atomic.Int64
		renewed.Store(7)
		hook := func(p store.Plan, do func() error) error {
			if p.Writes[0].Name == "acquire" && renewed.Load() < 10 {
				put(renewed.Add(1))
			}
			return do()
		}
		h.plan.Store(&hook)
		b := w.start("b", func(c *Config) { c.Store = h })
		defer b.stop()
		for renewed.Load() < 10 {
			time.Sleep(100 * time.Millisecond)
			if who := w.runs(0); who != "" {
				t.Fatalf("%s runs the slot of a lease that was renewed", who)
			}
		}
		time.Sleep(15 * time.Second) // nobody renews any more
		w.want("the holder is dead", map[string]int{"b": 1})
	})
}

// A renewal counts from the moment that it was begun, also if it took long, and also
// if its answer was lost and only the next look tells of it: others count from when
// they see it.
func TestSlowRenewal(t *testing.T) {
	for name, lost := range map[string]bool{"slow": false, "its answer is lost": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newFixture(t, 1)
				h := &hooked{Store: w.store}
				a := w.start("a", func(c *Config) { c.Store = h })
				defer a.stop()
				time.Sleep(5 * time.Second)
				w.want("at the start", map[string]int{"a": 1})
				var begun atomic.Int64
				hook := func(p store.Plan, do func() error) error {
					if begun.Load() != 0 { // nothing is renewed any more, or taken again
						return store.ErrUnavailable
					}
					if p.Writes[0].Name != "renew" {
						return do()
					}
					begun.Store(time.Now().UnixNano())
					err := do()
					time.Sleep(1900 * time.Millisecond)
					if lost {
						return store.ErrAmbiguous
					}
					return err
				}
				h.plan.Store(&hook)
				for w.runs(0) == "a" {
					time.Sleep(10 * time.Millisecond)
				}
				// Of a lease of 12 s a slot runs 8 s without a renewal.
				if ran := time.Since(time.Unix(0, begun.Load())); ran < 7*time.Second || ran > 8100*time.Millisecond {
					t.Errorf("the slot ran %v after its last renewal was begun", ran)
				}
				h.plan.Store(nil)
			})
		})
	}
}
