package chat

import (
	"context"
	"fmt"
	"hash/maphash"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/chat/plan"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// The queue of a chat has no goroutine. Whoever submits a command to an idle chat
// becomes its leader and runs the command on its own goroutine; what is submitted
// meanwhile waits. When its command is done the leader passes the lead to the
// waiter in front, which first takes what can share a plan with its own command.
// So a command runs as soon as the chat is free, nobody waits for company, and a
// caller that is alone sees no other goroutine.
//
// A caller whose context ends leaves the queue, with the lead passed on if it was
// just given to it. A send that is in another's plan already goes on: the caller
// gets the context's error and the outcome is lost for it. A leader goes when its plan
// has an outcome, or when it would wait for a retry; then the others of its group
// go back to the front of the queue.
//
// Races: everything of a chat but its head changes only under its shard's mutex,
// and the head only by the leader, to whom the mutex passed the lead. A waiter that
// is woken and whose context ends at the same moment looks under the mutex which
// came first.

const shards = 64

var shardSeed = maphash.MakeSeed()

type shard struct {
	mu    sync.Mutex
	chats map[string]*chatQueue
	idle  *chatQueue // ring of the chats without a leader, last used first
	spare int        // how many more idle chats may be remembered
}

// chatQueue is a chat that is in use, or whose head is remembered.
type chatQueue struct {
	id         string
	prev, next *chatQueue // in the ring of idle chats

	busy    bool
	pending []*command

	// The leader's: the last known head, which may be old. Version 0: none.
	head table.Head
	// The leader's: plans of sends since the chat last rested, when the last one ended,
	// and how long it took.
	row   int
	ended time.Time
	took  time.Duration
}

type state uint8

const (
	queued  state = iota
	leading       // in front of the queue, with the lead
	running       // in a plan
	done
)

// command is one caller's wish: a send, or anything else that must have the chat
// for itself.
type command struct {
	send *plan.Message
	run  func(ctx context.Context, q *chatQueue) error

	state state
	gone  bool          // the caller no longer waits
	wake  chan struct{} // the command is done, or has the lead
	twins []*command    // repetitions of this send, answered with it
	err   error

	self [1]*command // the command as a group
}

// open makes a shard that was never used ready. Callers hold the mutex.
func (sh *shard) open() {
	if sh.chats == nil {
		sh.chats = map[string]*chatQueue{}
		sh.idle = &chatQueue{}
		sh.idle.prev, sh.idle.next = sh.idle, sh.idle
	}
}

func (s *Service) shard(chatID string) *shard {
	return &s.shards[maphash.String(shardSeed, chatID)%shards]
}

// submit runs a command in its chat's queue and returns its error.
func (s *Service) submit(ctx context.Context, chatID string, c *command) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	sh := s.shard(chatID)
	sh.mu.Lock()
	sh.open()
	q := sh.chats[chatID]
	switch {
	case q == nil:
		q = &chatQueue{id: chatID}
		sh.chats[chatID] = q
	case !q.busy:
		q.prev.next, q.next.prev = q.next, q.prev
		q.prev, q.next = nil, nil
		sh.spare++
	case len(q.pending) >= s.cfg.Queue:
		sh.mu.Unlock()
		return fmt.Errorf("chat: %w: too many requests for one chat", store.ErrThrottled)
	}
	q.pending = append(q.pending, c)
	if q.busy {
		c.wake = make(chan struct{}, 1)
		sh.mu.Unlock()
		if err, lead := sh.wait(ctx, q, c); !lead {
			return err
		}
		sh.mu.Lock()
	}
	q.busy = true
	group := q.take()
	sh.mu.Unlock()

	left, err := s.runGroup(ctx, q, group)

	sh.mu.Lock()
	defer sh.mu.Unlock()
	q.settle(group, left, err)
	sh.pass(q)
	return c.err
}

// wait returns when the command is done or given up, or with lead when it has the
// lead.
func (sh *shard) wait(ctx context.Context, q *chatQueue, c *command) (err error, lead bool) {
	select {
	case <-c.wake:
		sh.mu.Lock()
		defer sh.mu.Unlock()
		return c.err, c.state == leading
	case <-ctx.Done():
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	switch c.state {
	case done:
		return c.err, false
	case running:
		c.gone = true
	default:
		q.pending = slices.DeleteFunc(q.pending, func(p *command) bool { return p == c })
		if c.state == leading {
			sh.pass(q)
		}
	}
	return ctx.Err(), false
}

// take removes the next group from the queue: one command, or sends that can share
// a plan. A repetition of a send in the group waits for that one's answer. Callers
// hold the mutex and have the lead.
func (q *chatQueue) take() []*command {
	first := q.pending[0]
	first.state = running
	if first.send == nil || len(q.pending) == 1 {
		q.pending = slices.Delete(q.pending, 0, 1)
		first.self[0] = first
		return first.self[:]
	}
	var room plan.Room
	n := 0
	group := make([]*command, 0, min(len(q.pending), plan.MaxSends))
	for _, c := range q.pending {
		if c.send == nil {
			break
		}
		if i := slices.IndexFunc(group, func(g *command) bool { return c.send.Repeats(g.send) }); i >= 0 {
			group[i].twins = append(group[i].twins, c)
		} else if room.Admit(c.send) {
			group = append(group, c)
		} else {
			break
		}
		c.state = running
		n++
	}
	q.pending = slices.Delete(q.pending, 0, n)
	return group
}

// runGroup runs a group's commands. left are those that it gave back, without an
// answer, because the leader's context ended; err is the answer of those that have
// none yet. It does not panic: a chat must never be stuck behind a command.
func (s *Service) runGroup(ctx context.Context, q *chatQueue, group []*command) (left []*command, err error) {
	defer func() {
		if p := recover(); p != nil {
			q.head = table.Head{}
			left, err = nil, fmt.Errorf("%w: %v\n%s", ErrPanic, p, debug.Stack())
		}
	}()
	// Store calls do not end with the leader's context, because they are others'
	// calls too.
	work := context.WithoutCancel(ctx)
	s.clock.Keep(work, s.transact)
	if group[0].send != nil {
		return s.runSends(ctx, work, q, group)
	}
	return nil, group[0].run(work, q)
}

// settle ends a group: the commands that were given back go to the front of the
// queue, the others are done. Callers hold the mutex and have the lead.
func (q *chatQueue) settle(group, left []*command, err error) {
	var again []*command
	requeue := func(c *command) {
		if !c.gone {
			c.state = queued
			again = append(again, c)
		}
	}
	for _, c := range group {
		if slices.Contains(left, c) {
			requeue(c)
			for _, t := range c.twins {
				requeue(t)
			}
			c.twins = nil
			continue
		}
		if c.err = err; err == nil && c.send != nil {
			c.err = c.send.Err
		}
		c.finish()
		for _, t := range c.twins {
			if c.err != nil {
				requeue(t) // it may fare better by itself
				continue
			}
			t.send.Echo(c.send)
			t.err = t.send.Err
			t.finish()
		}
	}
	if len(again) > 0 {
		q.pending = slices.Insert(q.pending, 0, again...)
	}
}

func (c *command) finish() {
	c.state = done
	if c.wake != nil {
		c.wake <- struct{}{} // never blocks: nothing else is in it, a leader has taken what was
	}
}

// pass gives the lead to the waiter in front, or lets the chat rest. Callers hold
// the mutex and have the lead.
func (sh *shard) pass(q *chatQueue) {
	if len(q.pending) > 0 {
		next := q.pending[0]
		next.state = leading
		next.wake <- struct{}{} // never blocks: a queued command was not woken
		return
	}
	q.busy = false
	if cap(q.pending) > 4 {
		q.pending = nil // a chat that was busy once need not keep its queue
	}
	if q.head.Version == 0 { // no such chat, or not known any more
		delete(sh.chats, q.id)
		return
	}
	if sh.spare == 0 {
		old := sh.idle.prev
		old.prev.next, sh.idle.prev = sh.idle, old.prev
		delete(sh.chats, old.id)
		sh.spare++
	}
	sh.spare--
	q.prev, q.next = sh.idle, sh.idle.next
	q.prev.next, q.next.prev = q, q
}

// exclusive runs a function alone in a chat's queue, on the caller's goroutine: a
// command that is not a send runs only when its caller has the lead.
func (s *Service) exclusive(ctx context.Context, chatID string, run func(ctx context.Context, q *chatQueue) error) error {
	return s.submit(ctx, chatID, &command{run: run})
}
