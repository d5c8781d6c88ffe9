// Package reconcile completes what a crash left half done: it makes the pending members of
// groups members, and compares the stored number of members with the members.
//
// It owns when that happens and for which chats; package chat completes and corrects a chat.
// Nothing depends on it for safety: counts are exact in every committed state, and pending
// members are not members yet. It only makes them members in the end.
//
// Two scans run in parallel, each a part of its table in each pass. One reads the chats with
// pending members, which have a table of their own. The other, the audit, reads the table of
// chats and counts the members of chats that were created within the last hour. A round of
// the audit takes half an hour, however large the table is, so that each chat is counted in
// its first hour. The position of a scan is in the store, see tableScan. A chat that hangs
// occupies one of a few workers for some seconds; other chats do not wait for it. Passes may
// overlap, in one process and in several: every change is conditional and happens once.
//
// Concurrency: Run is called once, on its own goroutine; Stats is safe for concurrent use,
// Pass is not.
package reconcile

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Defaults and limits of a Config.
const (
	Every     = 5 * time.Minute  // between passes
	Window    = time.Hour        // for which a chat is counted after its creation
	PassLimit = 2 * time.Minute  // of a pass; the next one resumes
	ChatLimit = 20 * time.Second // of one chat; the next round does the rest
	AtOnce    = 4                // chats that a scan handles in parallel
	Round     = Window / 2       // of a round of the audit, unless the store is too slow
	AuditRows = 10_000           // chats that the audit reads at least in a pass
	pageRows  = 500
)

// Chats completes and corrects chats.
type Chats interface {
	FinishPending(ctx context.Context, chatID string) error
	CheckCount(ctx context.Context, chatID string) (chat.Count, error)
}

// Config sets up a Reconciler. Store, Chats, Clock and Logger are required.
type Config struct {
	Store  store.Store
	Chats  Chats
	Clock  func() time.Time
	Logger *slog.Logger

	Every     time.Duration // default: Every
	PassLimit time.Duration // default: PassLimit
	AuditRows int           // default: AuditRows; -1: no audit
}

// Stats counts what was done since the start.
type Stats struct {
	Passes       int64
	Failed       int64 // passes that could not read their tables
	Completed    int64 // chats whose pending members became members
	Incomplete   int64 // failed attempts to complete a chat
	Checked      int64 // chats whose members were counted
	Corrections  int64 // counts that were wrong (parley_chat_reconciliation_corrections_total)
	Audited      int64 // chats that the audit has read, in this process
	Pending      int64 // chats with pending members in the last round; 0 while another process scans
	Oldest       time.Duration
	AuditSince   time.Time // every chat was read since then, by any process; zero before the first round
	LastPass     time.Time // when the last pass ended; zero before the first
	LastDuration time.Duration
}

// Reconciler makes passes.
type Reconciler struct {
	cfg Config

	pending *tableScan
	audit   *tableScan // nil: no audit

	mu     sync.Mutex
	stats  Stats
	found  int64 // chats with pending members in the present round
	oldest time.Duration
}

// New makes a Reconciler.
func New(cfg Config) (*Reconciler, error) {
	if cfg.Store == nil || cfg.Chats == nil || cfg.Clock == nil || cfg.Logger == nil {
		return nil, errors.New("reconcile: store, chats, clock and logger are required")
	}
	if cfg.Every <= 0 {
		cfg.Every = Every
	}
	if cfg.PassLimit <= 0 {
		cfg.PassLimit = PassLimit
	}
	if cfg.AuditRows == 0 {
		cfg.AuditRows = AuditRows
	}
	r := &Reconciler{cfg: cfg}
	r.pending = &tableScan{
		store: cfg.Store, table: store.PendingMembers, clock: cfg.Clock, log: cfg.Logger,
		limit:  func(table.Progress) int64 { return math.MaxInt64 },
		filter: func(store.Row) bool { return true }, handle: r.complete,
	}
	if cfg.AuditRows > 0 {
		r.audit = &tableScan{
			store: cfg.Store, table: store.Chats, clock: cfg.Clock, log: cfg.Logger,
			limit: r.auditRows, filter: r.needsCount,
			handle: func(ctx context.Context, row store.Row) { r.check(ctx, row.Key.PK) },
		}
	}
	return r, nil
}

// Stats returns what was done so far.
func (r *Reconciler) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stats
}

// Run makes a pass at once and then one every Config.Every, until ctx ends. A pass that fails
// is logged and counted.
func (r *Reconciler) Run(ctx context.Context, ready func()) error {
	ready()
	tick := time.NewTicker(r.cfg.Every)
	defer tick.Stop()
	for {
		if err := r.Pass(ctx); err != nil && ctx.Err() == nil {
			r.cfg.Logger.WarnContext(ctx, "chat_reconciliation_failed", slog.Any("error", err))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Pass makes one pass. It starts nothing after Config.PassLimit, and the next pass resumes.
// Errors: those of reading the tables, and of the context.
func (r *Reconciler) Pass(ctx context.Context) error {
	began := r.cfg.Clock()
	until, cancel := context.WithTimeout(ctx, r.cfg.PassLimit)
	defer cancel()
	var audit sync.WaitGroup
	var auditErr error
	if r.audit != nil {
		audit.Go(func() {
			_, auditErr = r.audit.pass(ctx, until)
			r.audited()
		})
	}
	active, err := r.pending.pass(ctx, until)
	if active || err == nil { // otherwise the last result remains
		r.publishPending(active)
	}
	audit.Wait()
	err = cmp.Or(err, auditErr)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stats.Passes++
	if err != nil {
		r.stats.Failed++
	}
	r.stats.LastPass = r.cfg.Clock()
	r.stats.LastDuration = r.stats.LastPass.Sub(began)
	return err
}

// count changes the counters.
func (r *Reconciler) count(change func(*Stats)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.stats)
}

// publishPending publishes the result of the round through the chats with pending members.
func (r *Reconciler) publishPending(active bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case !active:
		r.stats.Pending, r.stats.Oldest = 0, 0
	case r.pending.progress.Began == 0: // the round is over
		r.stats.Pending, r.stats.Oldest = r.found, r.oldest
	default:
		r.stats.Pending, r.stats.Oldest = max(r.stats.Pending, r.found), max(r.stats.Oldest, r.oldest)
		return
	}
	r.found, r.oldest = 0, 0
}

// complete makes the pending members of a chat members, and counts its members.
func (r *Reconciler) complete(ctx context.Context, row store.Row) {
	id := row.Key.PK
	age := r.cfg.Clock().Sub(time.UnixMilli(table.PendingFrom(id, row.Item).CreatedAt))
	r.mu.Lock()
	r.found, r.oldest = r.found+1, max(r.oldest, age)
	r.mu.Unlock()
	if err := r.cfg.Chats.FinishPending(ctx, id); err != nil {
		r.count(func(s *Stats) { s.Incomplete++ })
		r.cfg.Logger.WarnContext(ctx, "chat_creation_incomplete", slog.String("chat_id", id), slog.Any("error", err))
		return
	}
	r.count(func(s *Stats) { s.Completed++ })
	r.check(ctx, id)
}

// needsCount reports whether the audit counts the members of a chat.
func (r *Reconciler) needsCount(row store.Row) bool {
	r.count(func(s *Stats) { s.Audited++ })
	c := table.ChatFrom(row.Key.PK, row.Item)
	return c.Type == table.Group && c.Status == table.Active && c.CreatedAt >= r.cfg.Clock().Add(-Window).UnixMilli()
}

// auditRows returns how many chats the audit reads in a pass: so many that a round takes
// Round. Before the first round the number of chats is unknown, and a pass reads as many as
// it can.
func (r *Reconciler) auditRows(p table.Progress) int64 {
	if p.LastBegan == 0 {
		return math.MaxInt64
	}
	passes := max(int64(Round/r.cfg.Every), 1)
	return max((p.LastRows+passes-1)/passes, int64(r.cfg.AuditRows))
}

// audited publishes the position of the audit.
func (r *Reconciler) audited() {
	since := r.audit.since()
	r.count(func(s *Stats) { s.AuditSince = since })
	if late := r.cfg.Clock().Sub(since); !since.IsZero() && late > Window {
		r.cfg.Logger.Warn("chat_audit_late", slog.Duration("round", late))
	}
}

// check counts the members of a chat.
func (r *Reconciler) check(ctx context.Context, id string) {
	found, err := r.cfg.Chats.CheckCount(ctx, id)
	switch {
	case err != nil:
		if !errors.Is(err, store.ErrConflict) { // a chat that keeps changing is in use, and its plans keep the count
			r.cfg.Logger.WarnContext(ctx, "chat_reconciliation_failed", slog.String("chat_id", id), slog.Any("error", err))
		}
		return
	case found.Corrected:
		r.count(func(s *Stats) { s.Corrections++ })
		r.cfg.Logger.ErrorContext(ctx, "member_count_corrected", slog.String("chat_id", id),
			slog.Int64("stored", found.Stored), slog.Int64("counted", found.Counted))
	}
	r.count(func(s *Stats) { s.Checked++ })
}
