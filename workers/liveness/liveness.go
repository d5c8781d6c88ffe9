// Package liveness detects workers that have died, sooner than leases and sessions of Kafka's
// groups run out, which must outlast brokers and stores that stand still.
//
// It owns the rows by which workers show that they live, and the rule for taking one for dead. Its
// callers decide what follows from a death.
//
// # Rules
//
// A worker increments a row of its own twice a second. The others read all rows twice as often. A
// worker whose row they have not seen change for its patience (3.6 s) is taken for dead. That
// outlasts a process that stands still for 3 s. Only time between reads that succeeded counts,
// and of a long pause between two of them one second: a reader that stood still itself, or a
// store that did not answer, makes no other worker dead.
//
// A worker can be slow and alive. The work that others take over from it must be fenced, as it is by
// the transactional id of a relay and the generation of a consumer group. A worker that notices that
// its increments come late doubles its patience up to 29 s, so that a slow machine does not lose its
// work again and again. After ten minutes without delays the patience is what it was.
//
// A worker has a name. A new process with the name of another replaces it: the earlier process
// is gone at once for all workers, and ends if it is alive.
//
// Concurrency: Run is called once; Dead and Stats are safe for concurrent use.
package liveness

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Config sets a Monitor up. Zero durations take the defaults.
type Config struct {
	Store   store.Store
	Name    string // of this worker, the same after a restart; unique among workers
	Process string // id of this process, different after each start
	Logger  *slog.Logger

	Every    time.Duration // between increments, and twice the time between reads; 500 ms
	Patience time.Duration // 3.6 s
}

const (
	defaultEvery = 500 * time.Millisecond
	// A little less than 15 times the time between reads, so that it does not depend on chance
	// whether the read after 15 or the one after 16 decides.
	defaultPatience = 3600 * time.Millisecond
	maxDoublings    = 3
	calmAfter       = 10 * time.Minute // without delays
	// forgetAfter is how long the row of a dead worker remains, so that all others see it.
	forgetAfter = time.Minute
	// retryFor bounds the retries of a handler. Leases and sessions have run out by then.
	retryFor = 30 * time.Second
	// maxDead bounds the processes that Dead knows; one more replaces the one that was reported first, whose
	// leases have run out.
	maxDead = 1024
	maxName = 64
)

// Gone is a process that is no longer there.
type Gone struct {
	Name, Process string
	// Silent says that it is taken for dead. Otherwise it has ended in good order, or another
	// process has its name.
	Silent bool
}

// Monitor shows that this worker lives, and watches the others.
type Monitor struct {
	cfg      Config
	handlers []func(context.Context, Gone) error

	// Of the goroutine that increments.
	patience      time.Duration
	lastHeartbeat time.Time
	lastDelay     time.Time

	// Of the goroutine that reads.
	workers  map[string]*worker // by name
	lastRead time.Time
	pending  []notice

	taken, silent atomic.Int64 // as in Stats

	mu    sync.Mutex
	dead  map[string]bool // processes
	order []string        // the same ones, the first that was reported first
}

// Stats are counters since New.
type Stats struct {
	Taken  int64 // workers that this one has taken for dead
	Silent int64 // times that others have taken this one for dead, if the store answered them
}

// Stats returns the counters.
func (m *Monitor) Stats() Stats { return Stats{Taken: m.taken.Load(), Silent: m.silent.Load()} }

// worker is a row as it was last read.
type worker struct {
	table.Worker
	silent time.Duration // for which the row did not change
	gone   bool          // it has been reported
}

// notice is a call of a handler that has not succeeded.
type notice struct {
	gone   Gone
	handle func(context.Context, Gone) error
	since  time.Time
}

// New makes a Monitor.
func New(cfg Config) (*Monitor, error) {
	cfg.Name = cmp.Or(cfg.Name, cfg.Process)
	if cfg.Store == nil || cfg.Process == "" || len(cfg.Name) > maxName || cfg.Logger == nil {
		return nil, errors.New("liveness: store, process and logger are required, and a name of at most 64 bytes")
	}
	cfg.Every, cfg.Patience = cmp.Or(cfg.Every, defaultEvery), cmp.Or(cfg.Patience, defaultPatience)
	return &Monitor{cfg: cfg, patience: cfg.Patience, workers: map[string]*worker{}, dead: map[string]bool{}}, nil
}

// Name returns the name of this worker.
func (m *Monitor) Name() string { return m.cfg.Name }

// OnGone has f called for each process that is gone, again until it succeeds or 30 s have
// passed. It must be called before Run; handlers run at the same time.
func (m *Monitor) OnGone(f func(context.Context, Gone) error) { m.handlers = append(m.handlers, f) }

// Dead reports whether a process is gone.
func (m *Monitor) Dead(process string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.dead[process]
}

// ErrReplaced says that another process has the name of this one.
var ErrReplaced = errors.New("liveness: another process runs under the name of this worker, " +
	"and two workers with one name stop each other: give each one its own (worker-name)")

// Run shows that this worker lives until ctx ends, and then removes its row. ready is called
// when others can see it. It returns earlier only with ErrReplaced.
func (m *Monitor) Run(ctx context.Context, ready func()) error {
	// Without the row others would not see this worker die.
	_, _ = wait.UntilReady(ctx, m.cfg.Every, m.start, func(err error) (error, bool) {
		m.cfg.Logger.Warn("liveness: cannot show that this worker lives; retrying", "error", err)
		return err, false
	})
	ready()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var reading sync.WaitGroup
	reading.Go(func() { m.each(ctx, m.cfg.Every/2, m.read) })
	m.each(ctx, m.cfg.Every, func(ctx context.Context) {
		if err := m.recordHeartbeat(ctx); errors.Is(err, ErrReplaced) {
			cancel(err)
		} else if err != nil && ctx.Err() == nil {
			m.cfg.Logger.Warn("liveness: cannot show that this worker lives; retrying", "error", err)
		}
	})
	reading.Wait()
	if err := context.Cause(ctx); errors.Is(err, ErrReplaced) {
		return err
	}
	end, stop := context.WithTimeout(context.WithoutCancel(ctx), m.cfg.Patience/2)
	defer stop()
	if err := m.remove(end, m.cfg.Name, store.Exists().Eq(table.AttrHolder, store.String(m.cfg.Process))); err != nil {
		m.cfg.Logger.Warn("liveness: the row of this worker remains", "error", err)
	}
	return nil
}

// each calls f at once and then in each interval, until ctx ends.
func (m *Monitor) each(ctx context.Context, every time.Duration, f func(context.Context)) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		step, cancel := context.WithTimeout(ctx, m.cfg.Patience/2)
		f(step)
		cancel()
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// start replaces the row of an earlier process with the name of this one.
func (m *Monitor) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Patience/2)
	defer cancel()
	it, err := m.cfg.Store.Get(ctx, table.WorkerKey(m.cfg.Name), store.Strong)
	if err != nil {
		return fmt.Errorf("read the row: %w", err)
	}
	if err := m.put(ctx, nil); err != nil {
		return err
	}
	m.lastHeartbeat = time.Now()
	if earlier := table.WorkerFrom(it); earlier.Process != "" && earlier.Process != m.cfg.Process {
		m.report(Gone{Name: m.cfg.Name, Process: earlier.Process})
	}
	return nil
}

func (m *Monitor) put(ctx context.Context, cond store.Condition) error {
	row := table.Worker{Process: m.cfg.Process, Count: 1, Patience: m.patience}
	return m.transact(ctx, store.Write{Op: store.OpPut, Key: table.WorkerKey(m.cfg.Name), Item: row.Item(), Cond: cond,
		Name: "live"})
}

func (m *Monitor) transact(ctx context.Context, w store.Write) error {
	return m.cfg.Store.Transact(ctx, store.Plan{Writes: []store.Write{w}})
}

func (m *Monitor) remove(ctx context.Context, name string, cond store.Condition) error {
	return m.transact(ctx, store.Write{Op: store.OpDelete, Key: table.WorkerKey(name), Cond: cond, Name: "gone"})
}

// recordHeartbeat increments the row of this worker. If other workers have removed the row because
// they took this worker for dead, it makes the row again.
func (m *Monitor) recordHeartbeat(ctx context.Context) error {
	err := m.transact(ctx, store.Write{Op: store.OpUpdate, Key: table.WorkerKey(m.cfg.Name), Name: "live",
		Cond: store.Exists().Eq(table.AttrHolder, store.String(m.cfg.Process)),
		Update: store.Update{
			Set: []store.Attr{{Name: table.AttrPatience, Value: store.Int(m.patience.Milliseconds())}},
			Add: []store.Increment{{Name: table.AttrCount, N: 1}},
		}})
	var failed *store.ConditionError
	removed := errors.As(err, &failed)
	if removed {
		if err = m.put(ctx, store.Absent()); errors.As(err, &failed) {
			return ErrReplaced
		}
	}
	if err == nil {
		m.adapt(time.Now(), removed)
	}
	return err
}

// adapt doubles the patience after an increment that was so late that others had nearly lost
// theirs, and restores it when there were no delays for a while. The next increment writes it. removed
// says that others had removed the row: the clock of a machine that was suspended may have stood still, too.
func (m *Monitor) adapt(now time.Time, removed bool) {
	gap := now.Sub(m.lastHeartbeat)
	m.lastHeartbeat = now
	switch {
	case removed || gap > m.patience*3/4:
		says := "liveness: this worker was slow to show that it lives; others wait longer for it"
		if removed || gap > m.patience {
			m.silent.Add(1)
			says = "liveness: this worker did not show that it lives, so others have taken it for dead unless the store did " +
				"not answer them; they wait longer for it now"
		}
		m.lastDelay = now
		m.patience = min(2*m.patience, m.cfg.Patience<<maxDoublings)
		m.cfg.Logger.Warn(says, "delay", gap, "patience", m.patience)
	case m.patience > m.cfg.Patience && now.Sub(m.lastDelay) > calmAfter:
		m.patience = m.cfg.Patience
	}
}

// read reads the rows of all workers, finds those that are gone, and has them handled.
func (m *Monitor) read(ctx context.Context) {
	rows, err := m.rows(ctx)
	switch {
	case err == nil:
		m.compare(ctx, time.Now(), rows)
	case ctx.Err() == nil:
		m.cfg.Logger.Warn("liveness: cannot read the rows of other workers; retrying", "error", err)
	}
	m.handle(ctx)
}

func (m *Monitor) rows(ctx context.Context) (map[string]table.Worker, error) {
	rows := map[string]table.Worker{}
	s := store.Scan{Table: store.Leases, Segments: 1}
	for first := true; first || s.Cursor != ""; first = false {
		page, err := m.cfg.Store.Scan(ctx, s)
		if err != nil {
			return nil, err
		}
		for _, r := range page.Rows {
			if name, ok := table.WorkerName(r.Key); ok && name != m.cfg.Name {
				rows[name] = table.WorkerFrom(r.Item)
			}
		}
		s.Cursor = page.Cursor
	}
	return rows, nil
}

// compare compares the rows with those of the last read.
func (m *Monitor) compare(ctx context.Context, now time.Time, rows map[string]table.Worker) {
	passed := min(now.Sub(m.lastRead), 2*m.cfg.Every)
	m.lastRead = now
	for name, row := range rows {
		w := m.workers[name]
		switch {
		case w == nil || w.Process != row.Process:
			if w != nil {
				m.report(Gone{Name: name, Process: w.Process})
			}
			m.workers[name] = &worker{Worker: row}
			m.revive(row.Process) // its row may have been removed while it stood still
		case w.Count != row.Count || w.Patience != row.Patience:
			if w.gone {
				m.cfg.Logger.Warn("liveness: a worker that was taken for dead is slow", "worker", name)
				m.revive(w.Process)
			}
			*w = worker{Worker: row}
		default:
			w.silent += passed
			patience := min(row.Patience, m.cfg.Patience<<maxDoublings)
			if !w.gone && w.silent >= patience {
				w.gone = true
				m.taken.Add(1)
				m.cfg.Logger.Warn("liveness: a worker is silent and taken for dead", "worker", name, "for", w.silent)
				m.report(Gone{Name: name, Process: row.Process, Silent: true})
			}
			if w.silent >= patience+forgetAfter {
				m.forget(ctx, name, row)
			}
		}
	}
	for name, w := range m.workers {
		if _, ok := rows[name]; !ok {
			delete(m.workers, name)
			m.report(Gone{Name: name, Process: w.Process})
		}
	}
}

// forget removes the row of a worker that has been dead for long.
func (m *Monitor) forget(ctx context.Context, name string, row table.Worker) {
	err := m.remove(ctx, name, store.Exists().Eq(table.AttrHolder, store.String(row.Process)).
		Eq(table.AttrCount, store.Int(row.Count)))
	if err != nil { // another worker was faster, or it lives; the next read shows that
		m.cfg.Logger.Info("liveness: the row of a dead worker is not removed", "worker", name, "error", err)
	}
}

// report makes a process known as dead, and has it handled.
func (m *Monitor) report(g Gone) {
	m.mu.Lock()
	if !m.dead[g.Process] {
		m.dead[g.Process], m.order = true, append(m.order, g.Process)
	}
	if len(m.order) > maxDead {
		delete(m.dead, m.order[0])
		m.order = m.order[1:]
	}
	m.mu.Unlock()
	for _, f := range m.handlers {
		m.pending = append(m.pending, notice{g, f, time.Now()})
	}
}

// revive takes back that a process is dead.
func (m *Monitor) revive(process string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead[process] {
		delete(m.dead, process)
		m.order = slices.DeleteFunc(m.order, func(p string) bool { return p == process })
	}
}

// handle calls the handlers that have not succeeded.
func (m *Monitor) handle(ctx context.Context) {
	list := m.pending
	errs := make([]error, len(list))
	var wg sync.WaitGroup
	for i, n := range list {
		wg.Go(func() { errs[i] = n.handle(ctx, n.gone) })
	}
	wg.Wait()
	m.pending = nil
	for i, n := range list {
		switch err := errs[i]; {
		case err == nil:
		case time.Since(n.since) > retryFor:
			m.cfg.Logger.Warn("liveness: the work of a dead worker waits until its leases and sessions run out",
				"worker", n.gone.Name, "error", err)
		default:
			m.pending = append(m.pending, n)
		}
	}
}
