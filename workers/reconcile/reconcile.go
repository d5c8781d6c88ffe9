// Package reconcile completes what a crash left half done: groups whose members
// are still pending become complete, and the stored number of members is compared
// with the members.
//
// It owns when that happens and what is looked at; how a chat is completed or
// corrected is package chat's. Nothing depends on it for safety (L-058): counts are
// exact in every committed state, and pending members are no members yet. It is
// only about these becoming members at last.
//
// A pass looks at every chat with pending members, which the table of them lists
// and nothing else, and at the chats created within the last hour that a bounded
// part of the table of chats shows (L-052, L-057). Passes may overlap, in one
// process and in several: whatever they do is done once (L-059, L-061).
//
// Concurrency: Run is called once, on its own goroutine; Stats and Pass may be
// called from any.
package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Defaults and limits of a Config.
const (
	Every     = 5 * time.Minute // between passes (L-051)
	Window    = time.Hour       // after its creation a chat is no longer counted (L-057)
	PassLimit = 2 * time.Minute // a pass ends after this; the next goes on
	AuditRows = 10_000          // chats that a pass reads to find new ones
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
	AuditRows int           // default: AuditRows; -1: no chats but those with pending members
}

// Stats counts what was done since the start.
type Stats struct {
	Passes      int64
	Failed      int64 // passes that could not read their lists to the end
	Completed   int64 // chats whose pending members became members
	Incomplete  int64 // attempts at that which failed
	Checked     int64 // chats whose members were counted
	Corrections int64 // counts that were wrong (chat_reconciliation_corrections_total)
	Pending     int64 // chats with pending members that the last pass found
	Oldest      time.Duration
	LastPass    time.Time // when the last pass ended; zero before the first
	Took        time.Duration
}

// Reconciler makes passes.
type Reconciler struct {
	cfg Config

	mu    sync.Mutex
	stats Stats
	next  string // cursor of the audit
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
	return &Reconciler{cfg: cfg}, nil
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

// Pass makes one pass, of at most Config.PassLimit. A chat that cannot be completed
// or counted does not keep the pass from the others. Errors: those of reading the
// lists, and of the context.
func (r *Reconciler) Pass(ctx context.Context) error {
	began := r.cfg.Clock()
	call, cancel := context.WithTimeout(ctx, r.cfg.PassLimit)
	defer cancel()
	done := map[string]bool{}
	err := r.complete(call, done)
	if auditErr := r.audit(call, done); err == nil {
		err = auditErr
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stats.Passes++
	if err != nil {
		r.stats.Failed++
	}
	r.stats.LastPass = r.cfg.Clock()
	r.stats.Took = r.stats.LastPass.Sub(began)
	return err
}

func (r *Reconciler) count(change func(*Stats)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.stats)
}

// complete makes the pending members of all chats members.
func (r *Reconciler) complete(ctx context.Context, done map[string]bool) error {
	now := r.cfg.Clock()
	var found int64
	var oldest time.Duration
	scan := store.Scan{Table: store.PendingMembers, Segments: 1, Limit: pageRows}
	for {
		page, err := r.cfg.Store.Scan(ctx, scan)
		if err != nil {
			return fmt.Errorf("read pending members: %w", err)
		}
		for _, row := range page.Rows {
			found++
			oldest = max(oldest, now.Sub(time.UnixMilli(table.PendingFrom(row.Key.PK, row.Item).CreatedAt)))
			if err := r.finish(ctx, row.Key.PK, done); err != nil {
				return err
			}
		}
		if scan.Cursor = page.Cursor; scan.Cursor == "" {
			r.count(func(s *Stats) { s.Pending, s.Oldest = found, oldest })
			return nil
		}
	}
}

// finish completes one chat and counts its members. It fails only with the
// context.
func (r *Reconciler) finish(ctx context.Context, id string, done map[string]bool) error {
	if err := r.cfg.Chats.FinishPending(ctx, id); err != nil {
		r.count(func(s *Stats) { s.Incomplete++ })
		r.cfg.Logger.WarnContext(ctx, "chat_creation_incomplete", slog.String("chat_id", id), slog.Any("error", err))
		return ctx.Err()
	}
	r.count(func(s *Stats) { s.Completed++ })
	done[id] = true
	return r.check(ctx, id)
}

// audit counts the members of new chats. Each pass goes on where the last one
// ended, so that what a pass reads does not grow with the table.
func (r *Reconciler) audit(ctx context.Context, done map[string]bool) error {
	r.mu.Lock()
	scan := store.Scan{Table: store.Chats, Segments: 1, Cursor: r.next}
	r.mu.Unlock()
	since := r.cfg.Clock().Add(-Window).UnixMilli()
	for left := r.cfg.AuditRows; left > 0; {
		scan.Limit = min(left, pageRows)
		page, err := r.cfg.Store.Scan(ctx, scan)
		if err != nil {
			// A cursor that the store does not take any more must not stop the audit for
			// ever.
			r.mu.Lock()
			r.next = ""
			r.mu.Unlock()
			return fmt.Errorf("read chats: %w", err)
		}
		for _, row := range page.Rows {
			c := table.ChatFrom(row.Key.PK, row.Item)
			if c.Type != table.Group || c.Status != table.Active || c.CreatedAt < since || done[c.ChatID] {
				continue
			}
			if err := r.check(ctx, c.ChatID); err != nil {
				return err
			}
		}
		scan.Cursor = page.Cursor
		r.mu.Lock()
		r.next = page.Cursor
		r.mu.Unlock()
		if left -= len(page.Rows); page.Cursor == "" {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// check counts the members of one chat. It fails only with the context.
func (r *Reconciler) check(ctx context.Context, id string) error {
	found, err := r.cfg.Chats.CheckCount(ctx, id)
	switch {
	case err != nil:
		if !errors.Is(err, store.ErrConflict) { // a chat that keeps changing is in use, and its plans count
			r.cfg.Logger.WarnContext(ctx, "chat_reconciliation_failed", slog.String("chat_id", id), slog.Any("error", err))
		}
		return ctx.Err()
	case found.Corrected:
		r.count(func(s *Stats) { s.Corrections++ })
		r.cfg.Logger.ErrorContext(ctx, "member_count_corrected", slog.String("chat_id", id),
			slog.Int64("stored", found.Stored), slog.Int64("counted", found.Counted))
	}
	r.count(func(s *Stats) { s.Checked++ })
	return nil
}
