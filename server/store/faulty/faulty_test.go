package faulty_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/faulty"
	"github.com/parley-chat/parley/server/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A store without faults is the store below.
func TestContract(t *testing.T) {
	storetest.Run(t, func(*testing.T) storetest.Engine {
		clock := storetest.NewClock()
		return storetest.Engine{
			Store: faulty.New(storetest.NewMemory(clock.Now), faulty.Options{}), Clock: clock,
			Without: map[storetest.Category]string{storetest.Restart: "the map engine keeps nothing"},
		}
	})
}

var key = store.Key{Table: store.Users, PK: "a"}

func plan(n int64) store.Plan {
	return store.Plan{Writes: []store.Write{
		{Op: store.OpPut, Key: key, Item: store.NewItem(store.Attr{Name: "n", Value: store.Int(n)})}}}
}

func value(t *testing.T, s store.Store) int64 {
	t.Helper()
	it, err := s.Get(t.Context(), key, store.Strong)
	if err != nil {
		t.Fatal(err)
	}
	return it.Get("n").Int64()
}

func TestFates(t *testing.T) {
	own := errors.New("own")
	for _, c := range []struct {
		name  string
		fault faulty.Fault
		err   error
		wrote bool
	}{
		{"pass", faulty.Fault{}, nil, true},
		{"before", faulty.Fault{When: faulty.Before}, store.ErrUnavailable, false},
		{"conflict", faulty.Fault{When: faulty.Before, Err: store.ErrConflict}, store.ErrConflict, false},
		{"throttled", faulty.Fault{When: faulty.Before, Err: store.ErrThrottled}, store.ErrThrottled, false},
		{"ambiguous, not written", faulty.Fault{When: faulty.Before, Err: store.ErrAmbiguous}, store.ErrAmbiguous, false},
		{"ambiguous, written", faulty.Fault{When: faulty.After}, store.ErrAmbiguous, true},
		{"own error", faulty.Fault{When: faulty.After, Err: own}, own, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			below := storetest.NewMemory(time.Now)
			s := faulty.New(below, faulty.Options{Policy: faulty.Script(c.fault)})
			if err := s.Transact(t.Context(), plan(1)); !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
				t.Fatalf("got %v, want %v", err, c.err)
			}
			if got := value(t, below) == 1; got != c.wrote {
				t.Fatalf("written: %v", got)
			}
			if s.Count(c.fault.When) != 1 || s.Calls() != 1 {
				t.Fatalf("%d calls, %d with this fate", s.Calls(), s.Count(c.fault.When))
			}
			if err := s.Transact(t.Context(), plan(2)); err != nil || value(t, s) != 2 {
				t.Fatalf("after the script: %v", err)
			}
		})
	}
}

// A lost answer ends with the caller's context; the write was done, which the error
// does not deny.
func TestLostAnswers(t *testing.T) {
	below := storetest.NewMemory(time.Now)
	s := faulty.New(below, faulty.Options{Policy: faulty.Script(faulty.Fault{When: faulty.Lost},
		faulty.Fault{When: faulty.Lost})})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Transact(ctx, plan(1)) }()
	for value(t, below) != 1 { // it arrives while the caller still waits
	}
	select {
	case err := <-done:
		t.Fatalf("an answer came: %v", err)
	default:
	}
	cancel()
	if err := <-done; !errors.Is(err, store.ErrAmbiguous) || !errors.Is(err, context.Canceled) {
		t.Fatalf("write: %v", err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	go func() {
		_, err := s.Get(ctx, key, store.Strong)
		done <- err
	}()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) || errors.Is(err, store.ErrAmbiguous) {
		t.Fatalf("read: %v", err)
	}
}

func TestDelays(t *testing.T) {
	below := storetest.NewMemory(time.Now)
	var slept []time.Duration
	var atSleep []int64
	s := faulty.New(below, faulty.Options{
		Policy: faulty.Script(faulty.Fault{Delay: time.Minute, Late: time.Hour}),
		Sleep: func(_ context.Context, d time.Duration) error {
			slept, atSleep = append(slept, d), append(atSleep, value(t, below))
			return nil
		},
	})
	if err := s.Transact(t.Context(), plan(1)); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(slept) != "[1m0s 1h0m0s]" || fmt.Sprint(atSleep) != "[0 1]" {
		t.Fatalf("slept %v, with %v written", slept, atSleep)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for fault, want := range map[faulty.Fault]error{{Delay: time.Hour}: context.Canceled,
		{Late: time.Hour}: store.ErrAmbiguous} {
		below := storetest.NewMemory(time.Now)
		s := faulty.New(live{below}, faulty.Options{Policy: faulty.Script(fault)})
		err := s.Transact(ctx, plan(1))
		if wrote := value(t, below) == 1; !errors.Is(err, want) || wrote != errors.Is(want, store.ErrAmbiguous) {
			t.Fatalf("%+v: %v, written: %v", fault, err, wrote)
		}
	}
}

// live is a store that does not check contexts, as one that has the call already.
type live struct{ *storetest.Memory }

func (l live) Transact(_ context.Context, p store.Plan) error {
	return l.Memory.Transact(context.Background(), p)
}

// What a caller did wrong is not hidden by a fault.
func TestInvalidStaysInvalid(t *testing.T) {
	s := faulty.New(storetest.NewMemory(time.Now), faulty.Options{Policy: faulty.Script(faulty.Fault{When: faulty.Lost})})
	if err := s.Transact(t.Context(), store.Plan{}); !errors.Is(err, store.ErrInvalid) {
		t.Fatal(err)
	}
}

func TestOn(t *testing.T) {
	p := faulty.On(faulty.Script(faulty.Fault{}, faulty.Fault{When: faulty.Before}), faulty.Get, faulty.Query)
	var got []faulty.When
	for i, m := range []faulty.Method{faulty.Transact, faulty.Get, faulty.Transact, faulty.Query, faulty.Get} {
		got = append(got, p(faulty.Call{Number: i + 1, Method: m}).When)
	}
	if fmt.Sprint(got) != fmt.Sprint([]faulty.When{faulty.Pass, faulty.Pass, faulty.Pass, faulty.Before, faulty.Pass}) {
		t.Fatal(got)
	}
}

var rates = faulty.Rates{Unavailable: 0.1, Throttled: 0.1, Conflict: 0.1, Applied: 0.1, NotApplied: 0.1}

// One seed gives one run, and each fate comes about.
func TestRandomIsRepeatable(t *testing.T) {
	draw := func(seed uint64) (list []faulty.Fault) {
		r := rates
		r.Lost, r.Delay = 0.1, time.Second
		p := faulty.Random(seed, r)
		for i := range 1000 {
			m := faulty.Transact
			if i%4 == 0 {
				m = faulty.Get
			}
			f := p(faulty.Call{Number: i + 1, Method: m})
			if m == faulty.Get && (errors.Is(f.Err, store.ErrConflict) || errors.Is(f.Err, store.ErrAmbiguous)) {
				t.Fatalf("a read has the fate %+v", f)
			}
			list = append(list, f)
		}
		return list
	}
	a, b := draw(7), draw(7)
	kinds := map[string]bool{}
	for i := range a {
		if a[i] != b[i] {
			t.Fatalf("call %d: %+v, then %+v", i, a[i], b[i])
		}
		kinds[fmt.Sprint(a[i].When, a[i].Err)] = true
	}
	if len(kinds) != 7 {
		t.Fatalf("fates: %v", kinds)
	}
	if fmt.Sprint(a) == fmt.Sprint(draw(8)) {
		t.Fatal("two seeds give one run")
	}
}

// A counter with an idempotency row per increment stays exact under all faults when
// its callers follow the contract: repeat what was not written, and ask the row
// after an unknown outcome. With the rows left out it does not: the test would see
// an ambiguous write that was counted as failed.
func TestExactlyOnceOverFaults(t *testing.T) {
	const workers, each = 8, 50
	for seed := range uint64(5) {
		below := storetest.NewMemory(time.Now)
		s := faulty.New(below, faulty.Options{Policy: faulty.Random(seed, rates)})
		var wg sync.WaitGroup
		for w := range workers {
			wg.Go(func() {
				for i := range each {
					if err := increment(t.Context(), s, fmt.Sprintf("%d-%d", w, i)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		if got := value(t, below); got != workers*each {
			t.Fatalf("seed %d: %d increments count %d", seed, workers*each, got)
		}
		if s.Count(faulty.After) == 0 || s.Count(faulty.Before) == 0 {
			t.Fatal("nothing was injected")
		}
	}
}

func increment(ctx context.Context, s store.Store, id string) error {
	request := store.Key{Table: store.IdempotencyKeys, PK: id}
	p := store.Plan{Writes: []store.Write{
		{Op: store.OpPut, Key: request, Item: store.NewItem(), Cond: store.Absent(), Name: "request"},
		{Op: store.OpUpdate, Key: key, Update: store.Update{Add: []store.Increment{{Name: "n", N: 1}}}},
	}}
	for {
		err := s.Transact(ctx, p)
		var failed *store.ConditionError
		switch {
		case err == nil, errors.As(err, &failed):
			return nil
		case errors.Is(err, store.ErrAmbiguous), errors.Is(err, store.ErrUnavailable), errors.Is(err, store.ErrThrottled),
			errors.Is(err, store.ErrConflict):
		default:
			return err
		}
	}
}
