package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
	"github.com/parley-chat/parley/server/store/table"
)

const kind = "work"

// fixture is a store, the processes that share it, and which process runs which slot.
type fixture struct {
	t     *testing.T
	store store.Store
	slots int

	mu      sync.Mutex
	running []string // by slot
	starts  int
	slow    func() time.Duration // how long a run takes to stop
	fail    func(slot int) error // of a run, before it starts
}

func newFixture(t *testing.T, slots int) *fixture {
	return &fixture{t: t, store: dynamotest.Store(t, time.Now), slots: slots, running: make([]string, slots),
		slow: func() time.Duration { return 0 }}
}

// flaky is a process's access to the store. It can be cut, so that calls or their answers are
// lost.
type flaky struct {
	store.Store
	cut     atomic.Bool
	outcome atomic.Bool // the next plan's answer is lost
}

func (f *flaky) BatchGet(ctx context.Context, keys []store.Key, c store.Consistency) ([]store.Item, error) {
	if f.cut.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return f.Store.BatchGet(ctx, keys, c)
}

func (f *flaky) Transact(ctx context.Context, p store.Plan) error {
	if f.cut.Load() {
		<-ctx.Done()
		return store.ErrAmbiguous
	}
	err := f.Store.Transact(ctx, p)
	if err == nil && f.outcome.Swap(false) {
		return store.ErrAmbiguous
	}
	return err
}

type process struct {
	*Manager
	name  string
	store *flaky
	stop  func() // an orderly stop
}

func (w *fixture) start(name string, change func(*Config)) *process {
	w.t.Helper()
	p := &process{name: name, store: &flaky{Store: w.store}}
	cfg := Config{
		Store: p.store, Kind: kind, Holder: name, Slots: w.slots,
		Logger: slog.New(slog.DiscardHandler), TTL: 12 * time.Second,
		Start: func(ctx context.Context, slot int) error {
			w.mu.Lock()
			if w.fail != nil {
				if err := w.fail(slot); err != nil {
					w.mu.Unlock()
					return err
				}
			}
			if other := w.running[slot]; other != "" {
				w.t.Errorf("slot %d is run by %s and %s", slot, other, name)
			}
			w.running[slot] = name
			w.starts++
			slow := w.slow()
			w.mu.Unlock()
			<-ctx.Done()
			time.Sleep(slow) // in simulated time: the run is slow to stop
			w.mu.Lock()
			w.running[slot] = ""
			w.mu.Unlock()
			return ctx.Err()
		},
	}
	if change != nil {
		change(&cfg)
	}
	m, err := New(cfg)
	testkit.Must(w.t, err)
	p.Manager = m
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = m.Run(ctx, func() {}) }()
	var once sync.Once
	p.stop = func() { once.Do(func() { cancel(); <-done }) }
	return p
}

// spread counts the running slots by process; "" has those that run nowhere.
func (w *fixture) spread() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[string]int{}
	for _, name := range w.running {
		out[name]++
	}
	return out
}

func (w *fixture) want(when string, want map[string]int) {
	w.t.Helper()
	synctest.Wait()
	got := w.spread()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		w.t.Fatalf("%s: running slots by process are %v, expected %v", when, got, want)
	}
}

func TestSlotsAreSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, 8)
		a := w.start("a", nil)
		w.want("one", map[string]int{"a": 8})
		b := w.start("b", nil)
		testkit.Advance(time.Minute)
		w.want("two", map[string]int{"a": 4, "b": 4})
		c := w.start("c", nil)
		testkit.Advance(time.Minute)
		for name, n := range w.spread() {
			if n < 2 || n > 3 {
				t.Fatalf("three: %s runs %d slots, expected 2 or 3", name, n)
			}
		}
		w.mu.Lock()
		starts := w.starts
		w.mu.Unlock()
		testkit.Advance(10 * time.Minute)
		if w.starts != starts {
			t.Fatalf("%d slots moved with no process started or stopped, expected none", w.starts-starts)
		}
		b.stop()
		testkit.Advance(time.Minute)
		if got := w.spread(); got["a"]+got["c"] != 8 {
			t.Fatalf("after b stopped, running slots are %v, expected all 8 on a and c", got)
		}
		a.stop()
		c.stop()
		w.want("the end", map[string]int{"": 8})
		for n := range 8 {
			it, err := w.store.Get(t.Context(), table.LeaseKey(kind, n), store.Strong)
			if err != nil || it != nil {
				t.Fatalf("slot %d has the lease %v (%v), expected none", n, it, err)
			}
		}
	})
}

// A holder that loses the store stops before its successor starts. The successor starts when
// it has not seen the lease change for TTL.
func TestLostLeaseStopsBeforeTheSuccessorStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, 1)
		w.slow = func() time.Duration { return 3 * time.Second }
		a := w.start("a", nil)
		synctest.Wait()
		b := w.start("b", nil)
		testkit.Advance(time.Minute)
		w.want("before", map[string]int{"a": 1})
		a.store.cut.Store(true)
		testkit.Advance(20 * time.Second) // start fails the test if two runs overlap
		w.want("b is the successor", map[string]int{"b": 1})
		a.store.cut.Store(false)
		testkit.Advance(time.Minute)
		w.want("a is back", map[string]int{"b": 1})
		if s := a.Stats(); s.Lost != 1 || s.Held != 0 {
			t.Fatalf("%+v, expected 1 lost and 0 held", s)
		}
		a.stop()
		w.want("a stops", map[string]int{"b": 1})
		b.stop()
	})
}

// A lost answer to a renewal does not lose the lease.
func TestRenewalWithUnknownOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, 2)
		a := w.start("a", nil)
		for range 20 {
			testkit.Advance(3 * time.Second)
			a.store.outcome.Store(true)
		}
		w.want("after lost answers", map[string]int{"a": 2})
		if s := a.Stats(); s.Lost != 0 || s.Acquired != 2 {
			t.Fatalf("%+v, expected 0 lost and 2 acquired", s)
		}
		a.stop()
	})
}

// A run that ends by itself, because it was fenced for example, is restarted.
func TestEndedRunIsRestarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, 2)
		failures := 0
		w.fail = func(slot int) error {
			if slot == 0 && failures < 3 {
				failures++
				return errors.New("fenced")
			}
			return nil
		}
		a := w.start("a", nil)
		w.want("fenced", map[string]int{"": 1, "a": 1})
		testkit.Advance(time.Minute)
		w.want("later", map[string]int{"a": 2})
		a.stop()
	})
}

// A process that is configured as the only one does not wait for leases of dead processes.
// A process with another number of slots waits until the others have stopped.
func TestLeasesOfDeadProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, 2)
		old := table.Lease{Holder: "dead", Count: 7, TotalSlots: 2}
		for n := range 2 {
			put := store.Write{Op: store.OpPut, Key: table.LeaseKey(kind, n), Item: old.Item()}
			testkit.Must(t, w.store.BatchWrite(t.Context(), []store.Write{put}))
		}
		a := w.start("a", func(c *Config) { c.Exclusive = true })
		w.want("exclusive", map[string]int{"a": 2})
		b := w.start("b", func(c *Config) { c.Slots = 1 })
		testkit.Advance(time.Minute)
		w.want("another number of slots", map[string]int{"a": 2})
		a.stop()
		testkit.Advance(20 * time.Second)
		w.want("the others have stopped", map[string]int{"": 1, "b": 1})
		b.stop()
	})
}

// The leases of a holder that is known to have died are acquired in the next round, and not after
// TTL. Those of others are not.
func TestKnownDeath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, 2)
		for n, holder := range []string{"dead", "silent"} {
			put := store.Write{Op: store.OpPut, Key: table.LeaseKey(kind, n),
				Item: table.Lease{Holder: holder, Count: 7, TotalSlots: 2}.Item()}
			testkit.Must(t, w.store.BatchWrite(t.Context(), []store.Write{put}))
		}
		var known atomic.Bool
		a := w.start("a", func(c *Config) {
			c.Dead = func(holder string) bool { return known.Load() && holder == "dead" }
		})
		testkit.Advance(time.Second)
		w.want("nothing is known", map[string]int{"": 2})
		known.Store(true)
		testkit.Must(t, a.Refresh(t.Context()))
		w.want("one is dead", map[string]int{"a": 1, "": 1})
		testkit.Advance(20 * time.Second)
		w.want("the other lease has run out", map[string]int{"a": 2})
		a.stop()
	})
}

func TestConfigIsChecked(t *testing.T) {
	good := Config{
		Store: dynamotest.Store(t, time.Now), Kind: kind, Holder: "a", Slots: 1, Logger: slog.New(slog.DiscardHandler),
		Start: func(context.Context, int) error { return nil },
	}
	for name, change := range map[string]func(*Config){
		"no slots": func(c *Config) { c.Slots = 0 }, "too many": func(c *Config) { c.Slots = 65 },
		"no kind":   func(c *Config) { c.Kind = "" },
		"no holder": func(c *Config) { c.Holder = "" }, "no store": func(c *Config) { c.Store = nil },
		"no start": func(c *Config) { c.Start = nil },
	} {
		c := good
		change(&c)
		if _, err := New(c); err == nil {
			t.Errorf("%s: the configuration was accepted, expected an error", name)
		}
	}
	if _, err := New(good); err != nil {
		t.Errorf("a complete configuration: %v", err)
	}
}

// Processes start, stop, and lose the store and its answers. A slot never runs twice (start
// checks that), and when the store is back, all slots run, evenly spread.
func TestRandomFailures(t *testing.T) {
	for seed := range uint64(dynamotest.Rounds(40, 2)) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 3))
			w := newFixture(t, 1+rng.IntN(8))
			var mu sync.Mutex
			w.slow = func() time.Duration {
				mu.Lock()
				defer mu.Unlock()
				return time.Duration(rng.IntN(3000)) * time.Millisecond
			}
			var live []*process
			for n := range 60 {
				mu.Lock()
				what, which, wait := rng.IntN(8), rng.IntN(100), time.Duration(rng.IntN(20_000))*time.Millisecond
				mu.Unlock()
				switch {
				case len(live) == 0 || what == 0 && len(live) < 5:
					live = append(live, w.start(fmt.Sprint("p", n), nil))
				case what == 1 && len(live) > 1:
					i := which % len(live)
					live[i].stop()
					live = slices.Delete(live, i, i+1)
				case what < 5:
					live[which%len(live)].store.cut.Store(what < 3)
				case what == 5:
					live[which%len(live)].store.outcome.Store(true)
				}
				testkit.Advance(wait)
			}
			for _, p := range live {
				p.store.cut.Store(false)
			}
			testkit.Advance(3 * time.Minute)
			least, limit := w.slots, 0
			got := w.spread()
			for _, p := range live {
				least, limit = min(least, got[p.name]), max(limit, got[p.name])
			}
			if got[""] > 0 || limit-least > 1 {
				t.Fatalf("seed %d: running slots by process are %v, expected all, evenly spread", seed, got)
			}
			for _, p := range live {
				p.stop()
			}
		})
	}
}
