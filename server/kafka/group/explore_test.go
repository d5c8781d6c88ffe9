package group

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/internal/racetest"
)

const (
	usual  = 300   // schedules of a plain go test
	length = 300   // operations of a schedule
	within = 5_000 // schedules must be enough to find a mistake
)

// explore runs one schedule and returns what failed.
func explore(seed uint64, b *mistake, trace *strings.Builder) string {
	w := newWorld(seed, b, trace)
	for range length {
		if w.failed == "" {
			w.step()
		}
	}
	if w.failed == "" {
		w.heal()
	}
	return w.failed
}

func explain(seed uint64, b *mistake) string {
	var steps strings.Builder
	failed := explore(seed, b, &steps)
	return fmt.Sprintf("seed %d: %s\n%s\n"+
		"PARLEY_EXPLORE=1 PARLEY_EXPLORE_SEED=%d go test ./server/kafka/group -run TestSchedules", seed, failed, &steps, seed)
}

// Groups keep their promises under every schedule. PARLEY_EXPLORE is the number of schedules or the time for them.
func TestSchedules(t *testing.T) {
	racetest.SkipSerial(t)
	first := testkit.Seed(t, 1)
	rounds := testkit.Rounds(t, "PARLEY_EXPLORE", usual)
	var failing atomic.Pointer[uint64]
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for n := range rounds {
				if seed := first + uint64(n); explore(seed, nil, nil) != "" {
					failing.Store(&seed)
				}
				if failing.Load() != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	if seed := failing.Load(); seed != nil {
		t.Fatal(explain(*seed, nil))
	}
}
