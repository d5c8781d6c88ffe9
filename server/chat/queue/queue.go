// Package queue is the queue of each chat: what the members of a chat do in it is done one
// after the other, and sends that gather meanwhile share a plan.
//
// A queue has no goroutine. Whoever submits a command to an idle chat
// becomes its leader and runs the command on its own goroutine; what is submitted
// meanwhile waits. When its command is done the leader passes the lead to the
// waiter in front, which first takes what can share a plan with its own command.
// So a command runs as soon as the chat is free, nobody waits for company, and a
// caller that is alone sees no other goroutine.
//
// Who waits for whom: users have their turns one after the other, with one command each,
// and plans of sends alternate with other commands. So whoever asks for much waits for
// it, and others for one plan of each kind at most. Those who are no members are to be
// refused before they come here.
//
// A caller whose context ends leaves the queue, with the lead passed on if it was
// just given to it. A send that is in another's plan already goes on: the caller
// gets the context's error and the outcome is lost for it. A leader goes when its plan
// has an outcome, or when it would wait for a retry; then the others of its group
// go back to the front of the queue.
//
// The package does not own what commands do (package chat), nor who may give them
// (package admit).
//
// # Concurrency
//
// Queues may be used by many goroutines. Everything of a chat but what the leader owns
// changes only under its shard's mutex, and that only by the leader, to whom the mutex
// passed the lead. A waiter that is woken and whose context ends at the same moment looks
// under the mutex which came first.
package queue

import (
	"context"
	"fmt"
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/chat/plan"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

const shards = 64

var shardSeed = maphash.MakeSeed()

// Config sets up Queues.
type Config struct {
	// Carry carries a group's commands out: one, or sends that share plans. left are those
	// that it gave back, without an answer, because the leader's context ended; err is the
	// answer of those that have none yet. It must not panic: a chat must never be stuck
	// behind a command.
	Carry func(ctx context.Context, q *Chat, group []*Command) (left []*Command, err error)
	// Waiting is the number of commands that may wait for one chat; more are refused
	// with store.ErrThrottled.
	Waiting int
	// Heads is the number of chats without commands whose heads are remembered.
	Heads int
}

// Queues are the queues of all chats in a process.
type Queues struct {
	cfg    Config
	shards [shards]shard
}

// New makes Queues.
func New(cfg Config) *Queues {
	s := &Queues{cfg: cfg}
	for i := range s.shards {
		s.shards[i].spare = max(1, cfg.Heads/shards)
	}
	return s
}

type shard struct {
	mu    sync.Mutex
	chats map[string]*Chat
	idle  *Chat // ring of the chats without a leader, last used first
	spare int   // how many more idle chats may be remembered
}

// Chat is a chat that is in use, or whose head is remembered.
type Chat struct {
	ID         string
	prev, next *Chat // in the ring of idle chats

	busy  bool
	sends line[*Command]
	solo  line[*Command]  // all other commands
	first *line[*Command] // the lead was given to its first
	sent  bool            // the last group was one of sends
	shown table.Head      // copy of head

	// The leader's: the last known head, which may be old. Version 0: none.
	Head table.Head
	// The leader's: plans of sends since the chat last rested, when the last one ended,
	// and how long it took.
	Row   int
	Ended time.Time
	Took  time.Duration
}

type state uint8

const (
	queued  state = iota
	leading       // in front of the queue, with the lead
	running       // in a plan
	done
)

// Command is one caller's wish: a send, or anything else that must have the chat
// for itself.
type Command struct {
	Caller string // empty: the system
	// Send is a message to send; nil for anything else.
	Send *plan.Message
	// Run is what else is to be done, on the goroutine that submits it.
	Run func(ctx context.Context, q *Chat) error

	state state
	gone  bool          // the caller no longer waits
	wake  chan struct{} // the command is done, or has the lead
	twins []*Command    // repetitions of this send, answered with it
	err   error

	self [1]*Command // the command as a group
}

// open makes a shard that was never used ready. Callers hold the mutex.
func (sh *shard) open() {
	if sh.chats == nil {
		sh.chats = map[string]*Chat{}
		sh.idle = &Chat{}
		sh.idle.prev, sh.idle.next = sh.idle, sh.idle
	}
}

func (s *Queues) shard(chatID string) *shard {
	return &s.shards[maphash.String(shardSeed, chatID)%shards]
}

// Submit runs a command in its chat's queue and returns its error.
func (s *Queues) Submit(ctx context.Context, chatID string, c *Command) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	sh := s.shard(chatID)
	sh.mu.Lock()
	sh.open()
	q := sh.chats[chatID]
	switch {
	case q == nil:
		q = &Chat{ID: chatID}
		sh.chats[chatID] = q
	case !q.busy:
		q.prev.next, q.next.prev = q.next, q.prev
		q.prev, q.next = nil, nil
		sh.spare++
	case q.sends.len()+q.solo.len() >= s.cfg.Waiting:
		sh.mu.Unlock()
		return fmt.Errorf("chat: %w: too many requests for one chat", store.ErrThrottled)
	}
	c.self[0], c.state = c, running
	group := c.self[:]
	if q.busy {
		c.wake, c.state = make(chan struct{}, 1), queued
		q.line(c).push(c.Caller, c)
		sh.mu.Unlock()
		if err, lead := sh.wait(ctx, q, c); !lead {
			return err
		}
		sh.mu.Lock()
		group = q.take()
	}
	q.busy, q.sent = true, c.Send != nil
	sh.mu.Unlock()

	left, err := s.cfg.Carry(ctx, q, group)

	sh.mu.Lock()
	defer sh.mu.Unlock()
	q.settle(group, left, err)
	sh.pass(q)
	return c.err
}

// Known is the head that this process knew last of a chat, without a version if none.
func (s *Queues) Known(chatID string) table.Head {
	sh := s.shard(chatID)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if q := sh.chats[chatID]; q != nil {
		return q.shown
	}
	return table.Head{}
}

// Waiting is the number of commands that wait for a chat.
func (s *Queues) Waiting(chatID string) int {
	sh := s.shard(chatID)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if q := sh.chats[chatID]; q != nil {
		return q.sends.len() + q.solo.len()
	}
	return 0
}

// Size is the number of chats in memory.
func (s *Queues) Size() (n int) {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		n += len(sh.chats)
		sh.mu.Unlock()
	}
	return n
}

// line is where a command waits.
func (q *Chat) line(c *Command) *line[*Command] {
	if c.Send != nil {
		return &q.sends
	}
	return &q.solo
}

// wait returns when the command is done or given up, or with lead when it has the
// lead.
func (sh *shard) wait(ctx context.Context, q *Chat, c *Command) (err error, lead bool) {
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
		q.line(c).remove(c.Caller, c)
		if c.state == leading {
			sh.pass(q)
		}
	}
	return ctx.Err(), false
}

// take removes the next group from the queue: one command, or sends that can share
// a plan. A repetition of a send in the group waits for that one's answer. Callers
// hold the mutex and have the lead.
func (q *Chat) take() []*Command {
	first := q.first.take()
	first.state = running
	if first.Send == nil || q.sends.len() == 0 {
		return first.self[:]
	}
	var room plan.Room
	room.Admit(first.Send)
	group := make([]*Command, 1, min(1+q.sends.len(), plan.MaxSends))
	group[0] = first
	for q.sends.len() > 0 {
		c := q.sends.first()
		if i := slices.IndexFunc(group, func(g *Command) bool { return c.Send.Repeats(g.Send) }); i >= 0 {
			group[i].twins = append(group[i].twins, c)
		} else if room.Admit(c.Send) {
			group = append(group, c)
		} else {
			break
		}
		q.sends.take().state = running
	}
	return group
}

// settle ends a group: the commands that were given back go to the front of the
// queue, the others are done. Callers hold the mutex and have the lead.
func (q *Chat) settle(group, left []*Command, err error) {
	var again []*Command
	requeue := func(c *Command) {
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
		if c.err = err; err == nil && c.Send != nil {
			c.err = c.Send.Err
		}
		c.finish()
		for _, t := range c.twins {
			if c.err != nil {
				requeue(t) // it may fare better by itself
				continue
			}
			t.Send.Echo(c.Send)
			t.err = t.Send.Err
			t.finish()
		}
	}
	for _, c := range slices.Backward(again) {
		q.line(c).giveBack(c.Caller, c)
	}
	q.shown = q.Head
}

func (c *Command) finish() {
	c.state = done
	if c.wake != nil {
		c.wake <- struct{}{} // never blocks: nothing else is in it, a leader has taken what was
	}
}

// pass gives the lead to the waiter in front, or lets the chat rest. Callers hold
// the mutex and have the lead.
func (sh *shard) pass(q *Chat) {
	q.first = &q.solo
	if q.solo.len() == 0 || (q.sends.len() > 0 && !q.sent) {
		q.first = &q.sends
	}
	if q.first.len() > 0 {
		next := q.first.first()
		next.state = leading
		next.wake <- struct{}{} // never blocks: a queued command was not woken
		return
	}
	q.busy = false
	q.sends, q.solo = line[*Command]{}, line[*Command]{} // a chat that was busy once need not keep its queue
	if q.Head.Version == 0 {                             // no such chat, or not known any more
		delete(sh.chats, q.ID)
		return
	}
	if sh.spare == 0 {
		old := sh.idle.prev
		old.prev.next, sh.idle.prev = sh.idle, old.prev
		delete(sh.chats, old.ID)
		sh.spare++
	}
	sh.spare--
	q.prev, q.next = sh.idle, sh.idle.next
	q.prev.next, q.next.prev = q, q
}
