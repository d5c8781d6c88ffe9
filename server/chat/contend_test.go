package chat_test

import (
	"context"
	"errors"
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

// writing is what became of people who write in one chat, each one message after the other.
type writing struct {
	overtaken []int64 // how many messages overtook each
	took      []time.Duration
}

func (r *writing) last() int { return len(r.took) - 1 }

func (r *writing) String() string {
	n := r.last()
	return fmt.Sprintf("overtaken: p50 %d, p99 %d, at most %d; took p50 %v, p99 %v, at most %v", r.overtaken[n/2],
		r.overtaken[n*99/100], r.overtaken[n], r.took[n/2], r.took[n*99/100], r.took[n])
}

// write lets writers at each of some processes write, in the time of a bubble, and reports
// what is wrong with what the store has then. f, if given, forwards.
func write(t *testing.T, processes, writers, each int, f *forwarding) (r writing, wrong error) {
	t.Helper()
	var services []*chat.Service
	w := newFixture(t, storetest.NewMemory(time.Now))
	slow := far{w.store}
	for n := range processes {
		services = append(services, w.service(fmt.Sprint("p", n), slow, func(c *chat.Config) {
			if c.Sleep, c.Shared = nil, processes > 1; f != nil {
				c.Forward = f.from(n)
			}
		}))
	}
	if f != nil {
		f.to = services
	}
	users := numbered("u", processes*writers)
	w.users(services[0], users...)
	id := w.group(services[0], users[0], users[1:]...)
	var stored atomic.Int64
	var mu sync.Mutex
	sequences := map[int64]bool{}
	var running sync.WaitGroup
	for i, u := range users {
		running.Go(func() {
			for n := range each {
				before, began := stored.Load(), time.Now()
				m := chat.Send{Caller: u, ChatID: id, Content: "hello"}
				if n%2 == 0 { // the others get their ids from the service
					m.ClientMessageID = fmt.Sprint(n)
				}
				sent, err := services[i%processes].Send(t.Context(), m)
				if err != nil {
					t.Error(err)
					return
				}
				after := stored.Add(1)
				mu.Lock()
				r.overtaken, r.took = append(r.overtaken, after-before-1), append(r.took, time.Since(began))
				sequences[sent.Sequence] = true
				mu.Unlock()
			}
		})
	}
	running.Wait()
	slices.Sort(r.overtaken)
	slices.Sort(r.took)
	w.check()
	if n := len(users) * each; len(sequences) != n || w.head(id).Sequence != int64(n) {
		wrong = fmt.Errorf("%d messages were answered with %d sequences, and the chat has %d", n, len(sequences),
			w.head(id).Sequence)
	}
	return r, wrong
}

// People who write in one chat through two processes are all served: whoever loses the chat's
// head to the other process does not lose it again and again, though the other, which knows
// its own head at once, never pauses. What is counted is how many messages overtake one;
// time is that of a bubble.
func TestNobodyStarvesInAChatOfTwoProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const writers, each = 4, 250
		r, err := write(t, 2, writers, each, nil)
		if t.Log(&r); err != nil {
			t.Error(err)
		}
		// A few turns; without them it is all that the other process has to say.
		if limit := r.overtaken[r.last()]; limit > writers*each/4 {
			t.Errorf("one message was overtaken by %d others", limit)
		}
	})
}

// forwarding is how processes forward to one of them, over links that may be cut.
type forwarding struct {
	to        []*chat.Service
	wrong     bool // each takes the next one for that which the chat prefers
	lossy     bool // a third of the calls do not arrive, and a third of the answers
	forgetful bool // a mistake: the id of the message is not passed on
	forwards  atomic.Int64
}

func (f *forwarding) from(n int) func(context.Context, chat.Send) (chat.Sent, bool) {
	return func(ctx context.Context, m chat.Send) (chat.Sent, bool) {
		to, fate := 0, 2
		if f.wrong {
			to = (n + 1) % len(f.to)
		}
		if to == n {
			return chat.Sent{}, false
		}
		if f.lossy {
			fate = rand.N(3)
		}
		f.forwards.Add(1)
		time.Sleep(rand.N(2 * time.Millisecond))
		if fate == 0 {
			return chat.Sent{}, false
		}
		if f.forgetful {
			m.ClientMessageID = ""
		}
		m.Forwarded = true
		sent, err := f.to[to].Send(ctx, m)
		time.Sleep(rand.N(2 * time.Millisecond))
		return sent, err == nil && fate == 2
	}
}

// Where two processes write to a chat, the one forwards to the other. Its messages take a
// way more, and as many others overtake one as in a chat of one process, give or take.
func TestContendedChatsHaveOneWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const writers, each = 4, 1500 // so many that they look more than once whether it is still so
		alone, err := write(t, 1, 2*writers, each, nil)
		f := &forwarding{}
		r, err2 := write(t, 2, writers, each, f)
		if err := errors.Join(err, err2); err != nil {
			t.Error(err)
		}
		t.Logf("one process: %v", &alone)
		t.Logf("two: %v, %d forwarded", &r, f.forwards.Load())
		if p99, want := r.overtaken[r.last()*99/100], 3*alone.overtaken[alone.last()*99/100]; p99 > want {
			t.Errorf("%d others overtake a message in one of a hundred, want %d at most", p99, want)
		}
		if n := f.forwards.Load(); n < writers*each*9/10 {
			t.Errorf("%d of %d messages were forwarded", n, writers*each)
		}
	})
}

// Each message is stored once, wherever it is forwarded to and whatever is lost on the way.
func TestForwardedOnce(t *testing.T) {
	for name, f := range map[string]*forwarding{
		"cut links": {lossy: true}, "wrong hints": {wrong: true}, "both": {wrong: true, lossy: true},
	} {
		for _, processes := range []int{2, 3} {
			t.Run(fmt.Sprint(name, ", ", processes), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r, err := write(t, processes, 4, 200, f)
					if t.Log(&r); err != nil {
						t.Error(err)
					}
				})
			})
		}
		if f.forwards.Load() == 0 {
			t.Errorf("%s: nothing was forwarded", name)
		}
	}
}

// The same rounds must notice a message that is stored twice.
func TestForwardedOnceNoticesBugs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if _, err := write(t, 2, 4, 200, &forwarding{lossy: true, forgetful: true}); err == nil {
			t.Error("messages that are forwarded without their ids, and lost on the way back, were not noticed")
		}
	})
}

// A chat that only one process writes to is never forwarded, also after others wrote to it.
func TestChatsOfOneProcessAreNotForwarded(t *testing.T) {
	w := newFixture(t, storetest.NewMemory(time.Now))
	forwarded := 0
	service := func(process string) *chat.Service {
		return w.service(process, w.store, func(c *chat.Config) {
			c.Shared = true
			c.Forward = func(context.Context, chat.Send) (chat.Sent, bool) {
				forwarded++
				return chat.Sent{}, false
			}
		})
	}
	p, q := service("p"), service("q")
	w.users(p, "ann", "ben")
	id := w.group(p, "ann", "ben")
	send := func(s *chat.Service, user string) {
		t.Helper()
		if _, err := s.Send(t.Context(), chat.Send{Caller: user, ChatID: id, Content: "hello"}); err != nil {
			t.Fatal(err)
		}
	}
	for range 50 {
		send(p, "ann")
	}
	for range 50 { // ben, or all of them, have moved
		send(q, "ben")
	}
	send(p, "ann")
	send(p, "ann")
	if forwarded != 0 {
		t.Errorf("%d messages of a chat that one process at a time writes to were forwarded", forwarded)
	}
	for range 4 {
		send(p, "ann")
		send(q, "ben")
	}
	if forwarded == 0 {
		t.Error("nothing is forwarded though two write by turns")
	}
}
