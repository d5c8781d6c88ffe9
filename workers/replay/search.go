package replay

import (
	"context"
	"fmt"
	"slices"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/search"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/outbox"
	"github.com/parley-chat/parley/server/store/table"
)

// OfSearch reports whether a filter selects search events, which have streams in place of
// chats: its types say so.
func (c Filter) OfSearch() bool {
	return slices.ContainsFunc(c.Types, func(t string) bool { return slices.Contains(search.Types(), t) })
}

// validateSearch checks a filter of search events.
func (c Filter) validateSearch() error {
	if len(c.Chats) > 0 || c.From > 0 || c.To > 0 {
		return fmt.Errorf("%w: search events have no chats and no versions", ErrInvalid)
	}
	if c.wants(outbox.Failed) {
		return fmt.Errorf("%w: failed search events go out once their rows are repaired", ErrInvalid)
	}
	for _, t := range c.Types {
		if !slices.Contains(search.Types(), t) {
			return fmt.Errorf("%w: search events and others are replayed one after the other, not with %q", ErrInvalid, t)
		}
	}
	return nil
}

// searchEvents replays search events, as long as the store has them, and some rows at a time.
func (r *run) searchEvents(ctx context.Context) error {
	s := store.Scan{Table: store.SearchEvents, Segments: 1, Limit: scanPage, Cursor: r.options.Resume}
	for first := true; first || s.Cursor != ""; first = false {
		r.report.Resume = s.Cursor
		page, err := r.store.Scan(ctx, s)
		if err != nil {
			return fmt.Errorf("read search events: %w", err)
		}
		for _, row := range page.Rows {
			if err := r.searchRow(ctx, row); err != nil {
				return fmt.Errorf("replay %s: %w", row.Key.PK, err)
			}
		}
		if err := r.options.OnProgress(r.report); err != nil {
			return err
		}
		s.Cursor = page.Cursor
	}
	return nil
}

// searchRow replays the selected events of a row, in runs.
func (r *run) searchRow(ctx context.Context, row store.Row) error {
	stored, err := table.SearchEventsFrom(row)
	if err != nil {
		return nil //nolint:nilerr // what cannot be read cannot be published
	}
	events, err := search.Decode(stored)
	if err != nil {
		return nil //nolint:nilerr // as above
	}
	var selected []int64
	for i, e := range events {
		if r.filter.matchesSearch(e) {
			selected = append(selected, stored.First+int64(i))
		}
	}
	if r.options.Limit > 0 && r.report.Events+len(selected) > r.options.Limit {
		selected = selected[:r.options.Limit-r.report.Events]
		r.report.More = true
	}
	if len(selected) > 0 {
		waiting := table.Outbox{Shard: event.Shard(stored.Stream), AggregateID: stored.Stream,
			FirstVersion: stored.First}.Key()
		switch it, err := r.store.Get(ctx, waiting, store.Strong); {
		case err != nil:
			return err
		case it != nil:
			r.report.Unpublished += len(selected)
		default:
			if err := r.announce(ctx, stored.Stream, selected); err != nil {
				return err
			}
		}
	}
	if r.report.More {
		return errLimit
	}
	return nil
}

// matchesSearch reports whether an event is selected.
func (c Filter) matchesSearch(e search.Recorded) bool {
	at := e.GetOccurredAtMs()
	return slices.Contains(c.Types, e.GetEventType()) &&
		(c.After.IsZero() || at >= c.After.UnixMilli()) && (c.Until.IsZero() || at < c.Until.UnixMilli())
}
