package chat_test

import (
	"context"
	"sync"

	"github.com/parley-chat/parley/server/store"
)

// gate is a store whose plans can be held, and whose next plan can be made to fail.
type gate struct {
	store.Store
	mu      sync.Mutex
	cond    *sync.Cond
	closed  bool
	waiting int
	next    func() error
	all     func() error
}

func newGate(st store.Store) *gate {
	g := &gate{Store: st}
	g.cond = sync.NewCond(&g.mu)
	return g
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = false
	g.cond.Broadcast()
}

// waitFor returns when n plans are held.
func (g *gate) waitFor(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.waiting < n {
		g.cond.Wait()
	}
}

// failNext makes the next plan that arrives at an open gate do something and fail.
func (g *gate) failNext(err error, do func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.next = func() error { do(); return err }
}

// failAll makes all plans fail, until it is called with nil.
func (g *gate) failAll(with func() error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all = with
}

func (g *gate) Transact(ctx context.Context, p store.Plan) error {
	if isClock(p) {
		return g.Store.Transact(ctx, p)
	}
	g.mu.Lock()
	held := g.closed
	g.waiting++
	g.cond.Broadcast()
	for g.closed {
		g.cond.Wait()
	}
	g.waiting--
	next := g.next
	if held {
		next = nil // the plan was under way before
	} else {
		g.next = nil
	}
	all := g.all
	g.mu.Unlock()
	if all != nil {
		return all()
	}
	if next != nil {
		if err := next(); err != nil {
			return err
		}
	}
	return g.Store.Transact(ctx, p)
}
