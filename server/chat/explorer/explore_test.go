package explorer

import (
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store/storetest"
)

// Worlds are small and short-lived: collecting them seldom is much faster.
func TestMain(m *testing.M) {
	debug.SetGCPercent(800)
	os.Exit(m.Run())
}

// newWorld makes an empty world.
func newWorld(seed uint64, of scale, b *bug) *world {
	w := &world{scale: of, rng: rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15)), now: epoch, bug: b,
		pairs: map[string]string{}, blocks: map[[2]string]bool{}}
	w.store = storetest.NewMemory(w.clock)
	return w
}

// everything is the kinds of ops of ordinary schedules, those that matter most
// more often.
var everything = []kind{
	add, add, add, remove, remove, remove, leave, changeRole, changeRole, rename, createGroup, createGroup, createDirect,
	finish, finish, checkCount, send, mute, archive, markRead,
}

// crew is the processes of a worker.
type crew [processes]*process

func newCrew() *crew {
	var c crew
	for i := range c {
		c[i] = newProcess(i)
	}
	return &c
}

func (c *crew) close() {
	for _, p := range c {
		p.stop()
	}
}

// explore runs one schedule and returns what failed.
func explore(seed uint64, from *world, c *crew, b *bug, trace *strings.Builder) string {
	w := newWorld(seed, from.scale, b)
	w.trace = trace
	w.ids, w.now = 100, from.now+1000
	w.store, w.old = from.store.Clone(), from.store
	for _, r := range from.rooms {
		copied := r.copied()
		copied.used = false
		w.rooms = append(w.rooms, &copied)
	}
	for k, v := range from.pairs {
		w.pairs[k] = v
	}
	w.faults = w.rng.IntN(4)
	of := everything
	if b != nil && b.kinds != nil {
		of = b.kinds
	}
	if b != nil && b.noFaults {
		w.faults = 0
	}
	if w.crowded = b == nil && w.rng.IntN(3) == 0; w.crowded {
		w.faults = w.rng.IntN(8)
	}
	if w.slow = w.rng.IntN(3) == 0 && (b == nil || !b.noFaults); b != nil && b.slow {
		w.slow = true
	}
	for range 2 + w.rng.IntN(4) {
		o := w.wish(of)
		if b != nil && b.shape != nil {
			b.shape(o)
		}
		w.queue = append(w.queue, o)
	}
	w.procs = *c
	for _, p := range c {
		p.w, p.alone, p.plans, p.times = w, false, 0, times{}
	}
	w.run()
	for _, p := range c {
		p.kill()
	}
	if b != nil && b.run != nil {
		return w.failed
	}
	// A healthy process sees to what is left.
	p := w.procs[0]
	p.alone = true
	p.boot()
	for _, r := range w.rooms {
		if r.pending.empty() || !r.used || w.failed != "" { // what no op has used is as it always was
			continue
		}
		p.op = &op{w: w, kind: finish, n: len(w.ops), caller: "a", target: "a"}
		if err := p.svc.FinishPending(context.Background(), r.id); err != nil {
			w.fail("finish %s: %v", r.id, err)
		}
	}
	p.op, p.svc = nil, nil
	w.end()
	return w.failed
}

// search runs a schedule in each round, from a seed on, until one fails.
func search(of scale, first uint64, rounds iter.Seq[int], b *bug) (seed uint64, failed string, ran uint64) {
	from := base(of)
	if from.failed != "" {
		return 0, from.failed, 0
	}
	var count atomic.Uint64
	var mu sync.Mutex
	var wg sync.WaitGroup
	var stop atomic.Bool
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			c := newCrew()
			defer c.close()
			for n := range rounds {
				if stop.Load() {
					return
				}
				i := uint64(n)
				why := explore(first+i, from, c, b, nil)
				count.Add(1)
				if why == "" {
					continue
				}
				mu.Lock()
				if failed == "" || first+i < seed {
					seed, failed = first+i, why
				}
				mu.Unlock()
				stop.Store(true)
			}
		})
	}
	wg.Wait()
	return seed, failed, count.Load()
}

// explain runs a failing schedule again and shows its steps.
func explain(of scale, seed uint64, b *bug) string {
	var steps strings.Builder
	c := newCrew()
	defer c.close()
	explore(seed, base(of), c, b, &steps)
	return fmt.Sprintf("seed %d, the same again with PARLEY_EXPLORE=1 PARLEY_EXPLORE_SEED=%d\n%s", seed, seed, &steps)
}

// usual is the number of schedules of a plain go test: those that CI runs first.
const usual = 3_000

// L-037, L-041, L-046, L-058, L-059, L-073, L-086, L-093, L-099, L-113, L-160,
// L-193: the rules hold at every commit of every schedule.
func TestSchedules(t *testing.T) {
	schedules(t, small, usual, 1, nil)
}

// schedules runs a plain go test's number of schedules, or those of PARLEY_EXPLORE, each of which takes as long as some
// small ones.
func schedules(t *testing.T, of scale, usual, each int, b *bug) {
	t.Helper()
	first := testkit.Seed(t, 1)
	seed, failed, _ := search(of, first, testkit.NewBudget(t, "PARLEY_EXPLORE", usual, each).Rounds(), b)
	if failed != "" {
		t.Fatal(explain(of, seed, b))
	}
}

// usualLarge is the number of schedules with large groups of a plain go test.
const usualLarge = 80

// The same rules hold where a group has 300 members, so that a creation takes many plans
// and others come, go and change in between.
func TestLargeSchedules(t *testing.T) {
	schedules(t, large, usualLarge, 10, nil)
}

// Every seeded bug is found.
func TestSeededBugs(t *testing.T) {
	for i := range bugs {
		b := &bugs[i]
		t.Run(b.name, func(t *testing.T) {
			of := small
			if b.large {
				of = large
			}
			seed, failed, ran := search(of, 1, testkit.Times(within).Rounds(), b)
			if failed == "" {
				t.Fatalf("not found in %d schedules", ran)
			}
			if !strings.Contains(failed, b.finds) {
				t.Errorf("seed %d: another bug than the one that was sown:\n%s", seed, explain(of, seed, b))
			}
			t.Logf("seed %d: %s", seed, failed)
		})
	}
}
