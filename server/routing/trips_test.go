package routing_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/routing"
)

// trips counts what is sent to Redis and waited for: a command, or a pipeline as a whole.
type trips struct{ n atomic.Int64 }

func (c *trips) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *trips) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.n.Add(1)
		return next(ctx, cmd)
	}
}

func (c *trips) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.n.Add(1)
		return next(ctx, cmds)
	}
}

// Where the members of a chat are is asked for in one round trip, however many there are
// and wherever they are, once they were asked for; before that a second one is for their
// rows, and a third for leases that were not seen lately.
func TestLookupRoundTrips(t *testing.T) {
	r, ok := inMiniredis(t).engine.(*routing.Redis)
	if !ok {
		t.Fatal("not Redis")
	}
	for _, members := range []int{2, 10, 100, 1000} {
		var users []string
		for n := range members {
			users = append(users, fmt.Sprintf("user-%d-%d", members, n))
		}
		for n := range 3 {
			s := routing.Server{ID: fmt.Sprintf("srv-%d-%d", members, n), Addr: "h:1", Generation: "g", Epoch: 1}
			testkit.Must(t, r.Claim(t.Context(), s, time.Minute))
			for part := range slices.Chunk(users[n*len(users)/3:], 100) {
				_, err := r.Put(t.Context(), s, part, time.Minute)
				testkit.Must(t, err)
			}
		}
		var c trips
		r.Client().AddHook(&c)
		for i, want := range []int64{3, 1, 1} {
			before := c.n.Load()
			got, err := r.Lookup(t.Context(), users)
			if n := c.n.Load() - before; err != nil || len(got) != members || n != want {
				t.Errorf("lookup %d of %d users: %d found in %d round trips, not %d: %v", i, members, len(got), n, want, err)
			}
		}
	}
}
