// Package reconcile completes what a crash left half done: groups whose members
// are still pending become complete, and the stored number of members is compared
// with the members.
//
// It owns when that happens and what is looked at; how a chat is completed or
// corrected is package chat's. Nothing depends on it for safety (L-058): counts are
// exact in every committed state, and pending members are no members yet. It is
// only about these becoming members at last.
//
// Two walks go round their tables, a part in each pass, side by side: one through the
// chats with pending members, which a table of its own lists and nothing else, and
// one, the audit, through the table of chats, whose chats that were created within
// the last hour have their members counted (L-052, L-057). A round of the audit takes
// half an hour however large the table is, so that each chat is counted in its first
// hour. Where a walk has come to stands in the store (walk). A chat that hangs takes
// one of a few places for a few seconds, and the others pass it by. Passes may
// overlap, in one process and in several: whatever they do is done once (L-059,
// L-061).
//
// Concurrency: Run is called once, on its own goroutine; Stats may be called from
// any, Pass by one at a time.
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
	Every     = 5 * time.Minute  // between passes (L-051)
	Window    = time.Hour        // after its creation a chat is no longer counted (L-057)
	PassLimit = 2 * time.Minute  // a pass ends after this; the next goes on
	ChatLimit = 20 * time.Second // for one chat; what it did not do the next round does
	AtOnce    = 4                // chats that a walk works on at the same time
	Round     = Window / 2       // a round of the audit takes this, unless the store is too slow
	AuditRows = 10_000           // chats that the audit reads in a pass at least
	pageRows  = 500
)

// Chats is what completes and corrects a chat.
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
	Failed       int64 // passes that could not read what they had to
	Completed    int64 // chats whose pending members became members
	Incomplete   int64 // attempts at that which failed
	Checked      int64 // chats whose members were counted
	Corrections  int64 // counts that were wrong (parley_chat_reconciliation_corrections_total)
	Audited      int64 // chats that the audit looked at, in this process
	Pending      int64 // chats with pending members that the last round found; 0 where another process goes round
	Oldest       time.Duration
	AuditSince   time.Time // every chat was looked at since then, by whichever process; zero before the first round
	LastPass     time.Time // when the last pass ended; zero before the first
	LastDuration time.Duration
}

// Reconciler makes passes.
type Reconciler struct {
	cfg Config

	pending *walk
	chats   *walk // nil: no audit

	mu     sync.Mutex
	stats  Stats
	found  int64 // chats of the round through the pending ones that is under way
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
	r.pending = &walk{
		store: cfg.Store, table: store.PendingMembers, clock: cfg.Clock, log: cfg.Logger,
		limit:  func(table.Progress) int64 { return math.MaxInt64 },
		wanted: func(store.Row) bool { return true }, do: r.complete,
	}
	if cfg.AuditRows > 0 {
		r.chats = &walk{
			store: cfg.Store, table: store.Chats, clock: cfg.Clock, log: cfg.Logger,
			limit: r.auditRows, wanted: r.young, do: func(ctx context.Context, row store.Row) { r.check(ctx, row.Key.PK) },
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

// Run makes a pass at once and then one every Config.Every, until the context
// ends. It returns nil then; a pass that fails is logged and counted.
func (r *Reconciler) Run(ctx context.Context) error {
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

// Pass makes one pass: it begins nothing after Config.PassLimit, and the next pass
// goes on. Errors: those of reading the tables, and of the context.
func (r *Reconciler) Pass(ctx context.Context) error {
	began := r.cfg.Clock()
	until, cancel := context.WithTimeout(ctx, r.cfg.PassLimit)
	defer cancel()
	var audit sync.WaitGroup
	var auditErr error
	if r.chats != nil {
		audit.Go(func() {
			_, auditErr = r.chats.pass(ctx, until)
			r.audited()
		})
	}
	walks, err := r.pending.pass(ctx, until)
	if walks || err == nil { // otherwise nobody knows, and what was found stays
		r.settle(walks)
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
func (r *Reconciler) count(change func(*Stats)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.stats)
}

// settle publishes what the round through the chats with pending members has found.
func (r *Reconciler) settle(walks bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case !walks:
		r.stats.Pending, r.stats.Oldest = 0, 0
	case r.pending.at.Began == 0: // the round is over
		r.stats.Pending, r.stats.Oldest = r.found, r.oldest
	default:
		r.stats.Pending, r.stats.Oldest = max(r.stats.Pending, r.found), max(r.stats.Oldest, r.oldest)
		return
	}
	r.found, r.oldest = 0, 0
}

// complete makes the pending members of one chat members, and counts them.
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

// young reports whether the audit counts the members of a chat.
func (r *Reconciler) young(row store.Row) bool {
	r.count(func(s *Stats) { s.Audited++ })
	c := table.ChatFrom(row.Key.PK, row.Item)
	return c.Type == table.Group && c.Status == table.Active && c.CreatedAt >= r.cfg.Clock().Add(-Window).UnixMilli()
}

// auditRows is how many chats the audit reads in a pass: so many that a round takes
// Round. As long as nobody knows how many there are, that is all the pass has time for.
func (r *Reconciler) auditRows(p table.Progress) int64 {
	if p.LastBegan == 0 {
		return math.MaxInt64
	}
	passes := max(int64(Round/r.cfg.Every), 1)
	return max((p.LastRows+passes-1)/passes, int64(r.cfg.AuditRows))
}

// audited publishes how far the audit has come.
func (r *Reconciler) audited() {
	since := r.chats.since()
	r.count(func(s *Stats) { s.AuditSince = since })
	if late := r.cfg.Clock().Sub(since); !since.IsZero() && late > Window {
		r.cfg.Logger.Warn("chat_audit_late", slog.Duration("round", late))
	}
}

// check counts the members of one chat.
func (r *Reconciler) check(ctx context.Context, id string) {
	found, err := r.cfg.Chats.CheckCount(ctx, id)
	switch {
	case err != nil:
		if !errors.Is(err, store.ErrConflict) { // a chat that keeps changing is in use, and its plans count
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
