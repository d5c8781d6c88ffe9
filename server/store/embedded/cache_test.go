package embedded

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
)

// checkCache compares everything that is cached with what Pebble holds. It may run beside
// plans.
func checkCache(s *Store) (items int, err error) {
	for i := range s.stripes {
		st := &s.stripes[i]
		st.Lock()
		st.recent.All(func(key string, cached store.Item) {
			items++
			stored, e := s.load([]byte(key))
			if e != nil {
				err = e
			} else if stored == nil || fmt.Sprint(stored) != fmt.Sprint(cached) {
				err = fmt.Errorf("%q is cached as %v, and stored as %v", key, cached, stored)
			}
		})
		st.Unlock()
	}
	return items, err
}

// cacheStep does one of the things that change or read items which are cached.
func cacheStep(ctx context.Context, s *Store, rng *rand.Rand, clock *storetest.Clock) error {
	user := store.Key{Table: store.DeliveryState, PK: fmt.Sprint("u", rng.IntN(40)), SK: "c"}
	head := headKey(rng.IntN(10))
	n := func(name string) store.Attr { return store.Attr{Name: name, Value: store.Int(rng.Int64N(4))} }
	at := store.Attr{Name: store.ExpiresAtField, Value: store.Int(clock.Now().Unix() + rng.Int64N(3))}
	raise := store.Write{Op: store.OpUpdate, Key: head, Update: store.Update{Set: []store.Attr{n("n")}}}
	var w store.Write
	switch rng.IntN(7) {
	case 0:
		w = store.Write{Op: store.OpPut, Key: user, Item: store.NewItem(n("n"), n("m"))}
	case 1:
		w = store.Write{Op: store.OpPut, Key: user, Item: store.NewItem(at)}
	case 2:
		w = store.Write{Op: store.OpDelete, Key: user}
	case 3:
		w = store.Write{Op: store.OpUpdate, Key: user, Update: store.Update{Set: []store.Attr{n("n")}}}
	case 4: // fails often
		w = store.Write{Op: store.OpCheck, Key: user, Name: "n",
			Cond: store.Condition{}.Eq("n", store.Int(rng.Int64N(4)))}
	case 5:
		clock.Add(time.Second)
		_, err := s.sweep(10)
		return err
	default:
		_, err := s.BatchGet(ctx, []store.Key{user, head}, store.Strong)
		return err
	}
	if err := s.Transact(ctx, store.Plan{Writes: []store.Write{w, raise}}); err != nil && failure(err) == "" {
		return err
	}
	return nil
}

// cacheRound takes random steps from several goroutines and returns in what the cache
// differed from the store.
func cacheRound(t *testing.T, seed uint64, bug func(*Options)) error {
	t.Helper()
	clock := storetest.NewClock()
	o := Options{Dir: "/data", FS: vfs.NewMem(), Clock: clock.Now, sweepEvery: time.Hour}
	if bug != nil {
		bug(&o)
	}
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	var workers sync.WaitGroup
	for worker := range uint64(4) {
		rng := rand.New(rand.NewPCG(seed, worker))
		workers.Go(func() {
			for range 150 {
				if err := cacheStep(t.Context(), s, rng, clock); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 3 {
		if _, err := checkCache(s); err != nil {
			workers.Wait()
			return err
		}
	}
	workers.Wait()
	n, err := checkCache(s)
	if err == nil && n == 0 {
		t.Error("nothing was cached")
	}
	return err
}

// What is cached is what is stored, at every moment in which nobody holds the lock.
func TestCacheIsTheStore(t *testing.T) {
	for seed := range uint64(15) {
		if err := cacheRound(t, seed, nil); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// The same rounds must notice caches that do not follow.
func TestCacheRoundsNoticeBugs(t *testing.T) {
	for name, bug := range map[string]func(*Options){
		"changes leave what is cached": func(o *Options) { o.stale = true },
		"expired items stay cached":    func(o *Options) { o.undead = true },
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(50) {
				if err := cacheRound(t, seed, bug); err != nil {
					t.Logf("seed %d: %v", seed, err)
					return
				}
			}
			t.Fatal("every round was passed")
		})
	}
}

// A plan whose batch Pebble refuses leaves nothing in the cache that is not stored.
func TestRefusedBatchIsNotCached(t *testing.T) {
	s := open1(t, Options{Dir: t.TempDir()})
	ctx := t.Context()
	put := func(n int64) error {
		return s.Transact(ctx, store.Plan{Writes: []store.Write{{Op: store.OpPut, Key: headKey(1),
			Item: store.NewItem(store.Attr{Name: "n", Value: store.Int(n)})}}})
	}
	if err := put(1); err != nil {
		t.Fatal(err)
	}
	s.barrier.Fail(store.ErrUnavailable) // no more tickets
	if err := put(2); err == nil {
		t.Fatal("written without a ticket")
	}
	if _, err := checkCache(s); err != nil {
		t.Fatal(err)
	}
	it, err := s.Get(ctx, headKey(1), store.Strong)
	if err != nil || it.Get("n").Int64() != 1 {
		t.Fatalf("%v %v, want 1", it, err)
	}
}

// Whoever has the database itself may change it: then nothing cached counts.
func TestNothingIsCachedBesideTheDatabase(t *testing.T) {
	s := open1(t, Options{Dir: t.TempDir()})
	ctx := t.Context()
	w := store.Write{Op: store.OpPut, Key: headKey(1), Item: store.NewItem()}
	if err := s.Transact(ctx, store.Plan{Writes: []store.Write{w}}); err != nil {
		t.Fatal(err)
	}
	if n, err := checkCache(s); n != 1 || err != nil {
		t.Fatalf("%d items are cached, want 1: %v", n, err)
	}
	if err := s.DB().Delete(appendKey(nil, headKey(1)), pebble.Sync); err != nil {
		t.Fatal(err)
	}
	if it, err := s.Get(ctx, headKey(1), store.Strong); it != nil || err != nil {
		t.Fatalf("%v %v, want nothing", it, err)
	}
	w.Cond, w.Name = store.Absent(), "head"
	if err := s.Transact(ctx, store.Plan{Writes: []store.Write{w}}); err != nil {
		t.Fatal(err)
	}
}

// A fresh key is not looked up; everything else of its plan is.
func TestFreshKeyIsNotLookedUp(t *testing.T) {
	s := open1(t, Options{Dir: t.TempDir()})
	ctx := t.Context()
	put := func(n int64, fresh bool) error {
		at := store.Attr{Name: store.ExpiresAtField, Value: store.Int(4_000_000_000 + n)}
		return s.Transact(ctx, store.Plan{Writes: []store.Write{
			{Op: store.OpPut, Key: store.Key{Table: store.IdempotencyKeys, PK: "k"}, Item: store.NewItem(at),
				Cond: store.Absent(), Name: "request", Fresh: fresh},
			{Op: store.OpPut, Key: headKey(1), Item: store.NewItem(), Cond: store.Absent(), Name: "head"},
		}})
	}
	if err := put(1, true); err != nil {
		t.Fatal(err)
	}
	if got := failure(put(1, true)); !strings.Contains(got, "head") || strings.Contains(got, "request") {
		t.Errorf("repeated: %s, want the head alone", got)
	}
	if got := failure(put(1, false)); !strings.Contains(got, "request") {
		t.Errorf("not fresh: %s, want the request", got)
	}
	check := store.Write{Op: store.OpDelete, Key: headKey(1), Fresh: true}
	if err := s.Transact(ctx, store.Plan{Writes: []store.Write{check}}); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("fresh and deleted: %v, want an invalid request", err)
	}
	entry := appendExpiry(nil, 4_000_000_001, appendKey(nil, store.Key{Table: store.IdempotencyKeys, PK: "k"}))
	if _, closer, err := s.db.Get(entry); err != nil {
		t.Errorf("it never expires: %v", err)
	} else if err := closer.Close(); err != nil {
		t.Error(err)
	}
}
