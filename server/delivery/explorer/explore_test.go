package explorer

import (
	"fmt"
	"iter"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/parley-chat/parley/server/infra/testkit"
)

// How long schedules are.
const minSteps, maxSteps = 40, 360

func stepsOf(seed uint64) int { return minSteps + int(seed*2654435761%(maxSteps-minSteps)) }

// search runs a schedule in each round, from a seed on, until one fails.
func search(first uint64, rounds iter.Seq[int], b *bug) (seed uint64, failed bool, ran uint64) {
	// Worlds are small and short-lived: collecting them seldom is much faster.
	defer debug.SetGCPercent(debug.SetGCPercent(3200))
	var count atomic.Uint64
	var mu sync.Mutex
	var wg sync.WaitGroup
	var stop atomic.Bool
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			pool := &tasks{}
			defer pool.close()
			for n := range rounds {
				if stop.Load() {
					return
				}
				i := uint64(n)
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

// explain runs a failing seed of a test again, shrinks it and says what happened.
func explain(test string, seed uint64, b *bug) string {
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
	return fmt.Sprintf("seed %d: %s\nPARLEY_EXPLORE=1 PARLEY_EXPLORE_SEED=%d go test ./server/delivery/explorer -run '^%s$'\n"+
		"shrunk from %d to %d steps: %s\n%s", seed, r.failed, seed, test, r.steps, len(tape), s.failed,
		strings.Join(s.trace, "\n"))
}

func TestSchedules(t *testing.T) {
	schedules(t, 600, 500, 1, &bug{})
}

// schedules runs a plain go test's number of schedules, or few under the race detector, or those of
// PARLEY_EXPLORE, each of which takes as long as some ordinary ones.
func schedules(t *testing.T, usual, few, each int, b *bug) {
	t.Helper()
	if underRace || testing.Short() {
		usual = few
	}
	first := testkit.Seed(t, 1)
	seed, failed, _ := search(first, testkit.NewBudget(t, "PARLEY_EXPLORE", usual, each).Rounds(), b)
	if failed {
		t.Fatal(explain(t.Name(), seed, b))
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
