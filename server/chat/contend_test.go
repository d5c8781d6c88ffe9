package chat_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
)

// far is a store at the end of a network.
type far struct{ store.Store }

func (f far) way() { time.Sleep(time.Millisecond + rand.N(2*time.Millisecond)) }

func (f far) Transact(ctx context.Context, p store.Plan) error {
	f.way()
	defer f.way()
	return f.Store.Transact(ctx, p)
}

func (f far) Get(ctx context.Context, k store.Key, c store.Consistency) (store.Item, error) {
	f.way()
	defer f.way()
	return f.Store.Get(ctx, k, c)
}

// People who write in one chat through two processes are all served: whoever loses the chat's
// head to the other process does not lose it again and again, though the other, which knows
// its own head at once, never pauses. What is counted is how many messages overtake one;
// time is that of a bubble.
func TestNobodyStarvesInAChatOfTwoProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const writers, each = 4, 250
		w := newWorld(t, storetest.NewMap(time.Now))
		slow := far{w.store}
		real := func(c *chat.Config) { c.Sleep, c.Shared = nil, true }
		processes := []*chat.Service{w.service("p0", slow, real), w.service("p1", slow, real)}
		users := numbered("u", 2*writers)
		w.users(processes[0], users...)
		id := w.group(processes[0], users[0], users[1:]...)
		var stored atomic.Int64
		var mu sync.Mutex
		var overtaken []int64
		var took []time.Duration
		var running sync.WaitGroup
		for i, u := range users {
			running.Go(func() {
				for n := range each {
					before, began := stored.Load(), time.Now()
					if _, err := processes[i%2].Send(t.Context(), chat.Send{Caller: u, ChatID: id, Content: "hello", ClientMessageID: fmt.Sprint(n)}); err != nil {
						t.Error(err)
						return
					}
					after := stored.Add(1)
					mu.Lock()
					overtaken, took = append(overtaken, after-before-1), append(took, time.Since(began))
					mu.Unlock()
				}
			})
		}
		running.Wait()
		slices.Sort(overtaken)
		slices.Sort(took)
		last := len(overtaken) - 1
		t.Logf("overtaken: p50 %d, p99 %d, at most %d; took p50 %v, p99 %v, at most %v", overtaken[last/2], overtaken[last*99/100], overtaken[last],
			took[last/2], took[last*99/100], took[last])
		// A few turns; without them it is all that the other process has to say.
		if most := overtaken[last]; most > writers*each/4 {
			t.Errorf("one message was overtaken by %d others", most)
		}
	})
}
