package lease

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// hooked is a process's access to the store, with a hook around plans.
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

// counted counts the calls of a process.
type counted struct {
	store.Store
	reads, plans atomic.Int64
}

func (c *counted) BatchGet(ctx context.Context, keys []store.Key, k store.Consistency) ([]store.Item, error) {
	c.reads.Add(1)
	return c.Store.BatchGet(ctx, keys, k)
}

func (c *counted) Transact(ctx context.Context, p store.Plan) error {
	c.plans.Add(1)
	return c.Store.Transact(ctx, p)
}

func (w *fixture) runs(n int) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.running[n]
}

// A process that cannot read the leases reports for how long, and recovers afterwards.
func TestStalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, 1)
		a := w.start("a", nil)
		defer a.stop()
		testkit.Advance(5 * time.Minute)
		if s := a.Stats().Stalled; s > 3*time.Second {
			t.Errorf("stalled for %v with a working store, expected up to 3 s", s)
		}
		a.store.cut.Store(true)
		testkit.Advance(5 * time.Minute)
		if s := a.Stats().Stalled; s < 5*time.Minute-3*time.Second {
			t.Errorf("stalled for %v after five minutes without the store, expected five minutes", s)
		}
		a.store.cut.Store(false)
		testkit.Advance(time.Minute)
		if s := a.Stats().Stalled; s > 3*time.Second {
			t.Errorf("stalled for %v after the store is back, expected up to 3 s", s)
		}
	})
}

// A lease is acquired only in the state that was observed: one that is renewed between the
// observation and the acquisition stays its holder's.
func TestRenewalBeforeTheAcquisition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, 1)
		key := table.LeaseKey(kind, 0)
		put := func(count int64) {
			l := table.Lease{Holder: "a", Count: count, TotalSlots: 1}
			if err := w.store.Transact(t.Context(),
				store.Plan{Writes: []store.Write{{Op: store.OpPut, Key: key, Item: l.Item()}}}); err != nil {
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
			testkit.Advance(100 * time.Millisecond)
			if who := w.runs(0); who != "" {
				t.Fatalf("%s runs the slot of a lease that was renewed, expected nobody", who)
			}
		}
		testkit.Advance(15 * time.Second) // without a renewal
		w.want("the holder is dead", map[string]int{"b": 1})
	})
}

// A renewal counts from its start, even if it is slow, and even if its answer is lost and
// only the next read shows it: others count from when they observe it.
func TestSlowRenewal(t *testing.T) {
	for name, lost := range map[string]bool{"slow": false, "its answer is lost": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newFixture(t, 1)
				h := &hooked{Store: w.store}
				a := w.start("a", func(c *Config) { c.Store = h })
				defer a.stop()
				testkit.Advance(5 * time.Second)
				w.want("at the start", map[string]int{"a": 1})
				var started atomic.Int64
				hook := func(p store.Plan, do func() error) error {
					if started.Load() != 0 { // no further renewal or acquisition succeeds
						return store.ErrUnavailable
					}
					if p.Writes[0].Name != "renew" {
						return do()
					}
					started.Store(time.Now().UnixNano())
					err := do()
					time.Sleep(1900 * time.Millisecond) // in simulated time: the answer is slow
					if lost {
						return store.ErrAmbiguous
					}
					return err
				}
				h.plan.Store(&hook)
				for w.runs(0) == "a" {
					testkit.Advance(10 * time.Millisecond)
				}
				// Of a lease of 12 s a slot runs 8 s without a renewal.
				if ran := time.Since(time.Unix(0, started.Load())); ran < 7*time.Second || ran > 8100*time.Millisecond {
					t.Errorf("the slot ran %v after the start of its last renewal, expected 7 to 8.1 s", ran)
				}
				h.plan.Store(nil)
			})
		})
	}
}
