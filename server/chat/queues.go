package chat

import (
	"context"
	"fmt"
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/chat/command"
	"github.com/parley-chat/parley/server/chat/plan"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

const shards = 64

var shardSeed = maphash.MakeSeed()

// queueConfig sets up Queues.
type queueConfig struct {
	// Execute runs a group of commands: one, or sends that share plans. It returns the
	// outcomes of sends, one for each; a command with Retry goes back to the front of
	// the queue, because the leader's context ended. err, if not nil, is the outcome of all
	// others. It must not panic: a chat must never be stuck behind a command.
	Execute func(ctx context.Context, q *queuedChat, group []*queuedCommand) (outcomes []plan.Outcome, err error)
	// Waiting is the number of commands that may wait for one chat; more are refused
	// with store.ErrThrottled.
	Waiting int
	// Heads is the number of chats without commands whose heads are cached.
	Heads int
}

// queues are the queues of all chats in a process: what the members of a chat do in it is done one
// after the other, and sends that gather meanwhile share a plan.
//
// A queue has no goroutine. A caller that submits a command to an idle chat becomes its
// leader and runs the command on its own goroutine; commands submitted meanwhile wait. When
// its command is done the leader passes the lead to the waiter in front, which first takes
// the commands that can share a plan with its own. So a command runs as soon as the chat is
// free, no caller waits for others to join its plan, and a caller that is alone sees no
// other goroutine.
//
// Fairness: users have their turns one after the other, with one command each, and plans of
// sends alternate with other commands. So a user with many commands waits for them, and
// others wait for one plan of each kind at most. Users who are not members must be refused
// before they reach the queue.
//
// A caller whose context ends leaves the queue, and passes the lead on if it has just
// got it. A send that is in another's plan already runs to its end: the caller
// gets the context's error and the outcome is lost for it. A leader leaves when its plan
// has an outcome, or when it would wait for a retry; then the others of its group
// return to the front of the queue.
//
// queues are safe for concurrent use. Everything of a chat but what the leader owns
// changes only under its shard's mutex, and that only by the leader, to whom the mutex
// passed the lead. A waiter that is woken and whose context ends at the same moment checks
// under the mutex which came first.
type queues struct {
	cfg    queueConfig
	shards [shards]shard
}

// newQueues makes the queues.
func newQueues(cfg queueConfig) *queues {
	s := &queues{cfg: cfg}
	for i := range s.shards {
		s.shards[i].spare = max(1, cfg.Heads/shards)
	}
	return s
}

type shard struct {
	mu    sync.Mutex
	chats map[string]*queuedChat
	idle  *queuedChat // ring of the chats without a leader, last used first
	spare int         // how many more idle chats may be cached
}

// queuedChat is a chat that is in use, or whose head is cached.
type queuedChat struct {
	ID         string
	prev, next *queuedChat // in the ring of idle chats

	busy      bool
	sends     fairQueue[*queuedCommand]
	exclusive fairQueue[*queuedCommand]  // all other commands
	leads     *fairQueue[*queuedCommand] // the one whose first command has the lead
	lastSends bool                       // the last group was one of sends
	cached    table.Head                 // copy of Head
	contended time.Time                  // copy of until

	// The leader's: the last known head, which may be old. Version 0: none.
	Head table.Head
	// The leader's: consecutive plans of sends since the chat last paused, when the last
	// one ended, and how long it took.
	Consecutive  int
	LastEnd      time.Time
	LastDuration time.Duration
	lost         time.Time // when a plan last lost the head to another process
	until        time.Time // the end of the time in which the chat counts as contended
}

// A chat is contended for contendedFor after a plan of it lost the head to another process,
// unless that was the first in lossMemory: a chat whose members have only moved to another
// process loses its head once.
const (
	contendedFor = 10 * time.Second
	lossMemory   = time.Minute
)

// Lost notes that another process has moved the chat's head. The leader calls it.
func (q *queuedChat) Lost(now time.Time) {
	if now.Sub(q.lost) < lossMemory {
		q.until = now.Add(contendedFor)
	}
	q.lost = now
}

type state uint8

const (
	queued  state = iota
	leading       // in front of the queue, with the lead
	running       // in a plan
	done
)

// queuedCommand is one caller's command: a send, or anything else that must have the chat
// for itself.
type queuedCommand struct {
	Caller string // empty: the system
	// Send is a message to send; nil for anything else.
	Send *command.Message
	// Run is what else is to be done, on the goroutine that submits it.
	Run func(ctx context.Context, q *queuedChat) error

	state      state
	abandoned  bool             // the caller no longer waits
	wake       chan struct{}    // the command is done, or has the lead
	duplicates []*queuedCommand // repetitions of this send, answered with it
	sent       command.Sent
	err        error

	self [1]*queuedCommand // the command as a group
}

// init makes a shard that was never used ready. Callers hold the mutex.
func (sh *shard) init() {
	if sh.chats == nil {
		sh.chats = map[string]*queuedChat{}
		sh.idle = &queuedChat{}
		sh.idle.prev, sh.idle.next = sh.idle, sh.idle
	}
}

func (s *queues) shard(chatID string) *shard {
	return &s.shards[maphash.String(shardSeed, chatID)%shards]
}

// Submit runs a command in its chat's queue and returns its outcome; the sent message is
// empty unless the command is a send.
func (s *queues) Submit(ctx context.Context, chatID string, c *queuedCommand) (command.Sent, error) {
	if err := ctx.Err(); err != nil {
		return command.Sent{}, err
	}
	sh := s.shard(chatID)
	sh.mu.Lock()
	sh.init()
	q := sh.chats[chatID]
	switch {
	case q == nil:
		q = &queuedChat{ID: chatID}
		sh.chats[chatID] = q
	case !q.busy:
		q.prev.next, q.next.prev = q.next, q.prev
		q.prev, q.next = nil, nil
		sh.spare++
	case q.waiting() >= s.cfg.Waiting:
		sh.mu.Unlock()
		return command.Sent{}, fmt.Errorf("chat: %w: too many requests for one chat", store.ErrThrottled)
	}
	c.self[0], c.state = c, running
	group := c.self[:]
	if q.busy {
		c.wake, c.state = make(chan struct{}, 1), queued
		q.queueOf(c).push(c.Caller, c)
		sh.mu.Unlock()
		if lead, err := sh.wait(ctx, q, c); err != nil {
			return command.Sent{}, err // c may be in a plan still
		} else if !lead {
			return c.sent, nil
		}
		sh.mu.Lock()
		group = q.dequeue()
	}
	q.busy, q.lastSends = true, c.Send != nil
	sh.mu.Unlock()

	outcomes, err := s.cfg.Execute(ctx, q, group)

	sh.mu.Lock()
	defer sh.mu.Unlock()
	q.complete(group, outcomes, err)
	sh.passLead(q)
	return c.sent, c.err
}

// Head is the head that this process knew last of a chat, without a version if none.
func (s *queues) Head(chatID string) table.Head {
	sh := s.shard(chatID)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if q := sh.chats[chatID]; q != nil {
		return q.cached
	}
	return table.Head{}
}

// Contended reports whether other processes write to a chat that this one writes to.
func (s *queues) Contended(chatID string, now time.Time) bool {
	sh := s.shard(chatID)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	q := sh.chats[chatID]
	return q != nil && now.Before(q.contended)
}

// Waiting is the number of commands that wait for a chat.
func (s *queues) Waiting(chatID string) int {
	sh := s.shard(chatID)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if q := sh.chats[chatID]; q != nil {
		return q.waiting()
	}
	return 0
}

// Size is the number of chats in memory.
func (s *queues) Size() (n int) {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		n += len(sh.chats)
		sh.mu.Unlock()
	}
	return n
}

func (q *queuedChat) waiting() int { return q.sends.len() + q.exclusive.len() }

// queueOf is where a command waits.
func (q *queuedChat) queueOf(c *queuedCommand) *fairQueue[*queuedCommand] {
	if c.Send != nil {
		return &q.sends
	}
	return &q.exclusive
}

// wait returns when the command is done or abandoned, or with lead when it has the
// lead.
func (sh *shard) wait(ctx context.Context, q *queuedChat, c *queuedCommand) (lead bool, err error) {
	select {
	case <-c.wake:
		sh.mu.Lock()
		defer sh.mu.Unlock()
		return c.state == leading, c.err
	case <-ctx.Done():
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	switch c.state {
	case done:
		return false, c.err
	case running:
		c.abandoned = true
	default:
		q.queueOf(c).remove(c.Caller, c)
		if c.state == leading {
			sh.passLead(q)
		}
	}
	return false, ctx.Err()
}

// dequeue removes the next group from the queue: one command, or sends that can share
// a plan. A repetition of a send in the group waits for that one's answer. Callers
// hold the mutex and have the lead.
func (q *queuedChat) dequeue() []*queuedCommand {
	first := q.leads.pop()
	first.state = running
	if first.Send == nil || q.sends.len() == 0 {
		return first.self[:]
	}
	var capacity plan.Capacity
	capacity.Add(first.Send)
	group := make([]*queuedCommand, 1, min(1+q.sends.len(), plan.MaxSends))
	group[0] = first
	for q.sends.len() > 0 {
		c := q.sends.peek()
		if i := slices.IndexFunc(group, func(g *queuedCommand) bool { return c.Send.Duplicates(g.Send) }); i >= 0 {
			group[i].duplicates = append(group[i].duplicates, c)
		} else if capacity.Add(c.Send) {
			group = append(group, c)
		} else {
			break
		}
		q.sends.pop().state = running
	}
	return group
}

// complete ends a group: the commands to retry return to the front of the
// queue, the others are done. Callers hold the mutex and have the lead.
func (q *queuedChat) complete(group []*queuedCommand, outcomes []plan.Outcome, err error) {
	var again []*queuedCommand
	requeue := func(c *queuedCommand) {
		if !c.abandoned {
			c.state = queued
			again = append(again, c)
		}
	}
	for i, c := range group {
		var out plan.Outcome
		if outcomes != nil {
			out = outcomes[i]
		}
		if out.Retry {
			requeue(c)
			for _, d := range c.duplicates {
				requeue(d)
			}
			c.duplicates = nil
			continue
		}
		if err != nil {
			out = plan.Outcome{Err: err}
		}
		c.finish(out.Sent, out.Err)
		for _, d := range c.duplicates {
			if out.Err != nil {
				requeue(d) // it may succeed by itself
				continue
			}
			d.finish(d.Send.CopyResult(c.Send, out.Sent))
		}
	}
	for _, c := range slices.Backward(again) {
		q.queueOf(c).pushFront(c.Caller, c)
	}
	q.cached, q.contended = q.Head, q.until
}

func (c *queuedCommand) finish(sent command.Sent, err error) {
	c.state, c.sent, c.err = done, sent, err
	if c.wake != nil {
		c.wake <- struct{}{} // never blocks: nothing else is in it, a leader has received what was
	}
}

// passLead passes the lead to the waiter in front, or makes the chat idle. Callers hold
// the mutex and have the lead.
func (sh *shard) passLead(q *queuedChat) {
	q.leads = &q.exclusive
	if q.exclusive.len() == 0 || (q.sends.len() > 0 && !q.lastSends) {
		q.leads = &q.sends
	}
	if q.leads.len() > 0 {
		next := q.leads.peek()
		next.state = leading
		next.wake <- struct{}{} // never blocks: a queued command was not woken
		return
	}
	q.busy = false
	// a chat that was busy once need not keep its queues
	q.sends, q.exclusive = fairQueue[*queuedCommand]{}, fairQueue[*queuedCommand]{}
	if q.Head.Version == 0 { // no such chat, or its head is not known any more
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
