package embedded

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/parley-chat/parley/server/store"
)

// A loss of power is simulated by a file system that remembers what was synced: a
// clone of it holds that, and a random part of the rest.

const (
	crashChats   = 6
	crashWorkers = 8
	crashSteps   = 50 // of each worker
	crashes      = 4  // of each round, and one at its end
)

func seqKey(chat, n int) store.Key {
	return store.Key{Table: store.Messages, PK: fmt.Sprint("chat", chat), SK: fmt.Sprintf("%06d", n)}
}

func headKey(chat int) store.Key {
	return store.Key{Table: store.ChatCounters, PK: fmt.Sprint("chat", chat)}
}

// promises is what was promised so far: the heads of chats, by acknowledgement, or
// by a read or a failed condition that was followed by Durable.
type promises struct {
	mu    sync.Mutex
	heads [crashChats]int64
	steps int
	plug  map[int]bool // steps at which the power fails
	pull  chan struct{}
}

func (p *promises) promise(chat int, head int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.heads[chat] = max(p.heads[chat], head)
}

func (p *promises) snapshot() [crashChats]int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.heads
}

func (p *promises) step() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.steps++
	if p.plug[p.steps] {
		p.pull <- struct{}{}
	}
}

// crashRound reads and writes on one store from several goroutines, pulls the plug
// at random moments, and returns what the stores opened on the remains lack.
func crashRound(t *testing.T, seed uint64, bug func(*Options)) error {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 1))
	mem := vfs.NewCrashableMem()
	// Syncs take a while, and so does the step from seen to known of, so that something
	// can happen meanwhile.
	o := Options{Dir: "/data", FS: onSync(mem, func() error { runtime.Gosched(); return nil }), onVisible: runtime.Gosched}
	if bug != nil {
		bug(&o)
	}
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	p := &promises{plug: map[int]bool{}, pull: make(chan struct{}, crashes)}
	for len(p.plug) < crashes {
		p.plug[rng.IntN(crashWorkers*crashSteps)+1] = true
	}
	var workers sync.WaitGroup
	for w := range crashWorkers {
		own := rand.New(rand.NewPCG(seed, uint64(w)+2))
		workers.Go(func() {
			for range crashSteps {
				if err := crashStep(t.Context(), s, own, p); err != nil {
					t.Error(err)
				}
				p.step()
			}
		})
	}
	type remains struct {
		fs       *vfs.MemFS
		promised [crashChats]int64
	}
	var left []remains
	crash := func() {
		// What was promised before the clone is made must be in it.
		promised := p.snapshot()
		fs := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(2) * rng.IntN(101), RNG: rng})
		left = append(left, remains{fs, promised})
	}
	for range crashes {
		<-p.pull
		crash()
	}
	workers.Wait()
	crash()
	for _, r := range left {
		if err := checkRemains(t, r.fs, r.promised); err != nil {
			return err
		}
	}
	return nil
}

// crashStep reads a chat's head and answers with it, or raises it by a plan.
func crashStep(ctx context.Context, s *Store, rng *rand.Rand, p *promises) error {
	chat := rng.IntN(crashChats)
	it, err := s.Get(ctx, headKey(chat), store.Strong)
	if err != nil {
		return err
	}
	n := it.Get("n").Int64()
	if rng.IntN(3) == 0 {
		return answer(ctx, s, p, chat, n)
	}
	cond := store.Condition{}.Eq("n", store.Int(n))
	if it == nil {
		cond = store.Absent()
	}
	head := store.NewItem(store.Attr{Name: "n", Value: store.Int(n + 1)})
	err = s.Transact(ctx, store.Plan{Writes: []store.Write{
		{Op: store.OpPut, Key: headKey(chat), Item: head, Cond: cond, Name: "head"},
		{Op: store.OpPut, Key: seqKey(chat, int(n+1)), Item: store.NewItem()},
	}})
	var failed *store.ConditionError
	if errors.As(err, &failed) { // it shows what another wrote
		return answer(ctx, s, p, chat, failed.Failures[0].Current.Get("n").Int64())
	}
	if err == nil {
		p.promise(chat, n+1)
	}
	return err
}

// answer promises what was seen.
func answer(ctx context.Context, s *Store, p *promises, chat int, n int64) error {
	if err := s.Durable(ctx); err != nil {
		return err
	}
	p.promise(chat, n)
	return nil
}

// checkRemains opens what is left and checks that promises were kept and no plan
// is there by half.
func checkRemains(t *testing.T, fs vfs.FS, promised [crashChats]int64) error {
	t.Helper()
	s, err := Open(Options{Dir: "/data", FS: fs})
	if err != nil {
		return fmt.Errorf("open after the crash: %w", err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	for chat := range crashChats {
		it, err := s.Get(t.Context(), headKey(chat), store.Strong)
		if err != nil {
			return err
		}
		n := it.Get("n").Int64()
		if n < promised[chat] {
			return fmt.Errorf("chat %d: %d was promised, %d is there", chat, promised[chat], n)
		}
		var rows []string
		for cursor, first := "", true; first || cursor != ""; first = false {
			p, err := s.Query(t.Context(), store.Query{Table: store.Messages, PK: fmt.Sprint("chat", chat), Cursor: cursor})
			if err != nil {
				return err
			}
			for _, r := range p.Rows {
				rows = append(rows, r.Key.SK)
			}
			cursor = p.Cursor
		}
		if int64(len(rows)) != n || !slices.IsSorted(rows) || (n > 0 && rows[n-1] != seqKey(chat, int(n)).SK) {
			return fmt.Errorf("chat %d: head %d with rows %v: a plan is there by half", chat, n, rows)
		}
	}
	return nil
}

func TestNothingPromisedIsLostInACrash(t *testing.T) {
	for seed := range uint64(100) {
		if err := crashRound(t, seed, nil); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// The same rounds must notice stores that promise too early.
func TestCrashRoundsNoticeBugs(t *testing.T) {
	for name, bug := range map[string]func(*Options){
		"writes without sync":          func(o *Options) { o.noSync = true },
		"answers before others' syncs": func(o *Options) { o.noWait = true },
		"shows before it promises":     func(o *Options) { o.late = true },
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(300) {
				if err := crashRound(t, seed, bug); err != nil {
					t.Logf("seed %d: %v", seed, err)
					return
				}
			}
			t.Fatal("every round was passed")
		})
	}
}
