package groupcommit

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/parley-chat/parley/server/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixture runs groups of numbers, each when the test lets it.
type fixture struct {
	*Lanes[int]
	began chan []int
	end   chan struct{}
}

func newFixture(largest, waiting int) *fixture {
	s := &fixture{began: make(chan []int), end: make(chan struct{})}
	s.Lanes = New(Config[int]{Largest: largest, Waiting: waiting, Run: func(_ context.Context, group []int) {
		s.began <- group
		<-s.end
	}})
	return s
}

// submit puts a number into the lane and returns when it waits there.
func (s *fixture) submit(ctx context.Context, wg *sync.WaitGroup, n int, err *error) {
	before := s.Waiting("l")
	wg.Go(func() { *err = s.Submit(ctx, "l", n) })
	for s.Waiting("l") == before {
		runtime.Gosched()
	}
}

// What waits runs as one group, in order, without those who gave up.
func TestWhatWaitsRunsTogether(t *testing.T) {
	s := newFixture(3, 10)
	var wg sync.WaitGroup
	var errs [7]error
	ctx, cancel := context.WithCancel(t.Context())
	wg.Go(func() { errs[0] = s.Submit(t.Context(), "l", 0) })
	groups := [][]int{<-s.began}
	for i := 1; i < 7; i++ {
		c := t.Context()
		if i == 2 {
			c = ctx
		}
		s.submit(c, &wg, i, &errs[i])
	}
	cancel()
	for s.Waiting("l") == 6 {
		runtime.Gosched()
	}
	for range 2 {
		s.end <- struct{}{}
		groups = append(groups, <-s.began)
	}
	s.end <- struct{}{}
	wg.Wait()
	want := [][]int{{0}, {1, 3, 4}, {5, 6}}
	if !slices.EqualFunc(groups, want, slices.Equal[[]int]) {
		t.Errorf("groups %v, want %v", groups, want)
	}
	for i, err := range errs {
		if (i == 2) != errors.Is(err, context.Canceled) {
			t.Errorf("element %d: %v", i, err)
		}
	}
	if len(s.lanes) != 0 {
		t.Errorf("%d lanes are kept", len(s.lanes))
	}
}

// A lane that is full refuses, and serves the others; another lane is not concerned.
func TestFull(t *testing.T) {
	s := newFixture(8, 1)
	var wg sync.WaitGroup
	var err error
	wg.Go(func() { _ = s.Submit(t.Context(), "l", 0) })
	<-s.began
	s.submit(t.Context(), &wg, 1, &err)
	if err := s.Submit(t.Context(), "l", 2); !errors.Is(err, store.ErrThrottled) {
		t.Errorf("a full lane: %v, want ErrThrottled", err)
	}
	wg.Go(func() { _ = s.Submit(t.Context(), "m", 3) })
	if group := <-s.began; !slices.Equal(group, []int{3}) {
		t.Errorf("%v runs, want 3", group)
	}
	s.end <- struct{}{}
	s.end <- struct{}{}
	<-s.began
	s.end <- struct{}{}
	wg.Wait()
	if err != nil {
		t.Error(err)
	}
}

// A waiter that gets the lead in the moment in which it gives up passes it on.
func TestLeadIsPassedOn(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	ls := New(Config[int]{Largest: 1, Waiting: 2})
	for range 100 { // select takes either of two ready cases
		a, b := &waiter[int]{wake: make(chan struct{}, 1)}, &waiter[int]{wake: make(chan struct{}, 1)}
		l := &lane[int]{waiting: []*waiter[int]{a, b}}
		ls.lanes["l"] = l
		ls.passLead("l", l)
		lead, err := ls.wait(ctx, "l", l, a)
		if lead == (err != nil) {
			t.Fatalf("the lead %v and an error %v", lead, err)
		}
		if err != nil && b.state != leading {
			t.Fatal("nobody has the lead")
		}
	}
}

// Under load each element runs once, one group at a time in each lane, and nobody is left
// behind.
func TestUnderLoad(t *testing.T) {
	const elements = 2000
	var runs [elements]atomic.Int32
	var busy [2]atomic.Int32
	ls := New(Config[int]{Largest: 5, Waiting: elements, Run: func(_ context.Context, group []int) {
		if len(group) > 5 || busy[group[0]%2].Add(1) != 1 {
			t.Errorf("a group of %d, or two at once", len(group))
		}
		for _, n := range group {
			if n%2 != group[0]%2 {
				t.Error("a group of two lanes")
			}
			runs[n].Add(1)
		}
		runtime.Gosched()
		busy[group[0]%2].Add(-1)
	}})
	var wg sync.WaitGroup
	for w := range 20 {
		rng := rand.New(rand.NewPCG(uint64(w), 1))
		wg.Go(func() {
			for n := w; n < elements; n += 20 {
				ctx, cancel := context.WithCancel(context.Background())
				if rng.IntN(4) == 0 {
					go cancel()
				}
				err := ls.Submit(ctx, []string{"even", "odd"}[n%2], n)
				if got := runs[n].Load(); got > 1 || err == nil && got != 1 {
					t.Errorf("element %d ran %d times, error %v", n, got, err)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	if len(ls.lanes) != 0 {
		t.Errorf("%d lanes are kept", len(ls.lanes))
	}
}
