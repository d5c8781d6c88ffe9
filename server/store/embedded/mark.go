package embedded

import (
	"context"
	"slices"
	"sync"
)

// mark tells when everything that was visible at a moment is on disk.
//
// Pebble shows a write before it is synced. A writer takes a ticket before its
// write can be seen and returns it when the write is synced; so whatever a reader
// saw, its writer has a ticket by then, and the reader waits until all tickets
// given out so far are back. The wait starts no sync of its own: it is shared with
// the writers'.
//
// After a failed sync nothing is promised any more: tickets and waits fail.
type mark struct {
	mu      sync.Mutex
	next    uint64              // next ticket
	low     uint64              // all tickets below are back
	back    map[uint64]struct{} // tickets at or above low that are back
	waiters []waiter            // by target, because targets only grow
	broken  error               // set once, for good
}

type waiter struct {
	target uint64
	ready  chan struct{}
}

func (m *mark) take() (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.broken != nil {
		return 0, m.broken
	}
	m.next++
	return m.next - 1, nil
}

func (m *mark) giveBack(t uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if t != m.low {
		m.back[t] = struct{}{}
		return
	}
	for m.low++; ; m.low++ {
		if _, ok := m.back[m.low]; !ok {
			break
		}
		delete(m.back, m.low)
	}
	n := 0
	for ; n < len(m.waiters) && m.waiters[n].target <= m.low; n++ {
		close(m.waiters[n].ready)
	}
	m.waiters = slices.Delete(m.waiters, 0, n)
}

// fail ends all waits, now and later, with an error.
func (m *mark) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.broken != nil {
		return
	}
	m.broken = err
	for _, w := range m.waiters {
		close(w.ready)
	}
	m.waiters = nil
}

func (m *mark) failure() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.broken
}

// inFlight is the number of tickets that are out.
func (m *mark) inFlight() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return int(m.next-m.low) - len(m.back)
}

// wait returns when all tickets that are out now are back.
func (m *mark) wait(ctx context.Context) error {
	m.mu.Lock()
	if m.broken != nil || m.low == m.next {
		defer m.mu.Unlock()
		return m.broken
	}
	w := waiter{target: m.next, ready: make(chan struct{})}
	m.waiters = append(m.waiters, w)
	m.mu.Unlock()
	select {
	case <-w.ready:
		if m.reached(w.target) {
			return nil
		}
		return m.failure()
	case <-ctx.Done():
		return ctx.Err() // the waiter is closed and dropped in its turn
	}
}

func (m *mark) reached(target uint64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.low >= target
}
