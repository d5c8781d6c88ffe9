package slot

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

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
	"github.com/parley-chat/parley/server/store/table"
)

// world is a store, processes that share it, and who runs what.
type fixture struct {
	t     *testing.T
	store store.Store
	slots int

	mu      sync.Mutex
	running []string // by slot
	starts  int
	slow    func() time.Duration // for a run to stop
	fail    func(slot int) error // of a run, at once
}

func newFixture(t *testing.T, slots int) *fixture {
	return &fixture{t: t, store: dynamotest.Store(t, time.Now), slots: slots, running: make([]string, slots), slow: func() time.Duration { return 0 }}
}

// flaky is a process's way to the store: it can be cut, with answers or whole
// calls lost.
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
	stop  func() // in order
}

func (w *fixture) start(name string, change func(*Config)) *process {
	w.t.Helper()
	p := &process{name: name, store: &flaky{Store: w.store}}
	cfg := Config{
		Store: p.store, Holder: name, Slots: w.slots, Logger: slog.New(slog.DiscardHandler), TTL: 12 * time.Second,
		Start: func(ctx context.Context, s Slot) error {
			w.mu.Lock()
			if w.fail != nil {
				if err := w.fail(s.Number); err != nil {
					w.mu.Unlock()
					return err
				}
			}
			if other := w.running[s.Number]; other != "" {
				w.t.Errorf("slot %d is run by %s and %s", s.Number, other, name)
			}
			w.running[s.Number] = name
			w.starts++
			slow := w.slow()
			w.mu.Unlock()
			<-ctx.Done()
			time.Sleep(slow)
			w.mu.Lock()
			w.running[s.Number] = ""
			w.mu.Unlock()
			return ctx.Err()
		},
	}
	if change != nil {
		change(&cfg)
	}
	m, err := New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	p.Manager = m
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = m.Run(ctx) }()
	var once sync.Once
	p.stop = func() { once.Do(func() { cancel(); <-done }) }
	return p
}

// spread counts the slots that run by process.
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
		w.t.Fatalf("%s: %v, not %v", when, got, want)
	}
}

func TestSlotsDealAllShardsOnce(t *testing.T) {
	for n := 1; n <= event.Shards; n++ {
		var all []int
		for i := range n {
			s := Numbered(i, n)
			all = append(all, s.Shards...)
			if s.TransactionalID != fmt.Sprint("parley-relay-", i) || len(s.Shards) < event.Shards/n || len(s.Shards) > event.Shards/n+1 {
				t.Fatalf("%+v", s)
			}
		}
		slices.Sort(all)
		if len(all) != event.Shards || len(slices.Compact(all)) != event.Shards {
			t.Fatalf("%d slots: shards %v", n, all)
		}
	}
}

func TestSlotsAreSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, 8)
		a := w.start("a", nil)
		w.want("one", map[string]int{"a": 8})
		b := w.start("b", nil)
		time.Sleep(time.Minute)
		w.want("two", map[string]int{"a": 4, "b": 4})
		c := w.start("c", nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		for name, n := range w.spread() {
			if n < 2 || n > 3 {
				t.Fatalf("three: %s runs %d", name, n)
			}
		}
		w.mu.Lock()
		starts := w.starts
		w.mu.Unlock()
		time.Sleep(10 * time.Minute)
		if w.starts != starts {
			t.Fatalf("%d slots moved with nobody coming or going", w.starts-starts)
		}
		b.stop()
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := w.spread(); got["a"]+got["c"] != 8 {
			t.Fatalf("after b left: %v", got)
		}
		a.stop()
		c.stop()
		w.want("the end", map[string]int{"": 8})
		for n := range 8 {
			it, err := w.store.Get(t.Context(), table.LeaseKey(kind, n), store.Strong)
			if err != nil || it != nil {
				t.Fatalf("slot %d is still leased: %v %v", n, it, err)
			}
		}
	})
}

// A holder that loses the store stops before its successor starts, which it does
// once it has not seen the lease change for TTL.
func TestLostLeaseStopsBeforeTheSuccessorStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, 1)
		w.slow = func() time.Duration { return 3 * time.Second }
		a := w.start("a", nil)
		synctest.Wait()
		b := w.start("b", nil)
		time.Sleep(time.Minute)
		w.want("before", map[string]int{"a": 1})
		a.store.cut.Store(true)
		time.Sleep(20 * time.Second) // that they do not overlap is checked where a run begins
		w.want("b has taken over", map[string]int{"b": 1})
		a.store.cut.Store(false)
		time.Sleep(time.Minute)
		w.want("a is back", map[string]int{"b": 1})
		if s := a.Stats(); s.Lost != 1 || s.Held != 0 {
			t.Fatalf("%+v", s)
		}
		a.stop()
		w.want("a stops", map[string]int{"b": 1})
		b.stop()
	})
}

// An answer that is lost costs nothing: the lease is still ours.
func TestRenewalWithUnknownOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, 2)
		a := w.start("a", nil)
		for range 20 {
			time.Sleep(3 * time.Second)
			a.store.outcome.Store(true)
		}
		w.want("after lost answers", map[string]int{"a": 2})
		if s := a.Stats(); s.Lost != 0 || s.Acquired != 2 {
			t.Fatalf("%+v", s)
		}
		a.stop()
	})
}

// A run that ends by itself, because it was fenced for example, begins again.
func TestRunThatEndsBeginsAgain(t *testing.T) {
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
		time.Sleep(time.Minute)
		w.want("later", map[string]int{"a": 2})
		a.stop()
	})
}

// Whoever knows that nobody else can be alive does not wait for the dead; whoever
// counts slots differently waits until the others are gone.
func TestLeasesOfTheDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, 2)
		old := table.Lease{Holder: "dead", Count: 7, TotalSlots: 2}
		for n := range 2 {
			put := store.Write{Op: store.OpPut, Key: table.LeaseKey(kind, n), Item: old.Item()}
			if err := w.store.BatchWrite(t.Context(), []store.Write{put}); err != nil {
				t.Fatal(err)
			}
		}
		a := w.start("a", func(c *Config) { c.Exclusive = true })
		w.want("alone", map[string]int{"a": 2})
		b := w.start("b", func(c *Config) { c.Slots = 1 })
		time.Sleep(time.Minute)
		w.want("another number of slots", map[string]int{"a": 2})
		a.stop()
		time.Sleep(20 * time.Second)
		w.want("they are gone", map[string]int{"": 1, "b": 1})
		b.stop()
	})
}

func TestConfigIsChecked(t *testing.T) {
	good := Config{
		Store: dynamotest.Store(t, time.Now), Holder: "a", Slots: 1, Logger: slog.New(slog.DiscardHandler), Start: func(context.Context, Slot) error { return nil },
	}
	for name, change := range map[string]func(*Config){
		"no slots": func(c *Config) { c.Slots = 0 }, "too many": func(c *Config) { c.Slots = event.Shards + 1 },
		"no holder": func(c *Config) { c.Holder = "" }, "no store": func(c *Config) { c.Store = nil }, "no start": func(c *Config) { c.Start = nil },
	} {
		c := good
		change(&c)
		if _, err := New(c); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := New(good); err != nil {
		t.Error(err)
	}
}

// Processes come, go, lose the store and its answers: a slot never runs twice (the
// worlds' runs check that), and when all is well again all slots run, evenly.
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
				time.Sleep(wait)
			}
			for _, p := range live {
				p.store.cut.Store(false)
			}
			time.Sleep(3 * time.Minute)
			synctest.Wait()
			least, most := w.slots, 0
			got := w.spread()
			for _, p := range live {
				least, most = min(least, got[p.name]), max(most, got[p.name])
			}
			if got[""] > 0 || most-least > 1 {
				t.Fatalf("seed %d: %v", seed, got)
			}
			for _, p := range live {
				p.stop()
			}
		})
	}
}
