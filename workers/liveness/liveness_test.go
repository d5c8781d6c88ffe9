package liveness

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/store/table"
)

// gate is a worker's way to the store. While it is shut, calls wait, as they do in a process that
// stands still or behind a store that does not answer.
type gate struct {
	store.Store
	shut atomic.Bool
}

func (g *gate) pass(ctx context.Context) error {
	for g.shut.Load() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil
}

func (g *gate) Scan(ctx context.Context, s store.Scan) (store.Page, error) {
	if err := g.pass(ctx); err != nil {
		return store.Page{}, err
	}
	return g.Store.Scan(ctx, s)
}

func (g *gate) Transact(ctx context.Context, p store.Plan) error {
	if err := g.pass(ctx); err != nil {
		return err
	}
	return g.Store.Transact(ctx, p)
}

// running is a worker of a test.
type running struct {
	*Monitor
	gate gate
	stop func() error

	mu   sync.Mutex
	gone []Gone
	at   []time.Time
	fail error // of the handler
}

func start(t *testing.T, st store.Store, name, process string) *running {
	t.Helper()
	w := &running{gate: gate{Store: st}}
	m, err := New(Config{Store: &w.gate, Name: name, Process: process, Logger: slog.New(slog.DiscardHandler)})
	testkit.Must(t, err)
	w.Monitor = m
	m.OnGone(func(_ context.Context, g Gone) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.gone, w.at = append(w.gone, g), append(w.at, time.Now())
		return w.fail
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended, ready := make(chan error, 1), make(chan struct{})
	go func() { ended <- m.Run(ctx, func() { close(ready) }) }()
	<-ready
	w.stop = sync.OnceValue(func() error { cancel(); return <-ended })
	t.Cleanup(func() { w.gate.shut.Store(false); _ = w.stop() })
	return w
}

// die has the worker do nothing more, without a word to the others.
func (w *running) die() { w.gate.shut.Store(true) }

func (w *running) reports() []Gone {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.gone)
}

// A worker that died is reported within 4.1 s, wherever between two of its increments it died, and
// to all others.
func TestDeath(t *testing.T) {
	for after := time.Duration(0); after < 500*time.Millisecond; after += 50 * time.Millisecond {
		synctest.Test(t, func(t *testing.T) {
			st := storetest.NewMemory(time.Now)
			a := start(t, st, "", "process a")
			time.Sleep(123 * time.Millisecond)
			b := start(t, st, "", "process b")
			time.Sleep(77 * time.Millisecond)
			c := start(t, st, "", "process c")
			time.Sleep(5*time.Second + after)
			c.die()
			died := time.Now()
			time.Sleep(10 * time.Second)
			for _, w := range []*running{a, b} {
				want := Gone{Name: "process c", Process: "process c", Silent: true}
				if got := w.reports(); !slices.Equal(got, []Gone{want}) {
					t.Fatalf("%v were reported, expected %v", got, want)
				}
				if took := w.at[0].Sub(died); took < 3*time.Second || took > 4100*time.Millisecond {
					t.Errorf("it took %v", took)
				}
				if !w.Dead("process c") || w.Dead("process a") || w.Dead("process b") {
					t.Error("the wrong ones are dead")
				}
			}
		})
	}
}

// A worker that stands still for 3 s keeps its work, and so do all when the store or all of them
// stand still, for whatever time.
func TestSlowWorkersLive(t *testing.T) {
	pauses := map[string]struct {
		who  func(a, b, c *running) []*running
		long time.Duration
	}{
		"one, for 3 s":      {func(a, _, _ *running) []*running { return []*running{a} }, 3 * time.Second},
		"all, for a minute": {func(a, b, c *running) []*running { return []*running{a, b, c} }, time.Minute},
	}
	for name, p := range pauses {
		t.Run(name, func(t *testing.T) {
			for after := time.Duration(0); after < 500*time.Millisecond; after += 50 * time.Millisecond {
				synctest.Test(t, func(t *testing.T) {
					st := storetest.NewMemory(time.Now)
					a := start(t, st, "", "process a")
					time.Sleep(100 * time.Millisecond)
					b := start(t, st, "", "process b")
					time.Sleep(200 * time.Millisecond)
					c := start(t, st, "", "process c")
					time.Sleep(2*time.Second + after)
					for range 3 {
						for _, w := range p.who(a, b, c) {
							w.gate.shut.Store(true)
						}
						time.Sleep(p.long)
						for _, w := range p.who(a, b, c) {
							w.gate.shut.Store(false)
						}
						time.Sleep(3 * time.Second)
					}
					for _, w := range []*running{a, b, c} {
						if got := w.reports(); len(got) > 0 {
							t.Errorf("%v are taken for dead", got)
						}
					}
				})
			}
		})
	}
}

// A machine on which a worker stands still for 5 s every half minute loses the worker's work once,
// not each time.
func TestSlowWorkerIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := storetest.NewMemory(time.Now)
		a, b := start(t, st, "", "process a"), start(t, st, "", "process b")
		for range 20 {
			time.Sleep(25 * time.Second)
			a.gate.shut.Store(true)
			time.Sleep(5 * time.Second)
			a.gate.shut.Store(false)
		}
		time.Sleep(5 * time.Second)
		if got := b.reports(); len(got) != 1 || !got[0].Silent {
			t.Errorf("%v were reported, expected one death", got)
		}
		if b.Dead("process a") {
			t.Error("a worker that works again is dead")
		}
		time.Sleep(11 * time.Minute) // without delays
		a.die()
		time.Sleep(5 * time.Second)
		if got := b.reports(); len(got) != 2 {
			t.Errorf("%v were reported: a death after a calm time takes longer", got)
		}
	})
}

// The patience that a row asks for is bounded.
func TestPatienceIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := storetest.NewMemory(time.Now)
		row := table.Worker{Process: "process a", Count: 1, Patience: time.Hour}
		testkit.Must(t, st.Transact(t.Context(), store.Plan{Writes: []store.Write{{Op: store.OpPut, Key: table.WorkerKey("a"),
			Item: row.Item(), Name: "live"}}}))
		b := start(t, st, "", "process b")
		time.Sleep(32 * time.Second)
		if len(b.reports()) != 1 {
			t.Error("a dead worker that asked for an hour is waited for")
		}
	})
}

// A worker that stands still for so long that its row was removed is alive again afterwards.
func TestForgottenWorkerReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := storetest.NewMemory(time.Now)
		a, b := start(t, st, "", "process a"), start(t, st, "", "process b")
		time.Sleep(time.Second)
		a.die()
		time.Sleep(2 * time.Minute)
		if it, err := st.Get(t.Context(), table.WorkerKey("process a"), store.Strong); err != nil || it != nil {
			t.Fatalf("%v, %v: the row of a dead worker remains", it, err)
		}
		if !b.Dead("process a") {
			t.Error("a forgotten worker is not dead")
		}
		a.gate.shut.Store(false)
		time.Sleep(2 * time.Second)
		if b.Dead("process a") {
			t.Error("a worker that works again is dead")
		}
	})
}

// A worker that ends in good order is gone at once, and no worker is removed from its groups for
// that.
func TestGoodOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := storetest.NewMemory(time.Now)
		a, b := start(t, st, "", "process a"), start(t, st, "", "process b")
		time.Sleep(time.Second)
		testkit.Must(t, a.stop())
		time.Sleep(600 * time.Millisecond)
		if got := b.reports(); !slices.Equal(got, []Gone{{Name: "process a", Process: "process a"}}) {
			t.Errorf("%v were reported", got)
		}
	})
}

// A process with the name of one that was killed replaces it at once. One that is alive ends.
func TestSameName(t *testing.T) {
	for _, alive := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			st := storetest.NewMemory(time.Now)
			other := start(t, st, "", "process o")
			first := start(t, st, "worker", "process 1")
			time.Sleep(time.Second)
			first.gate.shut.Store(!alive)
			second := start(t, st, "worker", "process 2")
			time.Sleep(600 * time.Millisecond)
			want := []Gone{{Name: "worker", Process: "process 1"}}
			for _, w := range []*running{other, second} {
				if got := w.reports(); !slices.Equal(got, want) {
					t.Errorf("%v were reported, expected %v", got, want)
				}
				if !w.Dead("process 1") || w.Dead("process 2") {
					t.Error("the wrong one is dead")
				}
			}
			first.gate.shut.Store(false)
			time.Sleep(time.Second)
			if err := first.stop(); !errors.Is(err, ErrReplaced) {
				t.Errorf("the earlier process ended with %v", err)
			}
			time.Sleep(5 * time.Second)
			if got := other.reports(); !slices.Equal(got, want) {
				t.Errorf("%v were reported after that", got)
			}
		})
	}
}

// A handler that fails is called again, for 30 s.
func TestHandlerIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := storetest.NewMemory(time.Now)
		a, b := start(t, st, "", "process a"), start(t, st, "", "process b")
		b.fail = errors.New("no broker answers")
		time.Sleep(time.Second)
		a.die()
		time.Sleep(10 * time.Second)
		if n := len(b.reports()); n < 5 {
			t.Errorf("%d calls", n)
		}
		time.Sleep(30 * time.Second)
		before := len(b.reports())
		time.Sleep(10 * time.Second)
		if n := len(b.reports()); n > before {
			t.Errorf("%d calls after 40 s", n-before)
		}
	})
}

// Of 3,000 processes that were replaced or died, the last 1,024 are known. One that is reported
// again takes no second place, and one that lives again gives its place up.
func TestDeadAreBounded(t *testing.T) {
	m, err := New(Config{Store: storetest.NewMemory(time.Now), Process: "p", Logger: slog.New(slog.DiscardHandler)})
	testkit.Must(t, err)
	process := strconv.Itoa
	for i := range 3000 {
		m.report(Gone{Process: process(i)})
		m.report(Gone{Process: process(i)})
		for _, dead := range []int{max(0, i-1023), i} {
			if !m.Dead(process(dead)) {
				t.Fatalf("%d is forgotten after %d", dead, i)
			}
		}
		if i >= 1024 && m.Dead(process(i-1024)) || len(m.dead) > 1024 || len(m.order) > 1024 {
			t.Fatalf("%d and %d are known after %d", len(m.dead), len(m.order), i)
		}
	}
	m.revive(process(2999))
	m.report(Gone{Process: "another"})
	if m.Dead(process(2999)) || !m.Dead(process(2999-1023)) || !m.Dead("another") {
		t.Error("a process that lives again has a place")
	}
	for i := range 3000 {
		m.revive(process(i))
	}
	if len(m.dead) != 1 || len(m.order) != 1 {
		t.Errorf("%d and %d are known", len(m.dead), len(m.order))
	}
}

// The counters say who was taken for dead: by the others once, however often they look, and by the worker itself when
// it goes on. A pause that none of them minds counts for nothing, and neither does an end in good order.
func TestStats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := storetest.NewMemory(time.Now)
		a, b, c := start(t, st, "", "process a"), start(t, st, "", "process b"), start(t, st, "", "process c")
		expect := func(when string, want ...Stats) {
			t.Helper()
			for i, w := range []*running{a, b, c} {
				if got := w.Stats(); got != want[i] {
					t.Errorf("%s: %s has %+v, not %+v", when, w.Name(), got, want[i])
				}
			}
		}
		pause := func(w *running, d time.Duration) {
			w.gate.shut.Store(true)
			time.Sleep(d)
			w.gate.shut.Store(false)
			time.Sleep(2 * time.Second)
		}
		time.Sleep(time.Second)
		pause(c, 3*time.Second)
		expect("after a short pause", Stats{}, Stats{}, Stats{})
		time.Sleep(11 * time.Minute)
		pause(c, 10*time.Second)
		expect("after a long pause", Stats{Taken: 1}, Stats{Taken: 1}, Stats{Silent: 1})
		time.Sleep(11 * time.Minute)
		pause(c, 3*time.Minute) // its row is removed meanwhile
		expect("after a pause of minutes", Stats{Taken: 2}, Stats{Taken: 2}, Stats{Silent: 2})
		testkit.Must(t, c.stop())
		time.Sleep(10 * time.Second)
		expect("after an end in good order", Stats{Taken: 2}, Stats{Taken: 2}, Stats{Silent: 2})
	})
}

// A worker whose clock stood still with it finds that its row was removed.
func TestRemovedRowIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := storetest.NewMemory(time.Now)
		a := start(t, st, "", "process a")
		time.Sleep(time.Second)
		testkit.Must(t, a.remove(t.Context(), a.Name(), store.Exists()))
		time.Sleep(time.Second)
		if got := a.Stats(); got.Silent != 1 {
			t.Errorf("%+v", got)
		}
	})
}
