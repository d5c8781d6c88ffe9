package embedded

import (
	"context"
	"sync"
)

// mark tells when everything that was visible at a moment is on disk.
//
// Pebble shows a write before it is synced. A writer takes a ticket before its
// write can be seen and returns it when the write is synced; so whatever a reader
// saw, its writer has a ticket by then, and the reader waits until all tickets
// given out so far are back. The wait starts no sync of its own: it is shared with
// the writers'.
type mark struct {
	mu      sync.Mutex
	next    uint64              // next ticket
	low     uint64              // all tickets below are back
	back    map[uint64]struct{} // tickets at or above low that are back
	waiters []waiter            // by target, because targets only grow
}

type waiter struct {
	target uint64
	ready  chan struct{}
}

func (m *mark) take() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.next++
	return m.next - 1
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
	for len(m.waiters) > 0 && m.waiters[0].target <= m.low {
		close(m.waiters[0].ready)
		m.waiters = m.waiters[1:]
	}
}

// inFlight is the number of tickets that are out.
func (m *mark) inFlight() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return int(m.next-m.low) - len(m.back)
}

func (m *mark) wait(ctx context.Context) error {
	m.mu.Lock()
	if m.low == m.next {
		m.mu.Unlock()
		return nil
	}
	w := waiter{target: m.next, ready: make(chan struct{})}
	m.waiters = append(m.waiters, w)
	m.mu.Unlock()
	select {
	case <-w.ready:
		return nil
	case <-ctx.Done():
		return ctx.Err() // the waiter is closed and dropped in its turn
	}
}
