package view

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Calls that come while a load runs share the next one; the one that runs is not
// theirs.
func TestLoadsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var loads sharedLoads[int]
		var value, began atomic.Int64
		load := func(context.Context) (int, error) {
			began.Add(1)
			v := int(value.Load())
			time.Sleep(time.Second)
			return v, nil
		}
		var wg sync.WaitGroup
		got := make([]int, 20)
		call := func(i int, key string) {
			wg.Go(func() { got[i], _ = loads.Get(t.Context(), key, load) })
		}
		call(0, "a")
		call(1, "b") // another key waits for nobody
		time.Sleep(500 * time.Millisecond)
		value.Store(7) // written after the first load began
		for i := 2; i < len(got); i++ {
			call(i, "a")
		}
		start := time.Now()
		wg.Wait()
		if n := began.Load(); n != 3 {
			t.Errorf("%d loads", n)
		}
		for i, v := range got {
			if want := map[bool]int{true: 7}[i > 1]; v != want {
				t.Errorf("call %d got %d", i, v)
			}
		}
		if took := time.Since(start); took != 1500*time.Millisecond {
			t.Errorf("took %v", took)
		}
	})
}

// Whoever leads a load and goes away leaves it to the others; whoever waits and goes
// away waits no longer.
func TestLoadsOfCallersWhoGoAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var loads sharedLoads[string]
		load := func(ctx context.Context) (string, error) {
			select {
			case <-time.After(time.Minute):
				return "loaded", nil
			case <-ctx.Done():
				return "", ctx.Err()
			}
		}
		results := make([]string, 4)
		var wg sync.WaitGroup
		call := func(i int, d time.Duration) {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), d)
				defer cancel()
				begin := time.Now()
				v, err := loads.Get(ctx, "k", load)
				results[i] = fmt.Sprint(v, " ", err, " ", time.Since(begin))
			})
			synctest.Wait()
		}
		call(0, 10*time.Second) // leads, and goes during its load
		call(1, 5*time.Second)  // leads the next, and goes while it waits to begin
		call(2, 7*time.Second)  // joins it, and goes
		call(3, time.Hour)      // stays
		wg.Wait()
		for i, want := range []string{
			" context deadline exceeded 10s", " context deadline exceeded 5s", " context deadline exceeded 7s",
			"loaded <nil> 1m10s",
		} {
			if results[i] != want {
				t.Errorf("call %d: %s, not %s", i, results[i], want)
			}
		}
	})
}

// An error of a load is that of all who share it; a panic is only its own caller's.
func TestLoadsThatFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var loads sharedLoads[int]
		broken := errors.New("broken")
		if _, err := loads.Get(t.Context(), "k", func(context.Context) (int, error) { return 0, broken }); !errors.Is(err,
			broken) {
			t.Error(err)
		}
		func() {
			defer func() { _ = recover() }()
			_, _ = loads.Get(t.Context(), "k", func(context.Context) (int, error) { panic("x") })
		}()
		if v, err := loads.Get(t.Context(), "k", func(context.Context) (int, error) { return 3, nil }); v != 3 || err != nil {
			t.Error(v, err)
		}
	})
}

func TestKept(t *testing.T) {
	now := time.Unix(1000, 0)
	c := newShareCache[string](100)
	has := func(owner string, ids ...uint64) string {
		out := ""
		for _, id := range ids {
			if v, ok := c.Get(owner, id, now); ok {
				out += v
			}
		}
		return out
	}
	check := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %q, not %q", what, got, want)
		}
	}
	for i := range uint64(5) {
		c.Put("a", i, fmt.Sprint(i), 10, now)
	}
	check("four of an owner", has("a", 0, 1, 2, 3, 4), "1234")
	check("of another owner", has("b", 1, 2, 3, 4), "")
	c.Put("a", 1, "1", 10, now) // used again
	c.Put("a", 5, "5", 10, now)
	check("the one used longest ago goes", has("a", 1, 2, 3, 4, 5), "1345")
	c.Put("b", 10, "x", 101, now)
	check("too large", has("b", 10), "")
	c.Put("b", 11, "y", 70, now)
	check("room is made by the oldest", has("a", 1, 3, 4, 5)+has("b", 11), "145y")
	now = now.Add(time.Minute)
	check("after a minute", has("b", 11), "y")
	now = now.Add(time.Millisecond)
	check("after more than a minute", has("b", 11), "")
	c.Put("c", 12, "z", 100, now) // and their room is free
	check("the next", has("c", 12), "z")
}
