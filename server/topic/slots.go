package topic

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/lease"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/topic/internal/storage"
)

// SlotLeaseKind is the kind of the leases.
const SlotLeaseKind = "topics"

const (
	// defaultTTL makes that the slots of a process that dies are served again within 15 s.
	defaultTTL = 9 * time.Second
	// callTime is how long calls that are under way may take when a slot is given up: less
	// than what is left of its lease.
	callTime = 2 * time.Second
)

// SlotManagerConfig holds a SlotManager's dependencies. All of it is required but TTL.
type SlotManagerConfig struct {
	Store   store.Store
	Process string // id of this process, by which others reach it
	Slots   int    // the same in every process, for good
	// Open makes the service of a slot; closed is called once it has ended.
	Open   func(ctx context.Context, slot storage.Slot) (s *Service, closed func(), err error)
	Logger *slog.Logger
	TTL    time.Duration // of a lease; 9 s
}

// SlotManager runs the slots of a process. A process that holds the lease of a slot runs one
// Service for the slot's topics, from their rows and their log; no other process does. A slot is
// given up in this order:
//
//  1. No further call enters. That is so at once when the lease runs out by this process's
//     own clock, before another process may take it.
//  2. The service ends its sessions, whose members attach elsewhere, and stores the positions
//     that are not stored yet.
//  3. The calls that are under way end, the log is closed, and the lease is released.
//
// A process that hangs in between, and wakes up when another one has the slot, changes
// nothing: the store refuses its writes, and the log its appends.
type SlotManager struct {
	cfg    SlotManagerConfig
	leases *lease.Manager

	mu    sync.Mutex
	slots []*runningSlot // nil: another process has the slot, or none has
}

// runningSlot is a slot that this process serves.
type runningSlot struct {
	service *Service
	calls   int           // under way
	idle    chan struct{} // closed when there is none and no further one comes
	closed  bool
}

// NewSlotManager makes a SlotManager.
func NewSlotManager(c SlotManagerConfig) (*SlotManager, error) {
	c.TTL = cmp.Or(c.TTL, defaultTTL)
	p := &SlotManager{cfg: c, slots: make([]*runningSlot, max(c.Slots, 0))}
	var err error
	p.leases, err = lease.New(lease.Config{
		Store: c.Store, Kind: SlotLeaseKind, Holder: c.Process, Slots: c.Slots, Start: p.run, TTL: c.TTL, Logger: c.Logger,
	})
	return p, err
}

// Run holds slots until ctx ends; then it gives all of them up. ready is called when the
// number of slots is known to be that of the installation.
func (p *SlotManager) Run(ctx context.Context, ready func()) error {
	if err := storage.FixSlots(ctx, p.cfg.Store, p.cfg.Slots); ctx.Err() != nil {
		return nil //nolint:nilerr // the end of ctx is no failure
	} else if err != nil {
		return err
	}
	return p.leases.Run(ctx, ready)
}

// DeclaredSlots is the number of slots of an installation, as the first server has made it; 0: there
// was none yet.
func DeclaredSlots(ctx context.Context, s store.Store) (int, error) {
	it, err := s.Get(ctx, table.TopicSlotsKey(), store.Strong)
	if err != nil {
		return 0, fmt.Errorf("number of slots: %w", err)
	}
	return int(it.Get(table.AttrTopicNumber).Int64()), nil
}

// run serves a slot until ctx ends, or another process has it.
func (p *SlotManager) run(ctx context.Context, n int) error {
	began := time.Now()
	service, closed, err := p.cfg.Open(ctx, storage.Slot{Number: n, Of: p.cfg.Slots})
	if err != nil {
		return err
	}
	defer closed()
	r := &runningSlot{service: service, idle: make(chan struct{})}
	p.mu.Lock()
	p.slots[n] = r
	p.mu.Unlock()
	p.cfg.Logger.Info("topics: slot taken", "slot", n, "topics", service.Sizes().Topics,
		"took", time.Since(began).Round(time.Millisecond))
	stop := context.AfterFunc(ctx, func() { p.shut(n, r) })
	defer stop()
	err = service.Run(ctx, func() {})
	p.shut(n, r)
	select {
	case <-r.idle:
	case <-time.After(callTime):
		p.cfg.Logger.Warn("topics: a slot is given up with calls under way", "slot", n)
	}
	p.cfg.Logger.Info("topics: slot given up", "slot", n)
	return err
}

// shut lets no further call into a slot.
func (p *SlotManager) shut(n int, r *runningSlot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.slots[n] == r {
		p.slots[n] = nil
	}
	if !r.closed {
		r.closed = true
		r.end(0)
	}
}

// end counts a call that has ended. The caller holds the lock.
func (r *runningSlot) end(calls int) {
	if r.calls -= calls; r.closed && r.calls == 0 {
		close(r.idle)
	}
}

// Enter returns the service of a slot, if this process serves it. leave is called when the
// call has ended.
func (p *SlotManager) Enter(slot int) (s *Service, leave func(), ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if slot < 0 || slot >= len(p.slots) || p.slots[slot] == nil {
		return nil, nil, false
	}
	r := p.slots[slot]
	r.calls++
	return r.service, sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		r.end(1)
	}), true
}

// Owner returns the process that had a slot when the leases were last read. It is empty if
// no process had the slot, or if the leases were not read yet.
func (p *SlotManager) Owner(slot int) string { return p.leases.Holder(slot) }

// Refresh reads the leases again, and takes slots that are free.
func (p *SlotManager) Refresh(ctx context.Context) error { return p.leases.Refresh(ctx) }

// Slots is the number of slots of all processes.
func (p *SlotManager) Slots() int { return p.cfg.Slots }

// Stats returns the counters of the leases.
func (p *SlotManager) Stats() lease.Stats { return p.leases.Stats() }

// Services returns the services that run in this process.
func (p *SlotManager) Services() []*Service {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []*Service
	for _, r := range p.slots {
		if r != nil {
			all = append(all, r.service)
		}
	}
	return all
}
