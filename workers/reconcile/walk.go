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

// walk goes round a table of chats, a part in each pass. How far it has come stands
// in the store: a round goes on after a pass that ran out of time, after a restart,
// and in another process.
//
// One process walks at a time, without a lease that could be lost: each page changes
// the row of progress under the condition that nobody else has. Who finds that the
// row has changed since the own last pass leaves the table to whoever changed it; who
// finds it unchanged goes on. Two that begin at once do a page twice at most.
type walk struct {
	store  store.Store
	table  store.Table
	clock  func() time.Time
	log    *slog.Logger
	limit  func(table.Progress) int64 // rows of a pass
	wanted func(store.Row) bool       // rows that there is something to do for
	do     func(context.Context, store.Row)

	looked bool  // at the row of progress, once
	seen   int64 // its revision then
	at     table.Progress
}

// errElsewhere says that another process goes round the table.
var errElsewhere = errors.New("another process goes on")

// pass goes on with the round, until the end of the table, the limit of rows, or the
// end of until, after which nothing is begun. What was begun has ChatLimit and the
// context. walks says whether this process is the one that goes round.
func (w *walk) pass(ctx, until context.Context) (walks bool, err error) {
	if err := w.load(ctx); err != nil {
		return false, err
	}
	if w.looked && w.at.Revision != w.seen {
		w.seen = w.at.Revision
		return false, nil
	}
	w.looked, w.seen = true, w.at.Revision
	work := pool{limit: ChatLimit, free: make(chan struct{}, AtOnce)}
	defer work.wait()
	for left, more := w.limit(w.at), true; more && left > 0 && until.Err() == nil; {
		page, err := w.read(ctx, left)
		if err != nil {
			return true, err
		}
		begun := 0
		for begun < len(page.Rows) {
			row := page.Rows[begun]
			if w.wanted(row) && !work.begin(ctx, until, func(ctx context.Context) { w.do(ctx, row) }) {
				break
			}
			begun++
		}
		left -= int64(begun)
		if more, err = w.advance(ctx, page, begun); errors.Is(err, errElsewhere) {
			return false, nil
		} else if err != nil {
			return true, err
		}
	}
	return true, ctx.Err()
}

// load reads the progress.
func (w *walk) load(ctx context.Context) error {
	call, cancel := context.WithTimeout(ctx, store.CallTimeout)
	defer cancel()
	it, err := w.store.Get(call, table.ProgressKey(w.table), store.Strong)
	if err != nil {
		return fmt.Errorf("read the progress through %s: %w", w.table, err)
	}
	w.at = table.ProgressFrom(it)
	return nil
}

// read reads the next page.
func (w *walk) read(ctx context.Context, left int64) (store.Page, error) {
	for {
		if w.at.After == "" {
			w.at.Began, w.at.Rows = w.clock().UnixMilli(), 0
		}
		scan := store.Scan{Table: w.table, Segments: 1, Limit: int(min(left, pageRows))}
		if w.at.After != "" {
			scan.Cursor = store.ScanCursor(store.Key{PK: w.at.After})
		}
		call, cancel := context.WithTimeout(ctx, store.CallTimeout)
		page, err := w.store.Scan(call, scan)
		cancel()
		if errors.Is(err, store.ErrInvalid) && w.at.After != "" {
			// A place that the store refuses must not end the round for ever.
			w.log.WarnContext(ctx, "reconcile_round_restarted", slog.String("table", string(w.table)), slog.Any("error", err))
			w.at.After = ""
			continue
		}
		if err != nil {
			return store.Page{}, fmt.Errorf("read %s: %w", w.table, err)
		}
		return page, nil
	}
}

// advance saves that the first rows of a page were begun, and reports whether there
// are more in the round.
func (w *walk) advance(ctx context.Context, page store.Page, begun int) (more bool, err error) {
	next := w.at
	next.Revision++
	next.Rows += int64(begun)
	switch {
	case begun < len(page.Rows):
		if begun > 0 {
			next.After = page.Rows[begun-1].Key.PK
		}
	case page.Cursor == "":
		next.LastBegan, next.LastRows = next.Began, next.Rows
		next.After, next.Began, next.Rows = "", 0, 0
	default:
		place, err := (&store.Scan{Table: w.table, Segments: 1, Cursor: page.Cursor}).After()
		if err != nil {
			return false, err
		}
		next.After = place.PK
	}
	if err := w.save(ctx, next); err != nil {
		return false, err
	}
	return next.After != "", nil
}

// saveTries is how often progress is saved whose outcome stays unknown.
const saveTries = 4

// save writes the progress, if it is still what this process knows.
func (w *walk) save(ctx context.Context, next table.Progress) error {
	call, cancel := context.WithTimeout(ctx, store.CallTimeout)
	defer cancel()
	unchanged := store.Exists().Eq(table.AttrRevision, store.Int(w.at.Revision))
	if w.at.Revision == 0 {
		unchanged = store.Absent()
	}
	plan := store.Plan{Writes: []store.Write{{
		Op: store.OpPut, Key: table.ProgressKey(w.table), Item: next.Item(), Cond: unchanged, Name: "progress",
	}}}
	err := w.store.Transact(call, plan)
	for n := 1; n < saveTries && errors.Is(err, store.ErrAmbiguous); n++ {
		err = w.store.Transact(call, plan)
	}
	var failed *store.ConditionError
	if errors.As(err, &failed) && len(failed.Failures) > 0 {
		now := table.ProgressFrom(failed.Failures[0].Current)
		w.at, w.seen = now, now.Revision
		if now == next { // an attempt before had been written
			return nil
		}
		return errElsewhere
	}
	if err != nil {
		return fmt.Errorf("save the progress through %s: %w", w.table, err)
	}
	w.at, w.seen = next, next.Revision
	return nil
}

// since returns when the chat that was looked at longest ago may have been looked at
// last; zero before the first round.
func (w *walk) since() time.Time {
	switch {
	case w.at.LastBegan != 0:
		return time.UnixMilli(w.at.LastBegan)
	case w.at.Began != 0:
		return time.UnixMilli(w.at.Began)
	}
	return time.Time{}
}

// pool works on several chats at once, so that a slow one holds up nothing but
// itself.
type pool struct {
	limit time.Duration
	free  chan struct{}
	wg    sync.WaitGroup
}

// begin starts f as soon as there is room; false: until ended before.
func (p *pool) begin(ctx, until context.Context, f func(context.Context)) bool {
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
