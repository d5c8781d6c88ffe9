// Package groupcommit carries out together what callers ask for at about the same time.
//
// A lane has no goroutine. A caller that comes to an idle lane runs at once, alone and on
// its own goroutine. Calls that come meanwhile wait, and then run as one group on the
// goroutine of the first that waits. So no caller waits for others to join its group, and
// the busier the store is, the more calls share a transaction.
//
// A caller whose context ends leaves the lane, and passes the lead on if it has just got
// it. A group that runs continues to its end: the caller gets the context's error and the
// outcome is lost for it.
//
// The package does not own what a group does, nor what its members have to do with each
// other.
//
// # Concurrency
//
// Lanes are safe for concurrent use. One mutex guards all lanes; it is held for a few
// steps, never while a group runs.
package groupcommit

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/parley-chat/parley/server/store"
)

// Config sets up Lanes. All of it is required.
type Config[T any] struct {
	// Run carries a group out and leaves each outcome in its element. It must not panic. The
	// context is that of one of the callers.
	Run func(ctx context.Context, group []T)
	// Largest is the size of a group.
	Largest int
	// Waiting is the number of elements that may wait in a lane; more are refused with
	// store.ErrThrottled.
	Waiting int
}

// Lanes run groups: one at a time in each lane. A lane without callers takes no memory.
type Lanes[T any] struct {
	cfg   Config[T]
	mu    sync.Mutex
	lanes map[string]*lane[T] // those in which a group runs
}

type lane[T any] struct{ waiting []*waiter[T] }

type waiter[T any] struct {
	element T
	// state says, with the mutex, which came first if the waiter is woken at the moment at which its
	// context ends. The leader of another group sets it to running or done, and passLead to leading.
	// A waiter whose context has ended finds
	//   - waiting: it leaves the lane, and nothing refers to it any more
	//   - leading: it was woken and saw the end of its context first; it leaves, and passes the lead on,
	//     or the lane would have no leader for ever
	//   - running: its element is in a group that cannot be stopped; its outcome is lost for the caller
	//   - done: the outcome is there, and the end of the context came too late
	state state
	wake  chan struct{} // its group is done, or it has the lead; of capacity 1: to wake it never blocks
}

type state uint8

const (
	waiting state = iota
	leading       // woken to run the next group, of which it is the first
	running       // in a group
	done
)

// New makes Lanes.
func New[T any](cfg Config[T]) *Lanes[T] {
	return &Lanes[T]{cfg: cfg, lanes: map[string]*lane[T]{}}
}

// Submit runs an element in a lane and returns nil once it has its outcome. After an error
// the element must not be checked: it may be in a group still. Errors: the context's, and
// store.ErrThrottled.
func (ls *Lanes[T]) Submit(ctx context.Context, name string, element T) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	ls.mu.Lock()
	l := ls.lanes[name]
	if l == nil {
		l = &lane[T]{}
		ls.lanes[name] = l
		ls.mu.Unlock()
		ls.run(ctx, name, l, []T{element}, nil)
		return nil
	}
	if len(l.waiting) >= ls.cfg.Waiting {
		ls.mu.Unlock()
		return fmt.Errorf("groupcommit: %w: too many wait", store.ErrThrottled)
	}
	w := &waiter[T]{element: element, wake: make(chan struct{}, 1)}
	l.waiting = append(l.waiting, w)
	ls.mu.Unlock()
	lead, err := ls.wait(ctx, name, l, w)
	if lead {
		group, others := ls.next(l)
		ls.run(ctx, name, l, group, others)
	}
	return err
}

// Waiting is the number of elements that wait in a lane.
func (ls *Lanes[T]) Waiting(name string) int {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if l := ls.lanes[name]; l != nil {
		return len(l.waiting)
	}
	return 0
}

// wait returns when a waiter's group is done, when the waiter has the lead, or when its
// context ends.
func (ls *Lanes[T]) wait(ctx context.Context, name string, l *lane[T], w *waiter[T]) (lead bool, err error) {
	select {
	case <-w.wake:
		ls.mu.Lock()
		defer ls.mu.Unlock()
		return w.state == leading, nil
	case <-ctx.Done():
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	switch w.state {
	case done:
		return false, nil
	case running:
		return false, ctx.Err()
	}
	l.waiting = slices.DeleteFunc(l.waiting, func(o *waiter[T]) bool { return o == w })
	if w.state == leading {
		ls.passLead(name, l)
	}
	return false, ctx.Err()
}

// next removes the next group from a lane, for its first member.
func (ls *Lanes[T]) next(l *lane[T]) (group []T, others []*waiter[T]) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	n := min(len(l.waiting), ls.cfg.Largest)
	group, others = make([]T, n), slices.Clone(l.waiting[1:n])
	for i, w := range l.waiting[:n] {
		w.state, group[i] = running, w.element
	}
	l.waiting = slices.Delete(l.waiting, 0, n)
	return group, others
}

// run runs a group, reports to the others in it that it is done, and passes the lead on.
func (ls *Lanes[T]) run(ctx context.Context, name string, l *lane[T], group []T, others []*waiter[T]) {
	ls.cfg.Run(ctx, group)
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, w := range others {
		w.state = done
		w.wake <- struct{}{} // never blocks: a caller in a group was not woken
	}
	ls.passLead(name, l)
}

// passLead gives the lead to the first waiter, or ends the lane. Callers hold the mutex and
// have the lead.
func (ls *Lanes[T]) passLead(name string, l *lane[T]) {
	if len(l.waiting) == 0 {
		delete(ls.lanes, name)
		return
	}
	w := l.waiting[0]
	w.state = leading
	w.wake <- struct{}{} // never blocks: a waiter was not woken
}
