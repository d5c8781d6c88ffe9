package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// tableScan scans a table of chats in rounds, a part in each pass. Its position is in the
// store: a round resumes after a pass that ran out of time, after a restart, and in another
// process.
//
// One process scans at a time, without a lease that it could lose: each page updates the row
// of progress on the condition that no other process has. A process that finds the row
// changed since its last pass leaves the table to the process that changed it; one that finds
// it unchanged resumes. Two processes that start at once handle at most one page twice.
type tableScan struct {
	store  store.Store
	table  store.Table
	clock  func() time.Time
	log    *slog.Logger
	limit  func(table.Progress) int64 // rows of a pass
	filter func(store.Row) bool       // rows to handle
	handle func(context.Context, store.Row)

	loaded       bool  // the row of progress, once
	lastRevision int64 // its revision then
	progress     table.Progress
}

// errOtherProcess is the error of a scan that another process has resumed.
var errOtherProcess = errors.New("another process scans the table")

// pass resumes the round. It ends at the end of the table, the limit of rows, or the end of
// until, after which it starts nothing; chats that it has started end with ChatLimit and
// ctx. active says whether this process is the one that scans.
func (w *tableScan) pass(ctx, until context.Context) (active bool, err error) {
	if err := w.load(ctx); err != nil {
		return false, err
	}
	if w.loaded && w.progress.Revision != w.lastRevision {
		w.lastRevision = w.progress.Revision
		return false, nil
	}
	w.loaded, w.lastRevision = true, w.progress.Revision
	work := pool{limit: ChatLimit, free: make(chan struct{}, AtOnce)}
	defer work.wait()
	for remaining, more := w.limit(w.progress), true; more && remaining > 0 && until.Err() == nil; {
		page, err := w.read(ctx, remaining)
		if err != nil {
			return true, err
		}
		started := 0
		for started < len(page.Rows) {
			row := page.Rows[started]
			if w.filter(row) && !work.start(ctx, until, func(ctx context.Context) { w.handle(ctx, row) }) {
				break
			}
			started++
		}
		remaining -= int64(started)
		if more, err = w.saveProgress(ctx, page, started); errors.Is(err, errOtherProcess) {
			return false, nil
		} else if err != nil {
			return true, err
		}
	}
	return true, ctx.Err()
}

// load reads the progress.
func (w *tableScan) load(ctx context.Context) error {
	call, cancel := context.WithTimeout(ctx, store.CallTimeout)
	defer cancel()
	it, err := w.store.Get(call, table.ProgressKey(w.table), store.Strong)
	if err != nil {
		return fmt.Errorf("read the progress through %s: %w", w.table, err)
	}
	w.progress = table.ProgressFrom(it)
	return nil
}

// read reads the next page.
func (w *tableScan) read(ctx context.Context, remaining int64) (store.Page, error) {
	for {
		if w.progress.After == "" {
			w.progress.Began, w.progress.Rows = w.clock().UnixMilli(), 0
		}
		scan := store.Scan{Table: w.table, Segments: 1, Limit: int(min(remaining, pageRows))}
		if w.progress.After != "" {
			scan.Cursor = store.ScanCursor(store.Key{PK: w.progress.After})
		}
		call, cancel := context.WithTimeout(ctx, store.CallTimeout)
		page, err := w.store.Scan(call, scan)
		cancel()
		if errors.Is(err, store.ErrInvalid) && w.progress.After != "" {
			// A position that the store refuses must not end the round for ever.
			w.log.WarnContext(ctx, "reconcile_round_restarted", slog.String("table", string(w.table)), slog.Any("error", err))
			w.progress.After = ""
			continue
		}
		if err != nil {
			return store.Page{}, fmt.Errorf("read %s: %w", w.table, err)
		}
		return page, nil
	}
}

// saveProgress saves that the first rows of a page were started, and reports whether the round
// has more.
func (w *tableScan) saveProgress(ctx context.Context, page store.Page, started int) (more bool, err error) {
	next := w.progress
	next.Revision++
	next.Rows += int64(started)
	switch {
	case started < len(page.Rows):
		if started > 0 {
			next.After = page.Rows[started-1].Key.PK
		}
	case page.Cursor == "":
		next.LastBegan, next.LastRows = next.Began, next.Rows
		next.After, next.Began, next.Rows = "", 0, 0
	default:
		position, err := (&store.Scan{Table: w.table, Segments: 1, Cursor: page.Cursor}).After()
		if err != nil {
			return false, err
		}
		next.After = position.PK
	}
	if err := w.save(ctx, next); err != nil {
		return false, err
	}
	return next.After != "", nil
}

// maxSaves bounds the attempts to save progress while the outcome is unknown.
const maxSaves = 4

// save writes the progress on the condition that no other process has.
func (w *tableScan) save(ctx context.Context, next table.Progress) error {
	call, cancel := context.WithTimeout(ctx, store.CallTimeout)
	defer cancel()
	unchanged := store.Exists().Eq(table.AttrRevision, store.Int(w.progress.Revision))
	if w.progress.Revision == 0 {
		unchanged = store.Absent()
	}
	plan := store.Plan{Writes: []store.Write{{
		Op: store.OpPut, Key: table.ProgressKey(w.table), Item: next.Item(), Cond: unchanged, Name: "progress",
	}}}
	err := w.store.Transact(call, plan)
	for n := 1; n < maxSaves && errors.Is(err, store.ErrAmbiguous); n++ {
		err = w.store.Transact(call, plan)
	}
	var failed *store.ConditionError
	if errors.As(err, &failed) && len(failed.Failures) > 0 {
		now := table.ProgressFrom(failed.Failures[0].Current)
		w.progress, w.lastRevision = now, now.Revision
		if now == next { // an earlier attempt had succeeded
			return nil
		}
		return errOtherProcess
	}
	if err != nil {
		return fmt.Errorf("save the progress through %s: %w", w.table, err)
	}
	w.progress, w.lastRevision = next, next.Revision
	return nil
}

// since returns the time since which every chat was read; zero before the first round.
func (w *tableScan) since() time.Time {
	switch {
	case w.progress.LastBegan != 0:
		return time.UnixMilli(w.progress.LastBegan)
	case w.progress.Began != 0:
		return time.UnixMilli(w.progress.Began)
	}
	return time.Time{}
}

// pool handles several chats in parallel, so that a slow one delays no other.
type pool struct {
	limit time.Duration
	free  chan struct{}
	wg    sync.WaitGroup
}

// start runs f as soon as a worker is free. It returns false if until ends before.
func (p *pool) start(ctx, until context.Context, f func(context.Context)) bool {
	if until.Err() != nil {
		return false
	}
	select {
	case p.free <- struct{}{}:
	case <-until.Done():
		return false
	}
	p.wg.Go(func() {
		defer func() { <-p.free }()
		call, cancel := context.WithTimeout(ctx, p.limit)
		defer cancel()
		f(call)
	})
	return true
}

func (p *pool) wait() { p.wg.Wait() }
