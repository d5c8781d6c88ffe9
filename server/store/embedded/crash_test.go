package embedded

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/parley-chat/parley/server/store"
)

// Crashes of the power are simulated by a file system that remembers what was
// synced: a clone of it holds that and a random part of the rest.

const (
	crashChats   = 6
	crashWriters = 8
	crashPlans   = 60
)

func seqKey(chat, n int) store.Key {
	return store.Key{Table: store.Messages, PK: fmt.Sprint("chat", chat), SK: fmt.Sprintf("%06d", n)}
}

func headKey(chat int) store.Key {
	return store.Key{Table: store.ChatCounters, PK: fmt.Sprint("chat", chat)}
}

// seen is what was promised so far: by acknowledgement, or by a read that was
// followed by Durable.
type seen struct {
	mu    sync.Mutex
	heads [crashChats]int64
}

func (s *seen) promise(chat int, head int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heads[chat] = max(s.heads[chat], head)
}

func (s *seen) snapshot() [crashChats]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.heads
}

// crashRound writes and reads on one store from several goroutines, pulls the plug
// now and then, and returns what a store opened on the remains lacks.
func crashRound(t *testing.T, seed uint64, noSync bool) error {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 1))
	mem := vfs.NewCrashableMem()
	s, err := Open(Options{Dir: "/data", FS: mem, noSync: noSync})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	ctx := context.Background()
	var promised seen
	type crash struct {
		fs       *vfs.MemFS
		promised [crashChats]int64
	}
	var crashes []crash
	var mu sync.Mutex
	var wg sync.WaitGroup
	for w := range crashWriters {
		own := rand.New(rand.NewPCG(seed, uint64(w)+2))
		wg.Go(func() {
			for range crashPlans {
				chat := own.IntN(crashChats)
				it, err := s.Get(ctx, headKey(chat), store.Strong)
				if err != nil {
					t.Error(err)
					return
				}
				n := it.Get("n").Int64()
				if own.IntN(3) == 0 { // a reader's answer
					if err := s.Durable(ctx); err != nil {
						t.Error(err)
						return
					}
					promised.promise(chat, n)
					continue
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
					promised.promise(chat, failed.Failures[0].Current.Get("n").Int64())
				} else if err != nil {
					t.Error(err)
					return
				} else {
					promised.promise(chat, n+1)
				}
			}
		})
	}
	plug := make(chan struct{})
	go func() {
		defer close(plug)
		for range 4 {
			// What was promised before the clone must be in it.
			p := promised.snapshot()
			fs := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng})
			mu.Lock()
			crashes = append(crashes, crash{fs, p})
			mu.Unlock()
		}
	}()
	wg.Wait()
	<-plug
	p := promised.snapshot()
	crashes = append(crashes, crash{mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng}), p})
	for _, c := range crashes {
		if err := checkRemains(t, c.fs, c.promised); err != nil {
			return err
		}
	}
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
		rows := int64(0)
		for cursor, first := "", true; first || cursor != ""; first = false {
			p, err := s.Query(t.Context(), store.Query{Table: store.Messages, PK: fmt.Sprint("chat", chat), Cursor: cursor})
			if err != nil {
				return err
			}
			rows, cursor = rows+int64(len(p.Rows)), p.Cursor
		}
		if rows != n {
			return fmt.Errorf("chat %d: head %d with %d rows: a plan is there by half", chat, n, rows)
		}
	}
	return nil
}

func TestNothingPromisedIsLostInACrash(t *testing.T) {
	for seed := range uint64(25) {
		if err := crashRound(t, seed, false); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// The same test must notice a store that does not sync.
func TestCrashTestNoticesAMissingSync(t *testing.T) {
	for seed := range uint64(25) {
		if crashRound(t, seed, true) != nil {
			return
		}
	}
	t.Fatal("a store that never syncs passed every round")
}
