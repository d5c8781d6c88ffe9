package chat

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/parley-chat/parley/server/chat/command"
	"github.com/parley-chat/parley/server/chat/plan"
	"github.com/parley-chat/parley/server/store"
)

// remembered counts the chats in memory, and checks the rings of the idle ones.
func (s *queues) remembered(t *testing.T) (all int) {
	t.Helper()
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		idle := 0
		sh.init()
		for q := sh.idle.next; q != sh.idle; q = q.next {
			if q.prev.next != q || q.next.prev != q || q.busy || sh.chats[q.ID] != q {
				t.Errorf("ring of shard %d is broken at %s", i, q.ID)
			}
			idle++
		}
		if idle != len(sh.chats) || sh.spare < 0 {
			t.Errorf("shard %d: %d chats, %d idle, room for %d", i, len(sh.chats), idle, sh.spare)
		}
		all += len(sh.chats)
		sh.mu.Unlock()
	}
	return all
}

// A waiter that is given the lead in the moment in which it gives up passes it on.
func TestLeadIsPassedOn(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	s := &queues{}
	sh := &s.shards[0]
	sh.spare = 1
	sh.init()
	a, b := &queuedCommand{wake: make(chan struct{}, 1)}, &queuedCommand{wake: make(chan struct{}, 1)}
	for range 100 { // select takes either of two ready cases
		a.state, b.state = queued, queued
		q := &queuedChat{ID: "c", busy: true}
		q.exclusive.push("", a)
		q.exclusive.push("", b)
		sh.chats = map[string]*queuedChat{"c": q}
		sh.passLead(q)
		if a.state != leading {
			t.Fatal("the first waiter has no lead")
		}
		lead, err := sh.wait(ctx, q, a)
		if lead { // woken first: it leads, whatever its context says
			continue
		}
		if !errors.Is(err, context.Canceled) || b.state != leading || q.exclusive.len() != 1 {
			t.Fatalf("%v, %+v", err, b)
		}
		<-a.wake
		<-b.wake
	}
}

// queueFixture runs commands one by one, on a signal, and records who had a turn.
type queueFixture struct {
	*queues
	began, end chan struct{}
	want       int // commands that wait
	mu         sync.Mutex
	turns      []string // the callers of each group, in order
}

func newQueueFixture(waiting, heads int) *queueFixture {
	s := &queueFixture{began: make(chan struct{}), end: make(chan struct{})}
	s.queues = newQueues(queueConfig{Waiting: waiting, Heads: heads,
		Execute: func(_ context.Context, q *queuedChat, group []*queuedCommand) ([]plan.Outcome, error) {
			var who []string
			for _, c := range group {
				who = append(who, c.Caller)
			}
			s.mu.Lock()
			s.turns = append(s.turns, strings.Join(who, ""))
			s.mu.Unlock()
			q.Head.Version++
			s.began <- struct{}{}
			<-s.end
			return nil, nil
		}})
	return s
}

func (s *queueFixture) send(wg *sync.WaitGroup, caller string, n int) {
	send := command.Send{Caller: caller, ChatID: "c", ClientMessageID: fmt.Sprint(caller, n), Content: "x", ContentType: 1}
	m := &command.Message{Send: send, Idempotency: send.Idempotency()}
	wg.Go(func() { _, _ = s.Submit(context.Background(), "c", &queuedCommand{Caller: caller, Send: m}) })
	s.sync()
}

func (s *queueFixture) alone(wg *sync.WaitGroup, caller string) {
	wg.Go(func() { _, _ = s.Submit(context.Background(), "c", &queuedCommand{Caller: caller}) })
	s.sync()
}

// sync waits until what was begun last is in its place.
func (s *queueFixture) sync() {
	for s.want++; s.Waiting("c") != s.want; {
		runtime.Gosched()
	}
}

// Whoever asks for much waits for it: a newcomer's send shares the next plan with those
// of a user who has 60 waiting, and waits for one other command at most, however many
// there are.
func TestCallersHaveTurns(t *testing.T) {
	s := newQueueFixture(1000, 64)
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = s.Submit(context.Background(), "c", &queuedCommand{Caller: "a"}) })
	<-s.began
	for n := range 60 {
		s.send(&wg, "n", n)
	}
	for range 20 {
		s.alone(&wg, "n")
	}
	s.send(&wg, "m", 1)
	s.alone(&wg, "m")
	left := s.Waiting("c")
	if left != 82 {
		t.Fatalf("%d wait", left)
	}
	for left > 0 {
		s.end <- struct{}{}
		<-s.began
		left = s.Waiting("c")
	}
	s.end <- struct{}{}
	wg.Wait()
	all := s.turns[1:]
	if want := []string{"nm" + strings.Repeat("n", 22), "n", strings.Repeat("n", 24), "m", strings.Repeat("n", 13),
		"n"}; !slices.Equal(all[:6], want) {
		t.Errorf("turns %q, want %q", all[:6], want)
	}
	if n := strings.Count(strings.Join(all, ""), "n"); n != 80 || s.remembered(t) != 1 {
		t.Errorf("%d commands of n, %d chats", n, s.remembered(t))
	}
}

// Of the idle chats the least recently used are evicted.
func TestIdleChats(t *testing.T) {
	q := newQueues(queueConfig{Waiting: 1, Heads: 2 * shards,
		Execute: func(_ context.Context, q *queuedChat, _ []*queuedCommand) ([]plan.Outcome, error) {
			q.Head.Version = 1
			return nil, nil
		}})
	for i := range 4 * shards {
		id := fmt.Sprint("c", i)
		for range 2 {
			if _, err := q.Submit(context.Background(), id, &queuedCommand{}); err != nil {
				t.Fatal(err)
			}
		}
		if q.shard(id).idle.next.ID != id || q.Head(id).Version != 1 {
			t.Errorf("%s is not the last used", id)
		}
	}
	if n := q.remembered(t); n > 2*shards || n < shards {
		t.Errorf("%d chats are remembered", n)
	}
	if q.Head("c-none").Version != 0 {
		t.Error("an unknown chat has a head")
	}
}

// A fair queue keeps the order of each caller's own, loses nothing, and has no turn for a
// caller for whom nothing waits.
func TestFairQueueKeepsOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var l fairQueue[int]
		next, out := map[string]int{}, map[string][]int{}
		in := 0
		for range 300 {
			who := string(rune('a' + rng.IntN(4)))
			switch rng.IntN(5) {
			case 0, 1, 2:
				next[who]++
				in++
				l.push(who, next[who])
			case 3:
				if l.len() > 0 {
					c, x := l.turns[0].caller, l.peek()
					if got := l.pop(); got != x {
						t.Fatal(got, x)
					}
					out[c] = append(out[c], x)
					if rng.IntN(4) == 0 { // once more
						l.pushFront(c, x)
						out[c] = out[c][:len(out[c])-1]
						if l.peek() != x || l.turns[0].caller != c {
							t.Fatal("what was put in front is not the first")
						}
					}
				}
			case 4:
				if rng.IntN(4) == 0 && l.callers[who] != nil {
					x := l.callers[who].waits[0]
					l.remove(who, x)
					out[who] = append(out[who], x)
				}
				l.remove(who, -1)
			}
			if len(l.callers) != len(l.turns) {
				t.Fatalf("%d callers, %d turns", len(l.callers), len(l.turns))
			}
		}
		for l.len() > 0 {
			c := l.turns[0].caller
			out[c] = append(out[c], l.pop())
		}
		n := 0
		for who, list := range out {
			n += len(list)
			if !slices.IsSorted(list) {
				t.Errorf("%s: %v", who, list)
			}
		}
		if n != in || len(l.turns) != 0 {
			t.Errorf("%d of %d", n, in)
		}
	}
}

// A queue that is full refuses, and serves the others.
func TestFull(t *testing.T) {
	s := newQueueFixture(2, 64)
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = s.Submit(context.Background(), "c", &queuedCommand{}) })
	<-s.began
	s.alone(&wg, "a")
	s.send(&wg, "b", 1)
	if _, err := s.Submit(context.Background(), "c", &queuedCommand{}); !errors.Is(err, store.ErrThrottled) {
		t.Error(err)
	}
	for range 2 {
		s.end <- struct{}{}
		<-s.began
	}
	s.end <- struct{}{}
	wg.Wait()
}
