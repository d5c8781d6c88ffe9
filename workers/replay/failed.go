package replay

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/workers/eventquery"
	"github.com/parley-chat/parley/workers/failedrows"
)

// failed repairs the failed rows that the filter selects.
func (r *run) failed(ctx context.Context) error {
	for row, err := range r.failedRows(ctx) {
		if err != nil {
			return fmt.Errorf("replay failed rows: %w", err)
		}
		if event.IsSearchStream(row.ChatID) {
			continue
		}
		ok, err := r.selects(ctx, row)
		if err != nil {
			return fmt.Errorf("replay failed rows: %w", err)
		}
		if !ok {
			continue
		}
		if r.options.Limit > 0 && r.report.Events >= r.options.Limit {
			r.report.More = true
			return errLimit
		}
		if err := r.repair(ctx, row.ID); err != nil {
			return fmt.Errorf("replay failed row %s: %w", row.ID, err)
		}
		if err := r.options.OnProgress(r.report); err != nil {
			return err
		}
	}
	return nil
}

// failedRows yields the failed rows of the selected chats.
func (r *run) failedRows(ctx context.Context) iter.Seq2[failedrows.Row, error] {
	if len(r.filter.Chats) == 0 {
		return failedrows.All(ctx, r.store)
	}
	return func(yield func(failedrows.Row, error) bool) {
		for _, id := range r.chosen() {
			for row, err := range failedrows.OfChat(ctx, r.store, id) {
				if !yield(row, err) || err != nil {
					return
				}
			}
		}
	}
}

// selects reports whether a failed row is selected: it announces an event that is, or the
// filter selects by nothing but chats.
func (r *run) selects(ctx context.Context, row failedrows.Row) (bool, error) {
	f := &r.events
	if f.From == 0 && f.To == 0 && len(f.Types) == 0 && f.After.IsZero() && f.Until.IsZero() {
		return true, nil
	}
	if row.FirstVersion < 1 {
		return false, nil
	}
	q := store.Query{Table: store.Events, PK: row.ChatID, From: table.Number(row.FirstVersion),
		To: table.Number(row.FirstVersion + min(max(row.Count, 1), store.MaxPlanWrites) - 1), Consistency: store.Strong}
	for er, err := range store.QueryAll(ctx, r.store, q) {
		if err != nil {
			return false, fmt.Errorf("read events: %w", err)
		}
		if e := eventquery.Read(er); e.Body != nil && f.Matches(&e) {
			return true, nil
		}
	}
	return false, nil
}

// repair makes a failed row new again.
func (r *run) repair(ctx context.Context, id string) error {
	_, rows, err := failedrows.Repair(ctx, r.store, id, !r.options.DryRun)
	switch {
	case errors.Is(err, failedrows.ErrNoEvents):
		r.report.Lost++
		return nil
	case errors.Is(err, failedrows.ErrNotFound), errors.Is(err, failedrows.ErrChanged):
		return nil // it was published, or another process has it
	case err != nil:
		return err
	}
	events := 0
	for _, o := range rows {
		events += int(o.Count)
	}
	r.report.Events += events
	r.report.Rows += len(rows)
	return r.pause(ctx, events)
}
