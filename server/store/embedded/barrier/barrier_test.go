package barrier

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
)

func draw(t *testing.T, m *Barrier) uint64 {
	t.Helper()
	ticket, err := m.Ticket()
	if err != nil {
		t.Fatal(err)
	}
	return ticket
}

// A wait ends when all tickets from before it are back, in whatever order, and no
// later one holds it up.
func TestMark(t *testing.T) {
	m := New()
	if err := m.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	a, b, c := draw(t, m), draw(t, m), draw(t, m)
	done := make(chan error, 1)
	go func() { done <- m.Wait(context.Background()) }()
	until(func() bool { return m.Waiting() == 1 })
	later := draw(t, m)
	for _, ticket := range []uint64{c, later, a} {
		m.Done(ticket)
		if m.Waiting() != 1 {
			t.Fatal("the wait ended without all tickets")
		}
	}
	if got := m.InFlight(); got != 1 {
		t.Fatalf("%d tickets are out", got)
	}
	m.Done(b)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if len(m.returned) != 0 || m.InFlight() != 0 {
		t.Fatalf("%d tickets are kept, %d out", len(m.returned), m.InFlight())
	}
}

func TestMarkEndsAllWaits(t *testing.T) {
	m := New()
	draw(t, m)
	bad, done := errors.New("bad"), make(chan error, 2)
	for range 2 {
		go func() { done <- m.Wait(context.Background()) }()
	}
	until(func() bool { return m.Waiting() == 2 })
	m.Fail(bad)
	m.Fail(errors.New("worse"))
	for range 2 {
		if err := <-done; !errors.Is(err, bad) {
			t.Fatal(err)
		}
	}
	if err := m.Wait(t.Context()); !errors.Is(err, bad) {
		t.Fatal(err)
	}
	if _, err := m.Ticket(); !errors.Is(err, bad) {
		t.Fatal(err)
	}
}

// Whoever waits sees back what was out when it began.
func TestMarkUnderLoad(t *testing.T) {
	m := New()
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
					if err := m.Wait(t.Context()); err != nil {
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
				ticket, err := m.Ticket()
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
				m.Done(ticket)
			}
		})
	}
	wg.Wait()
	if m.InFlight() != 0 || len(m.returned) != 0 || len(m.waiters) != 0 {
		t.Fatalf("%d out, %d kept, %d waiting", m.InFlight(), len(m.returned), len(m.waiters))
	}
}

// until waits for a condition that other goroutines make true.
func until(ok func() bool) {
	for !ok() {
		runtime.Gosched()
	}
}
