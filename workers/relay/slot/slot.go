// Package slot decides which process runs which relay: the outbox's shards are
// dealt to a fixed number of slots, and a slot is run by the process that holds its
// lease.
//
// It owns the leases and the starting and stopping of what runs in a slot; what
// runs there (package relay) it does not know.
//
// # Rules
//
// A lease is renewed only if it is still held, and taken only from the state that
// was seen: every write is conditional on holder and count. No time is written and
// no clock is compared with another's: a process takes a lease over when it has
// not seen it change for TTL by its own clock, and the holder stops the slot when
// it has not renewed it for two thirds of that by its own, so that a slot has
// stopped before its successor starts. A holder that cannot stop, because the
// process hangs, is fenced by Kafka: a slot's transactional id is always the same.
//
// Slots are spread: a process that holds at least two less than another asks it
// for one, which stops the slot and hands it over.
//
// Concurrency: a Manager is run by one goroutine; Stats may be called by anybody.
package slot

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Slot is one share of the outbox.
type Slot struct {
	Number          int
	Shards          []int
	TransactionalID string // the same for every holder
}

// Of returns a slot of n.
func Numbered(number, n int) Slot {
	s := Slot{Number: number, TransactionalID: fmt.Sprintf("parley-relay-%d", number)}
	for shard := number; shard < event.Shards; shard += n {
		s.Shards = append(s.Shards, shard)
	}
	return s
}

// Config sets a Manager up. Zero numbers take the defaults.
type Config struct {
	Store  store.Store
	Holder string // id of this process, another one after each start
	Slots  int    // the same in every process, at most event.Shards
	// Start runs a slot until ctx ends. When it returns nothing of it runs any more;
	// if it returns early it is started again after a while.
	Start func(ctx context.Context, s Slot) error
	// Alone says that no other process can be alive, so that a lease that is found
	// at the start is one of the dead.
	Exclusive bool
	TTL       time.Duration // 15 s
	Logger    *slog.Logger
}

// kind is the name of these leases.
const kind = "relay"

const (
	defaultTTL = 15 * time.Second
	maxHolder  = 64
)

// Manager holds leases and runs their slots.
type Manager struct {
	cfg   Config
	slots []*held
	seen  []sight // by slot

	holding, taken, lost, handed atomic.Int64
	looked                       atomic.Int64 // unix ns: when all leases were last read
}

// sight is how a lease was when it was last read, and since when it has been so.
type sight struct {
	lease table.Lease // no holder: there is no row
	since time.Time
}

// held is a slot that this process holds, or whose run has not ended yet.
type held struct {
	count   int64     // as written last
	renewed time.Time // when the last renewal was begun that succeeded
	tried   time.Time // when the last renewal was begun
	expire  *time.Timer
	cancel  context.CancelFunc
	ended   chan struct{} // closed when the run has ended
	stopped bool          // by us: no longer ours
	giveTo  string        // once the run has ended
	again   time.Time     // when a run that ended by itself may begin again
}

// New makes a Manager.
func New(cfg Config) (*Manager, error) {
	if cfg.Store == nil || cfg.Holder == "" || len(cfg.Holder) > maxHolder || cfg.Start == nil || cfg.Logger == nil {
		return nil, errors.New("slot: store, holder, start and logger are required")
	}
	if cfg.Slots < 1 || cfg.Slots > event.Shards {
		return nil, fmt.Errorf("slot: 1 to %d slots, not %d", event.Shards, cfg.Slots)
	}
	if cfg.TTL == 0 {
		cfg.TTL = defaultTTL
	}
	m := &Manager{cfg: cfg, slots: make([]*held, cfg.Slots), seen: make([]sight, cfg.Slots)}
	m.looked.Store(time.Now().UnixNano())
	return m, nil
}

// Stats tells how a Manager is doing.
type Stats struct {
	Held, Acquired, Lost, Transferred int64
	Stalled                           time.Duration // since the leases were last read
}

// Stats returns the counters; it may be called by anybody.
func (m *Manager) Stats() Stats {
	return Stats{
		Held: m.holding.Load(), Acquired: m.taken.Load(), Lost: m.lost.Load(), Transferred: m.handed.Load(),
		Stalled: time.Since(time.Unix(0, m.looked.Load())),
	}
}

// Slots is how many all processes share.
func (m *Manager) Slots() int { return m.cfg.Slots }

// Run holds leases until ctx ends; then it stops all slots and gives them back.
func (m *Manager) Run(ctx context.Context) error {
	t := time.NewTicker(m.cfg.TTL / 6)
	defer t.Stop()
	for ctx.Err() == nil {
		if err := m.Round(ctx); err != nil && ctx.Err() == nil {
			m.cfg.Logger.Warn("slot: leases will be looked at again", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-t.C:
		}
	}
	m.close(context.WithoutCancel(ctx))
	return ctx.Err()
}

// Round looks at all leases once: what we hold is renewed or stopped, what is free
// is taken, and what is spread unevenly is asked for. Run calls it.
func (m *Manager) Round(ctx context.Context) error {
	err := m.look(ctx)
	step, cancel := context.WithTimeout(ctx, m.cfg.TTL/6)
	for n := range m.slots {
		m.tend(step, n, err == nil)
	}
	cancel()
	if err != nil {
		return err
	}
	step, cancel = context.WithTimeout(ctx, m.cfg.TTL/6)
	defer cancel()
	for n := range m.slots {
		if m.free(n) {
			m.take(step, n)
		}
	}
	m.ask(step)
	return nil
}

// look reads all leases.
func (m *Manager) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.TTL/6)
	defer cancel()
	keys := make([]store.Key, len(m.slots))
	for n := range keys {
		keys[n] = table.LeaseKey(kind, n)
	}
	items, err := m.cfg.Store.BatchGet(ctx, keys, store.Strong)
	if err != nil {
		return fmt.Errorf("read leases: %w", err)
	}
	now := time.Now()
	for n, it := range items {
		l := table.LeaseFrom(it)
		s := &m.seen[n]
		if s.since.IsZero() || s.lease.Holder != l.Holder || s.lease.Count != l.Count {
			s.since = now
		}
		s.lease = l
	}
	if l := m.seen[0].lease; l.Holder != "" && l.TotalSlots != int64(len(m.slots)) && !m.dead(0) {
		return fmt.Errorf("%s runs %d slots, this process %d", l.Holder, l.TotalSlots, len(m.slots))
	}
	m.looked.Store(now.UnixNano())
	return nil
}

// dead reports that a lease has not changed for so long that its holder has stopped.
func (m *Manager) dead(n int) bool {
	s := m.seen[n]
	return m.cfg.Exclusive && s.lease.Holder != m.cfg.Holder || time.Since(s.since) >= m.cfg.TTL
}

func (m *Manager) free(n int) bool {
	l := m.seen[n].lease
	switch {
	case m.slots[n] != nil:
		return false
	case l.Holder == "", l.Holder == m.cfg.Holder: // nobody's, or handed to us
		return true
	default:
		return m.dead(n)
	}
}

// tend takes care of a slot that is held: it renews the lease, or stops the slot.
func (m *Manager) tend(ctx context.Context, n int, looked bool) {
	h := m.slots[n]
	if h == nil {
		return
	}
	now := time.Now()
	if looked && !h.stopped {
		l := m.seen[n].lease
		switch {
		case l.Holder != m.cfg.Holder:
			m.lose(n, "another has taken it")
		case l.RequestedBy != "" && h.giveTo == "":
			h.giveTo = l.RequestedBy
			h.cancel()
		}
		if !h.stopped && l.Count > h.count { // the outcome of the last renewal was unknown: it succeeded
			h.count = l.Count
			m.prolong(h, h.tried)
		}
	}
	if !h.stopped {
		h.tried = now
		err := m.transact(ctx, store.Write{ // an update: a wish that came meanwhile stays
			Op: store.OpUpdate, Key: table.LeaseKey(kind, n), Cond: unchanged(m.cfg.Holder, h.count), Name: "renew",
			Update: store.Update{Add: []store.Increment{{Name: table.AttrCount, N: 1}}},
		})
		var failed *store.ConditionError
		switch {
		case err == nil:
			h.count++
			m.prolong(h, now)
		case errors.As(err, &failed):
			m.lose(n, "another has taken it")
		default:
			m.cfg.Logger.Warn("slot: not renewed", "slot", n, "error", err)
			// An unknown outcome is read in the next round; until then the time runs.
		}
	}
	if !h.stopped && time.Since(h.renewed) >= m.stopAfter() {
		m.lose(n, "it could not be renewed in time")
	}
	select {
	case <-h.ended:
	default:
		return
	}
	switch {
	case h.stopped:
		m.slots[n] = nil
	case h.giveTo != "":
		if err := m.put(ctx, n, unchanged(m.cfg.Holder, h.count), table.Lease{Holder: h.giveTo, Count: h.count + 1, TotalSlots: int64(len(m.slots))}, "hand over"); err != nil {
			m.cfg.Logger.Warn("slot: not handed over", "slot", n, "error", err)
			return
		}
		m.cfg.Logger.Info("slot: handed over", "slot", n, "to", h.giveTo)
		m.handed.Add(1)
		m.holding.Add(-1)
		m.slots[n] = nil
	case h.again.IsZero(): // it ended by itself
		h.again = now.Add(m.cfg.TTL / 3)
	case !now.Before(h.again):
		h.again = time.Time{}
		m.start(ctx, n, h)
	}
}

// prolong notes a renewal that was begun at a time.
func (m *Manager) prolong(h *held, begun time.Time) {
	h.renewed = begun
	h.expire.Reset(m.stopAfter() - time.Since(begun))
}

// stopAfter is how long a slot runs without a renewal. What is left of TTL is the
// time it has to stop.
func (m *Manager) stopAfter() time.Duration { return m.cfg.TTL * 2 / 3 }

func (m *Manager) lose(n int, why string) {
	h := m.slots[n]
	h.stopped = true
	h.cancel()
	m.lost.Add(1)
	m.holding.Add(-1)
	m.cfg.Logger.Warn("slot: lost", "slot", n, "why", why)
}

// take takes a free lease and starts its slot.
func (m *Manager) take(ctx context.Context, n int) {
	l := m.seen[n].lease
	now := time.Now()
	next := table.Lease{Holder: m.cfg.Holder, Count: l.Count + 1, TotalSlots: int64(len(m.slots))}
	var err error
	if l.Holder == "" {
		err = m.put(ctx, n, store.Absent(), next, "take")
	} else {
		err = m.put(ctx, n, unchanged(l.Holder, l.Count), next, "take")
	}
	if err != nil { // another was faster, or the outcome will be seen in the next round
		m.cfg.Logger.Info("slot: not taken", "slot", n, "error", err)
		return
	}
	m.taken.Add(1)
	m.holding.Add(1)
	h := &held{count: next.Count, renewed: now}
	m.slots[n] = h
	m.start(ctx, n, h)
}

func (m *Manager) start(ctx context.Context, n int, h *held) {
	run, cancel := context.WithCancel(context.WithoutCancel(ctx)) // Run stops them, and then gives them back
	ended := make(chan struct{})
	h.cancel, h.ended = cancel, ended
	if h.expire != nil {
		h.expire.Stop()
	}
	h.expire = time.AfterFunc(m.stopAfter()-time.Since(h.renewed), cancel) // whatever else hangs
	go func() {
		defer close(ended)
		defer cancel()
		if err := m.cfg.Start(run, Numbered(n, len(m.slots))); err != nil && run.Err() == nil {
			m.cfg.Logger.Warn("slot: its run ended and begins again", "slot", n, "error", err)
		}
	}()
}

// ask asks for a slot of the process that holds most, if that is at least two more
// than we do.
func (m *Manager) ask(ctx context.Context) {
	of := map[string]int{}
	for n := range m.seen {
		l := m.seen[n].lease
		switch {
		case m.slots[n] != nil && !m.slots[n].stopped:
			of[m.cfg.Holder]++
		case l.RequestedBy == m.cfg.Holder && l.Holder != m.cfg.Holder && !m.dead(n):
			return // we have asked, and shall get it
		case l.Holder != "" && l.Holder != m.cfg.Holder:
			of[l.Holder]++
		}
	}
	from := -1
	for n := range m.seen {
		l := m.seen[n].lease
		if l.Holder == "" || l.Holder == m.cfg.Holder || l.RequestedBy != "" || of[l.Holder] < of[m.cfg.Holder]+2 {
			continue
		}
		if from < 0 || of[l.Holder] > of[m.seen[from].lease.Holder] {
			from = n
		}
	}
	if from < 0 {
		return
	}
	w := store.Write{
		Op: store.OpUpdate, Key: table.LeaseKey(kind, from), Cond: store.Exists().Eq(table.AttrHolder, store.String(m.seen[from].lease.Holder)).Without(table.AttrRequestedBy), Name: "ask",
		Update: store.Update{Set: []store.Attr{{Name: table.AttrRequestedBy, Value: store.String(m.cfg.Holder)}}},
	}
	if err := m.transact(ctx, w); err != nil {
		m.cfg.Logger.Info("slot: not asked for", "slot", from, "error", err)
	}
}

// unchanged holds for a lease that is as it was seen.
func unchanged(holder string, count int64) store.Condition {
	return store.Exists().Eq(table.AttrHolder, store.String(holder)).Eq(table.AttrCount, store.Int(count))
}

func (m *Manager) put(ctx context.Context, n int, cond store.Condition, l table.Lease, name string) error {
	return m.transact(ctx, store.Write{Op: store.OpPut, Key: table.LeaseKey(kind, n), Item: l.Item(), Cond: cond, Name: name})
}

func (m *Manager) transact(ctx context.Context, w store.Write) error {
	return m.cfg.Store.Transact(ctx, store.Plan{Writes: []store.Write{w}})
}

// close stops all slots and gives their leases back.
func (m *Manager) close(ctx context.Context) {
	for _, h := range m.slots {
		if h != nil {
			h.cancel()
		}
	}
	// Bounded, because a store that hangs must not keep the process from ending.
	for n, h := range m.slots {
		if h == nil {
			continue
		}
		<-h.ended
		m.slots[n] = nil
		if h.stopped {
			continue
		}
		m.holding.Add(-1)
		w := store.Write{Op: store.OpDelete, Key: table.LeaseKey(kind, n), Cond: store.Exists().Eq(table.AttrHolder, store.String(m.cfg.Holder)), Name: "give back"}
		step, cancel := context.WithTimeout(ctx, m.cfg.TTL/6)
		err := m.transact(step, w)
		cancel()
		if err != nil {
			m.cfg.Logger.Warn("slot: not given back", "slot", n, "error", err)
		}
	}
}
