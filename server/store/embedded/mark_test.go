package embedded

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
)

func draw(t *testing.T, m *mark) uint64 {
	t.Helper()
	ticket, err := m.take()
	if err != nil {
		t.Fatal(err)
	}
	return ticket
}

func waiters(m *mark) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.waiters)
}

// A wait ends when all tickets from before it are back, in whatever order, and no
// later one holds it up.
func TestMark(t *testing.T) {
	m := &mark{back: map[uint64]struct{}{}}
	if err := m.wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	a, b, c := draw(t, m), draw(t, m), draw(t, m)
	done := make(chan error, 1)
	go func() { done <- m.wait(context.Background()) }()
	until(func() bool { return waiters(m) == 1 })
	later := draw(t, m)
	for _, ticket := range []uint64{c, later, a} {
		m.giveBack(ticket)
		if waiters(m) != 1 {
			t.Fatal("the wait ended without all tickets")
		}
	}
	if got := m.inFlight(); got != 1 {
		t.Fatalf("%d tickets are out", got)
	}
	m.giveBack(b)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if len(m.back) != 0 || m.inFlight() != 0 {
		t.Fatalf("%d tickets are kept, %d out", len(m.back), m.inFlight())
	}
}

func TestMarkEndsAllWaits(t *testing.T) {
	m := &mark{back: map[uint64]struct{}{}}
	draw(t, m)
	bad, done := errors.New("bad"), make(chan error, 2)
	for range 2 {
		go func() { done <- m.wait(context.Background()) }()
	}
	until(func() bool { return waiters(m) == 2 })
	m.fail(bad)
	m.fail(errors.New("worse"))
	for range 2 {
		if err := <-done; !errors.Is(err, bad) {
			t.Fatal(err)
		}
	}
	if err := m.wait(t.Context()); !errors.Is(err, bad) {
		t.Fatal(err)
	}
	if _, err := m.take(); !errors.Is(err, bad) {
		t.Fatal(err)
	}
}

// Whoever waits sees back what was out when it began.
func TestMarkUnderLoad(t *testing.T) {
	m := &mark{back: map[uint64]struct{}{}}
	var mu sync.Mutex
	out := map[uint64]bool{}
	var wg sync.WaitGroup
	for w := range 8 {
		rng := rand.New(rand.NewPCG(uint64(w), 1))
		wg.Go(func() {
			for range 300 {
				if rng.IntN(2) == 0 {
					mu.Lock()
					var before []uint64
					for ticket := range out {
						before = append(before, ticket)
					}
					mu.Unlock()
					if err := m.wait(t.Context()); err != nil {
						t.Error(err)
					}
					mu.Lock()
					for _, ticket := range before {
						if out[ticket] {
							t.Errorf("ticket %d is still out", ticket)
						}
					}
					mu.Unlock()
					continue
				}
				ticket, err := m.take()
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				out[ticket] = true
				mu.Unlock()
				mu.Lock()
				delete(out, ticket)
				mu.Unlock()
				m.giveBack(ticket)
			}
		})
	}
	wg.Wait()
	if m.inFlight() != 0 || len(m.back) != 0 || len(m.waiters) != 0 {
		t.Fatalf("%d out, %d kept, %d waiting", m.inFlight(), len(m.back), len(m.waiters))
	}
}
