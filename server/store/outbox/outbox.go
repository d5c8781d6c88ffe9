// Package outbox reads the rows of the outbox: which rows a chat has, what makes a row
// unreadable, and which events wait for their first publication.
//
// It owns the form of a valid row, regardless of its writer. It does not own the layout of
// the row (package table), its publication (package workers/relay) or its repair (package
// workers/failedrows). All functions are safe for concurrent use.
//
// # Unreadable rows
//
// Only a faulty tool or a manual edit writes a row that cannot be read. The row announces
// events of its chat, but it is unknown which. Until an operator repairs or drops it, the
// relay publishes no event of the chat for the first time; a replay of events that were
// published before is not affected. So a caller must assume the worst in its own direction:
// one that publishes again at once takes every event to be unpublished, one that only adds
// rows behind the unreadable one takes none to be announced.
package outbox

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// MaxRun bounds the events of a row that is written after its events: the relay publishes
// them in one transaction.
const MaxRun = 100

// Rows returns the rows of a chat in the order of their keys, which is that of their first
// versions. Reads are strongly consistent, one page at a time. An error ends the sequence.
func Rows(ctx context.Context, st store.Store, chatID string) iter.Seq2[store.Row, error] {
	q := store.Query{
		Table: store.Outbox, PK: table.ShardKey(event.Shard(chatID)), Consistency: store.Strong,
		From: chatID + "#", To: chatID + "#~",
	}
	return func(yield func(store.Row, error) bool) {
		for row, err := range store.QueryAll(ctx, st, q) {
			if err != nil {
				err = fmt.Errorf("read outbox: %w", err)
			}
			if !yield(row, err) {
				return
			}
		}
	}
}

// Read reads a row. It returns an error for one that is not as a chat's plan, a replay or
// a repair writes it, together with what could be read of it.
func Read(row store.Row) (table.Outbox, error) {
	o, err := table.OutboxFrom(row)
	switch {
	case err != nil:
		return o, err
	case o.Key() != row.Key || o.AggregateID == "":
		return o, errors.New("its key is not one of the outbox")
	case event.Shard(o.AggregateID) != o.Shard:
		return o, fmt.Errorf("its chat belongs to shard %d", event.Shard(o.AggregateID))
	case o.FirstVersion < 1 || o.Count < 1 || o.Count > store.MaxPlanWrites:
		return o, fmt.Errorf("%d events from version %d on are none of one plan", o.Count, o.FirstVersion)
	}
	return o, nil
}

// Waiting says which events of a chat wait for their first publication.
type Waiting struct {
	First      int64 // version of the first event that a readable row announces; 0: none
	Unreadable bool  // a row before it, or any, cannot be read and may announce any event
}

// Unpublished reads which events of a chat wait for their first publication. It reads up
// to the first row that is no replay.
func Unpublished(ctx context.Context, st store.Store, chatID string) (w Waiting, err error) {
	for row, err := range Rows(ctx, st, chatID) {
		if err != nil {
			return w, err
		}
		switch o, err := table.OutboxFrom(row); {
		case err != nil:
			w.Unreadable = true
		case !o.Replay:
			w.First = o.FirstVersion
			return w, nil // all that follows announces later events
		}
	}
	return w, nil
}
