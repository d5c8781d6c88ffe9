// Package lease deals numbered slots of some work to processes: the process that holds the
// lease of a slot runs it.
//
// It owns the leases, and starts and stops what runs in a slot. It does not know the work (a
// relay, the topics of a slot).
//
// # Rules
//
// Every write of a lease is conditional on the holder and the count that were read: a lease
// is renewed only by its holder, and acquired only if it has not changed. No time is written
// and no two clocks are compared. A process acquires a lease that it has not seen change for
// TTL by its own clock. The holder stops the slot if it could not renew the lease for two
// thirds of TTL by its own clock, so that a slot has stopped before its successor starts. A
// holder that cannot stop, because the process hangs, must be fenced by what the slot writes
// to: with the same transactional id of Kafka for every holder, or a number of the holder
// that the store compares. The same holds for a holder that another process wrongly takes for
// dead (Config.Dead).
//
// Slots are balanced: a process that holds at least two slots less than another requests one
// from it. The holder then stops the slot and transfers the lease.
//
// A holder that stops releases its leases. Others see that in their next round, which
// Refresh brings on.
//
// Concurrency: Run is called by one goroutine; all else is safe for concurrent use.
package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Config sets a Manager up. Zero numbers take the defaults.
type Config struct {
	Store  store.Store
	Kind   string // of the work
	Holder string // id of this process, different after each start
	Slots  int    // the same in every process, at most MaxSlots
	// Start runs a slot until ctx ends. When it returns, none of its goroutines may run. If it
	// returns early, it is called again after a while.
	Start func(ctx context.Context, slot int) error
	// Exclusive says that no other process can be alive: a lease that exists at the start is
	// that of a dead process.
	Exclusive bool
	// Dead reports whether a holder is known to have died, so that its leases can be acquired
	// before TTL. It may be wrong about a process that is slow: only slots whose work is fenced
	// may use it. Nil: a lease says all that is known.
	Dead   func(holder string) bool
	TTL    time.Duration // 15 s
	Logger *slog.Logger
}

// MaxSlots is how many slots there can be of one kind.
const MaxSlots = 64

const (
	defaultTTL = 15 * time.Second
	maxHolder  = 64
	// refreshPause is the least time between two rounds, however often one is asked for.
	refreshPause = 100 * time.Millisecond
)

// Manager holds leases and runs the slots.
type Manager struct {
	cfg      Config
	slots    []*ownedSlot
	observed []observation // by slot

	heldCount, acquired, lost, transferred atomic.Int64
	lastRefresh                            atomic.Int64 // unix ns: last time that all leases were read

	holders atomic.Pointer[[]string] // by slot, as last read
	asked   chan chan struct{}       // for a round; the sent channel is closed when the round has ended
	stopped chan struct{}            // closed when Run has ended
}

// observation is a lease as it was last read, and since when it has not changed.
type observation struct {
	lease table.Lease // no holder if there is no row
	since time.Time
}

// ownedSlot is a slot that this process holds, or whose run has not ended yet.
type ownedSlot struct {
	count       int64     // as last written
	lastRenewal time.Time // start of the last renewal that succeeded
	lastAttempt time.Time // start of the last renewal
	expire      *time.Timer
	cancel      context.CancelFunc
	ended       chan struct{} // closed when the run has ended
	lost        bool          // the lease is not ours any more
	transferTo  string        // process that gets the slot once the run has ended
	restartAt   time.Time     // when a run that ended by itself is started again
}

// New makes a Manager.
func New(cfg Config) (*Manager, error) {
	if cfg.Store == nil || cfg.Kind == "" || cfg.Holder == "" || len(cfg.Holder) > maxHolder || cfg.Start == nil ||
		cfg.Logger == nil {
		return nil, errors.New("lease: store, kind, holder, start and logger are required")
	}
	if cfg.Slots < 1 || cfg.Slots > MaxSlots {
		return nil, fmt.Errorf("lease: 1 to %d slots, not %d", MaxSlots, cfg.Slots)
	}
	cfg.TTL = cmp.Or(cfg.TTL, defaultTTL)
	cfg.Logger = cfg.Logger.With("kind", cfg.Kind)
	m := &Manager{
		cfg: cfg, slots: make([]*ownedSlot, cfg.Slots), observed: make([]observation, cfg.Slots),
		asked: make(chan chan struct{}), stopped: make(chan struct{}),
	}
	m.holders.Store(&[]string{})
	m.lastRefresh.Store(time.Now().UnixNano())
	return m, nil
}

// Stats are the counters of a Manager.
type Stats struct {
	Held, Acquired, Lost, Transferred int64
	Stalled                           time.Duration // since the leases were last read
}

// Stats returns the counters.
func (m *Manager) Stats() Stats {
	return Stats{
		Held: m.heldCount.Load(), Acquired: m.acquired.Load(), Lost: m.lost.Load(), Transferred: m.transferred.Load(),
		Stalled: time.Since(time.Unix(0, m.lastRefresh.Load())),
	}
}

// Slots returns how many slots all processes share.
func (m *Manager) Slots() int { return m.cfg.Slots }

// Run holds leases until ctx ends; then it stops all slots and releases their leases.
func (m *Manager) Run(ctx context.Context, ready func()) error {
	ready()
	t := time.NewTicker(m.cfg.TTL / 6)
	defer t.Stop()
	var waiting []chan struct{}
	for ctx.Err() == nil {
		if err := m.round(ctx); err != nil && ctx.Err() == nil {
			m.cfg.Logger.Warn("lease: cannot check the leases; retrying", "error", err)
		}
		for _, w := range waiting {
			close(w)
		}
		waiting = m.await(ctx, t.C)
	}
	close(m.stopped)
	m.close(context.WithoutCancel(ctx))
	return nil
}

// round reads all leases once. It renews or stops the slots that this process holds,
// acquires free leases, and requests a slot if they are spread unevenly.
func (m *Manager) round(ctx context.Context) error {
	err := m.refresh(ctx)
	step, cancel := context.WithTimeout(ctx, m.cfg.TTL/6)
	m.each(func(n int) { m.renewOrRelease(step, n, err == nil) })
	cancel()
	if err != nil {
		return err
	}
	step, cancel = context.WithTimeout(ctx, m.cfg.TTL/6)
	defer cancel()
	m.each(func(n int) {
		if m.free(n) {
			m.acquire(step, n)
		}
	})
	m.publish()
	m.requestTransfer(step)
	return nil
}

// each calls f for all slots at once: a slow store must not make the last ones late. f owns
// the data that it keeps of a slot.
func (m *Manager) each(f func(n int)) {
	var wg sync.WaitGroup
	for n := range m.slots {
		wg.Go(func() { f(n) })
	}
	wg.Wait()
}

// refresh reads all leases.
func (m *Manager) refresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.TTL/6)
	defer cancel()
	keys := make([]store.Key, len(m.slots))
	for n := range keys {
		keys[n] = table.LeaseKey(m.cfg.Kind, n)
	}
	items, err := m.cfg.Store.BatchGet(ctx, keys, store.Strong)
	if err != nil {
		return fmt.Errorf("read leases: %w", err)
	}
	now := time.Now()
	for n, it := range items {
		l := table.LeaseFrom(it)
		s := &m.observed[n]
		if s.since.IsZero() || s.lease.Holder != l.Holder || s.lease.Count != l.Count {
			s.since = now
		}
		s.lease = l
	}
	if l := m.observed[0].lease; l.Holder != "" && l.TotalSlots != int64(len(m.slots)) && !m.expired(0) {
		return fmt.Errorf("%s runs %d slots, this process %d", l.Holder, l.TotalSlots, len(m.slots))
	}
	m.lastRefresh.Store(now.UnixNano())
	m.publish()
	return nil
}

// expired reports whether a lease has not changed for so long that its holder has stopped, or
// whether its holder has died.
func (m *Manager) expired(n int) bool {
	s := m.observed[n]
	if s.lease.Holder != m.cfg.Holder && (m.cfg.Exclusive || m.cfg.Dead != nil && m.cfg.Dead(s.lease.Holder)) {
		return true
	}
	return time.Since(s.since) >= m.cfg.TTL
}

// free reports whether this process may acquire a lease.
func (m *Manager) free(n int) bool {
	l := m.observed[n].lease
	switch {
	case m.slots[n] != nil:
		return false
	case l.Holder == "", l.Holder == m.cfg.Holder: // without a holder, or transferred to us
		return true
	default:
		return m.expired(n)
	}
}

// renewOrRelease renews the lease of a slot of this process, stops the slot if the lease is
// lost or requested, and releases the slot once its run has ended.
func (m *Manager) renewOrRelease(ctx context.Context, n int, refreshed bool) {
	h := m.slots[n]
	if h == nil {
		return
	}
	if refreshed && !h.lost {
		m.compare(n, h)
	}
	if !h.lost && time.Since(h.lastAttempt) >= m.cfg.TTL/12 { // not in every round that was asked for
		m.renew(ctx, n, h)
	}
	if !h.lost && time.Since(h.lastRenewal) >= m.stopAfter() {
		m.loseLease(n, "it could not be renewed in time")
	}
	select {
	case <-h.ended:
		m.afterRun(ctx, n, h)
	default:
	}
}

// compare compares a slot of this process with its lease as it was last read.
func (m *Manager) compare(n int, h *ownedSlot) {
	l := m.observed[n].lease
	switch {
	case l.Holder != m.cfg.Holder:
		m.loseLease(n, "another process has taken it")
	case l.RequestedBy != "" && h.transferTo == "":
		h.transferTo = l.RequestedBy
		h.cancel()
	}
	if !h.lost && l.Count > h.count { // the outcome of the last renewal was unknown: it succeeded
		h.count = l.Count
		m.extend(h, h.lastAttempt)
	}
}

// renew renews a lease. It is an update, so that a request that came meanwhile remains.
func (m *Manager) renew(ctx context.Context, n int, h *ownedSlot) {
	h.lastAttempt = time.Now()
	err := m.transact(ctx, store.Write{
		Op: store.OpUpdate, Key: table.LeaseKey(m.cfg.Kind, n), Cond: unchanged(m.cfg.Holder, h.count), Name: "renew",
		Update: store.Update{Add: []store.Increment{{Name: table.AttrCount, N: 1}}},
	})
	var failed *store.ConditionError
	switch {
	case err == nil:
		h.count++
		m.extend(h, h.lastAttempt)
	case errors.As(err, &failed):
		m.loseLease(n, "another process has taken it")
	default:
		// The next round reads an unknown outcome. Until then the lease runs out.
		m.cfg.Logger.Warn("lease: cannot renew the lease", "slot", n, "error", err)
	}
}

// afterRun releases, transfers or restarts a slot whose run has ended.
func (m *Manager) afterRun(ctx context.Context, n int, h *ownedSlot) {
	now := time.Now()
	switch {
	case h.lost:
		m.slots[n] = nil
	case h.transferTo != "":
		next := table.Lease{Holder: h.transferTo, Count: h.count + 1, TotalSlots: int64(len(m.slots))}
		if err := m.put(ctx, n, unchanged(m.cfg.Holder, h.count), next, "transfer"); err != nil {
			m.cfg.Logger.Warn("lease: cannot transfer the lease", "slot", n, "error", err)
			return
		}
		m.cfg.Logger.Info("lease: transferred", "slot", n, "to", h.transferTo)
		m.transferred.Add(1)
		m.heldCount.Add(-1)
		m.slots[n] = nil
	case h.restartAt.IsZero(): // the run ended by itself
		h.restartAt = now.Add(m.cfg.TTL / 3)
	case !now.Before(h.restartAt):
		h.restartAt = time.Time{}
		m.start(ctx, n, h)
	}
}

// extend extends a lease by a renewal that started at a time.
func (m *Manager) extend(h *ownedSlot, started time.Time) {
	h.lastRenewal = started
	h.expire.Reset(m.stopAfter() - time.Since(started))
}

// stopAfter is how long a slot runs without a renewal. It has the rest of TTL to stop.
func (m *Manager) stopAfter() time.Duration { return m.cfg.TTL * 2 / 3 }

// loseLease stops a slot whose lease this process has lost.
func (m *Manager) loseLease(n int, why string) {
	h := m.slots[n]
	h.lost = true
	h.cancel()
	m.lost.Add(1)
	m.heldCount.Add(-1)
	m.cfg.Logger.Warn("lease: lost", "slot", n, "why", why)
}

// acquire acquires a free lease and starts its slot.
func (m *Manager) acquire(ctx context.Context, n int) {
	l := m.observed[n].lease
	now := time.Now()
	next := table.Lease{Holder: m.cfg.Holder, Count: l.Count + 1, TotalSlots: int64(len(m.slots))}
	var err error
	if l.Holder == "" {
		err = m.put(ctx, n, store.Absent(), next, "acquire")
	} else {
		err = m.put(ctx, n, unchanged(l.Holder, l.Count), next, "acquire")
	}
	if err != nil { // another process was faster, or the next round reads the outcome
		m.cfg.Logger.Info("lease: lease not acquired", "slot", n, "error", err)
		return
	}
	m.acquired.Add(1)
	m.heldCount.Add(1)
	m.observed[n] = observation{lease: next, since: now}
	h := &ownedSlot{count: next.Count, lastRenewal: now, lastAttempt: now}
	m.slots[n] = h
	m.start(ctx, n, h)
}

// start runs a slot in the background.
func (m *Manager) start(ctx context.Context, n int, h *ownedSlot) {
	run, cancel := context.WithCancel(context.WithoutCancel(ctx)) // close stops the runs, and releases the leases then
	ended := make(chan struct{})
	h.cancel, h.ended = cancel, ended
	if h.expire != nil {
		h.expire.Stop()
	}
	h.expire = time.AfterFunc(m.stopAfter()-time.Since(h.lastRenewal), cancel) // also if this goroutine hangs
	go func() {
		defer close(ended)
		defer cancel()
		if err := m.cfg.Start(run, n); err != nil && run.Err() == nil {
			m.cfg.Logger.Warn("lease: run failed; restarting", "slot", n, "error", err)
		}
	}()
}

// requestTransfer requests a slot from the process that holds most, if that holds at least
// two more than this one.
func (m *Manager) requestTransfer(ctx context.Context) {
	held := map[string]int{} // slots by process
	for n := range m.observed {
		l := m.observed[n].lease
		switch {
		case m.slots[n] != nil && !m.slots[n].lost:
			held[m.cfg.Holder]++
		case l.RequestedBy == m.cfg.Holder && l.Holder != m.cfg.Holder && !m.expired(n):
			return // requested already
		case l.Holder != "" && l.Holder != m.cfg.Holder:
			held[l.Holder]++
		}
	}
	from := -1
	for n := range m.observed {
		l := m.observed[n].lease
		if l.Holder == "" || l.Holder == m.cfg.Holder || l.RequestedBy != "" || held[l.Holder] < held[m.cfg.Holder]+2 {
			continue
		}
		if from < 0 || held[l.Holder] > held[m.observed[from].lease.Holder] {
			from = n
		}
	}
	if from < 0 {
		return
	}
	w := store.Write{
		Op: store.OpUpdate, Key: table.LeaseKey(m.cfg.Kind, from),
		Cond: store.Exists().Eq(table.AttrHolder,
			store.String(m.observed[from].lease.Holder)).Without(table.AttrRequestedBy),
		Name:   "request",
		Update: store.Update{Set: []store.Attr{{Name: table.AttrRequestedBy, Value: store.String(m.cfg.Holder)}}},
	}
	if err := m.transact(ctx, w); err != nil {
		m.cfg.Logger.Info("lease: cannot request a slot", "slot", from, "error", err)
	}
}

// unchanged is the condition that a lease is as it was read.
func unchanged(holder string, count int64) store.Condition {
	return store.Exists().Eq(table.AttrHolder, store.String(holder)).Eq(table.AttrCount, store.Int(count))
}

func (m *Manager) put(ctx context.Context, n int, cond store.Condition, l table.Lease, name string) error {
	return m.transact(ctx, store.Write{Op: store.OpPut, Key: table.LeaseKey(m.cfg.Kind, n), Item: l.Item(), Cond: cond,
		Name: name})
}

func (m *Manager) transact(ctx context.Context, w store.Write) error {
	return m.cfg.Store.Transact(ctx, store.Plan{Writes: []store.Write{w}})
}

// close stops all slots and releases their leases.
func (m *Manager) close(ctx context.Context) {
	for _, h := range m.slots {
		if h != nil {
			h.cancel()
		}
	}
	// Bounded, because a store that hangs must not keep the process alive.
	for n, h := range m.slots {
		if h == nil {
			continue
		}
		<-h.ended
		m.slots[n] = nil
		if h.lost {
			continue
		}
		m.heldCount.Add(-1)
		w := store.Write{Op: store.OpDelete, Key: table.LeaseKey(m.cfg.Kind, n),
			Cond: store.Exists().Eq(table.AttrHolder, store.String(m.cfg.Holder)), Name: "release"}
		step, cancel := context.WithTimeout(ctx, m.cfg.TTL/6)
		err := m.transact(step, w)
		cancel()
		if err != nil {
			m.cfg.Logger.Warn("lease: cannot release the lease", "slot", n, "error", err)
		}
	}
}
