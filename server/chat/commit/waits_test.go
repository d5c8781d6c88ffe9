package commit_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/chat/commit"
	"github.com/parley-chat/parley/server/chat/plan"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/store/table"
)

// throttling is a store that carries out no plan.
type throttling struct{ store.Store }

func (throttling) Transact(context.Context, store.Plan) error { return store.ErrThrottled }

// recorded makes a Committer whose clock goes by its waits, and a list of these.
func recorded(shared bool) (*commit.Committer, *[]time.Duration) {
	now, waits := time.UnixMilli(1_700_000_000_000), new([]time.Duration)
	clock := func() time.Time { return now }
	return commit.New(commit.Config{
		Store: throttling{storetest.NewMemory(clock)}, Clock: clock, Shared: shared,
		Sleep: func(_ context.Context, d time.Duration) error {
			*waits = append(*waits, d)
			now = now.Add(d)
			return nil
		},
		Committed: func(*plan.Plan) {}, CountChats: func(context.Context, []string) error { return nil },
	}), waits
}

// L-036: waits between attempts are random, and their bounds double up to a second: 5 ms, 10
// ms, and so on. Of 200 runs some come before and some after the middle of each bound, or one
// in 2^200 is unlucky.
func TestWaitsGrowAtRandom(t *testing.T) {
	bounds := []time.Duration{5, 10, 20, 40, 80, 160, 320, 640, 1000, 1000}
	write := store.Write{Op: store.OpPut, Key: table.UserKey("ann"), Item: table.User{}.Item()}
	type run func() (waits []time.Duration)
	repeat := func() []time.Duration { // what the store throttles
		c, waits := recorded(false)
		if err := c.Repeat(t.Context(), write); !errors.Is(err, store.ErrThrottled) {
			t.Fatalf("%v, want what the store answers in the end", err)
		}
		return *waits
	}
	lost := func(shared bool, free, every int) run { // what other commits are ahead of
		return func() []time.Duration {
			c, waits := recorded(shared)
			backoff := c.Backoff()
			for i := range free + every*(len(bounds)+1) {
				if err := backoff.Wait(t.Context(), t.Context()); err != nil {
					t.Fatal(err)
				}
				if n := max(0, i+1-free) / every; len(*waits) != n {
					t.Fatalf("%d waits after %d attempts, want %d", len(*waits), i+1, n)
				}
			}
			return *waits
		}
	}
	for name, c := range map[string]struct {
		run   run
		first int // bound of the first wait
	}{
		"throttled": {repeat, 0}, "alone": {lost(false, 2, 1), 0}, "shared": {lost(true, 0, 12), 1},
	} {
		early, late := make([]int, len(bounds)), make([]int, len(bounds))
		for range 200 {
			waits := c.run()
			for i, bound := range bounds[c.first:] {
				bound *= time.Millisecond
				switch {
				case len(waits) <= i || waits[i] >= bound:
					t.Fatalf("%s: waits %v, want a %dth below %v", name, waits, i+1, bound)
				case waits[i] < bound/2:
					early[i]++
				default:
					late[i]++
				}
			}
		}
		for i, bound := range bounds[c.first:] {
			if early[i] == 0 || late[i] == 0 {
				t.Errorf("%s: of 200 waits below %d ms %d are short and %d long, want both", name, bound, early[i], late[i])
			}
		}
	}
}
