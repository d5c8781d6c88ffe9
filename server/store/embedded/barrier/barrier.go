// Package barrier waits until everything that was visible at a moment is on disk.
//
// It owns the tickets of writers and the waits of readers; it writes and syncs nothing
// itself. Concurrency: a Barrier is safe for concurrent use; its mutex is held for
// moments only.
package barrier

import (
	"context"
	"slices"
	"sync"
)

// Barrier is the durability barrier of one engine.
//
// In Pebble a write is visible before it is synced. A writer acquires a ticket before its
// write is visible and returns it when the write is synced. A reader waits until all
// tickets acquired so far are returned: those of the writes that it saw are among them.
// The wait starts no sync of its own.
//
// After a failed sync all tickets and waits fail.
type Barrier struct {
	mu       sync.Mutex
	next     uint64              // next ticket
	low      uint64              // all tickets below are returned
	returned map[uint64]struct{} // tickets at or above low that are returned
	waiters  []waiter            // by target, because targets only grow
	broken   error               // set once, for good
}

// New makes a Barrier without tickets.
func New() *Barrier { return &Barrier{returned: map[uint64]struct{}{}} }

type waiter struct {
	target uint64
	ready  chan struct{}
}

// Ticket acquires a ticket for a write that is not visible yet. After a failed sync it
// returns that error.
func (b *Barrier) Ticket() (uint64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.broken != nil {
		return 0, b.broken
	}
	b.next++
	return b.next - 1, nil
}

// Done returns a ticket: its write is synced, or will never be visible.
func (b *Barrier) Done(t uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if t != b.low {
		b.returned[t] = struct{}{}
		return
	}
	for b.low++; ; b.low++ {
		if _, ok := b.returned[b.low]; !ok {
			break
		}
		delete(b.returned, b.low)
	}
	n := 0
	for ; n < len(b.waiters) && b.waiters[n].target <= b.low; n++ {
		close(b.waiters[n].ready)
	}
	b.waiters = slices.Delete(b.waiters, 0, n)
}

// Fail ends all waits, now and later, with an error.
func (b *Barrier) Fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.broken != nil {
		return
	}
	b.broken = err
	for _, w := range b.waiters {
		close(w.ready)
	}
	b.waiters = nil
}

// Failure is the error of a failed sync, nil as long as there was none.
func (b *Barrier) Failure() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.broken
}

// InFlight is the number of tickets that are not returned.
func (b *Barrier) InFlight() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return int(b.next-b.low) - len(b.returned)
}

// Wait waits until all tickets that are acquired now are returned.
func (b *Barrier) Wait(ctx context.Context) error {
	b.mu.Lock()
	if b.broken != nil || b.low == b.next {
		defer b.mu.Unlock()
		return b.broken
	}
	w := waiter{target: b.next, ready: make(chan struct{})}
	b.waiters = append(b.waiters, w)
	b.mu.Unlock()
	select {
	case <-w.ready:
		if b.reached(w.target) {
			return nil
		}
		return b.Failure()
	case <-ctx.Done():
		return ctx.Err() // Done removes the waiter later
	}
}

func (b *Barrier) reached(target uint64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.low >= target
}

// Waiting is the number of waits.
func (b *Barrier) Waiting() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.waiters)
}
