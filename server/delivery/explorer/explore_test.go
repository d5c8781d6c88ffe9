package explorer

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// How long schedules are.
const minSteps, maxSteps = 40, 360

func stepsOf(seed uint64) int { return minSteps + int(seed*2654435761%(maxSteps-minSteps)) }

func number(t *testing.T, name string, fallback uint64) uint64 {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return fallback
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// search runs schedules from a seed on until one fails.
func search(first, n uint64, b *bug) (seed uint64, failed bool, ran uint64) {
	// Worlds are small and short-lived: collecting them seldom is much faster.
	defer debug.SetGCPercent(debug.SetGCPercent(3200))
	var next, count atomic.Uint64
	var mu sync.Mutex
	var wg sync.WaitGroup
	var stop atomic.Bool
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			pool := &tasks{}
			defer pool.close()
			for !stop.Load() {
				i := next.Add(1) - 1
				if i >= n {
					return
				}
				r := explore(newChooser(first+i), pool, b, stepsOf(first+i), false)
				count.Add(1)
				if r.failed == "" {
					continue
				}
				mu.Lock()
				if !failed || first+i < seed {
					seed, failed = first+i, true
				}
				mu.Unlock()
				stop.Store(true)
			}
		})
	}
	wg.Wait()
	return seed, failed, count.Load()
}

// explain runs a failing seed again, shrinks it and says what happened.
func explain(seed uint64, b *bug) string {
	pool := &tasks{}
	defer pool.close()
	r := explore(newRecorder(seed), pool, b, stepsOf(seed), false)
	var last []uint32 // first tried: nothing unusual in the end
	rerun := func(tape [][]uint32, trace bool) result {
		return explore(&chooser{tape: tape, last: last}, pool, b, len(tape), trace)
	}
	tape := r.tape
	if rerun(tape, false).kind != r.kind {
		last = r.last
	}
	tape = shrink(tape, 10_000, func(t [][]uint32) bool { return rerun(t, false).kind == r.kind })
	s := rerun(tape, true)
	return fmt.Sprintf("seed %d: %s\nPARLEY_EXPLORE=1 PARLEY_EXPLORE_SEED=%d go test ./server/delivery/explorer -run TestSchedules\n"+
		"shrunk from %d to %d steps: %s\n%s", seed, r.failed, seed, r.steps, len(tape), s.failed, strings.Join(s.trace, "\n"))
}

func TestSchedules(t *testing.T) {
	usual := uint64(10_000)
	if underRace || testing.Short() {
		usual = 500
	}
	n, first := number(t, "PARLEY_EXPLORE", usual), number(t, "PARLEY_EXPLORE_SEED", 1)
	seed, failed, ran := search(first, n, &bug{})
	t.Logf("%d schedules from seed %d on", ran, first)
	if failed {
		t.Fatal(explain(seed, &bug{}))
	}
}

// The same seed must be the same schedule, or no failure could be found again.
func TestSameSeedSameSchedule(t *testing.T) {
	pool := &tasks{}
	defer pool.close()
	for seed := range uint64(50) {
		a := explore(newChooser(seed), pool, &bug{}, stepsOf(seed), true)
		b := explore(newChooser(seed), pool, &bug{}, stepsOf(seed), true)
		if a.hash != b.hash || len(a.trace) != len(b.trace) {
			for i := range min(len(a.trace), len(b.trace)) {
				if a.trace[i] != b.trace[i] {
					t.Fatalf("seed %d differs: %s and %s", seed, a.trace[i], b.trace[i])
				}
			}
			t.Fatalf("seed %d differs in length", seed)
		}
	}
}
