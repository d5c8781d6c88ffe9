// Package failedrows lets operators list, repair and drop the rows of the outbox that the relay
// cannot publish.
//
// The relay quarantines such a row: it records the reason, retries the row with every sweep
// (2 s), and publishes nothing later of its chat meanwhile. The rows of a chat follow from
// its events: to repair a row is to write it again from the event store. To drop a row is to
// give up the publication of its events, which remain in the event store and can be
// replayed. The package owns neither the permissions of its callers nor the publication.
//
// Concurrency: all functions are safe for concurrent use. Each change is one conditional
// write; of two operators who change the same row one gets ErrChanged.
package failedrows

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/outbox"
	"github.com/parley-chat/parley/server/store/table"
)

// MaxRows bounds the rows of a call.
const MaxRows = 1_000

// Errors of calls.
var (
	ErrNotFound = errors.New("failedrows: no such failed row")
	ErrChanged  = errors.New("failedrows: the row was changed meanwhile")
	ErrInvalid  = errors.New("failedrows: invalid request")
	ErrNoEvents = errors.New("failedrows: the event store has no readable events for this row: drop it")
)

// Row is a row in quarantine.
type Row struct {
	ID           string // shard/sort key
	ChatID       string
	FirstVersion int64 // 0: unreadable
	Count        int64
	Replay       bool
	CreatedAt    time.Time
	Attempts     int64
	LastError    string
}

// List returns up to limit failed rows (at most MaxRows) in the order of their ids, starting
// behind the id after, or with the first row if that is empty. It reads the whole outbox.
func List(ctx context.Context, st store.Store, after string, limit int) ([]Row, error) {
	if limit < 1 || limit > MaxRows {
		return nil, fmt.Errorf("%w: 1 to %d rows", ErrInvalid, MaxRows)
	}
	from, last := 0, ""
	if after != "" {
		key, err := keyOf(after)
		if err != nil {
			return nil, err
		}
		for from < event.AllShards && table.ShardKey(from) != key.PK {
			from++
		}
		last = key.SK
	}
	var rows []Row
	for shard := from; shard < event.AllShards; shard++ {
		q := store.Query{Table: store.Outbox, PK: table.ShardKey(shard), From: last, Consistency: store.Strong}
		for r, err := range store.QueryAll(ctx, st, q) {
			if err != nil {
				return nil, fmt.Errorf("read outbox: %w", err)
			}
			if r.Key.SK == last || !isFailed(r) {
				continue
			}
			if rows = append(rows, rowFrom(r)); len(rows) == limit {
				return rows, nil
			}
		}
		last = ""
	}
	return rows, nil
}

// OfChat yields the failed rows of a chat in the order of their ids. An error ends the
// sequence.
func OfChat(ctx context.Context, st store.Store, chatID string) iter.Seq2[Row, error] {
	return func(yield func(Row, error) bool) {
		for r, err := range outbox.Rows(ctx, st, chatID) {
			if err != nil {
				yield(Row{}, err)
				return
			}
			if isFailed(r) && !yield(rowFrom(r), nil) {
				return
			}
		}
	}
}

// All yields all failed rows in the order of their ids. It reads the whole outbox. An error
// ends the sequence.
func All(ctx context.Context, st store.Store) iter.Seq2[Row, error] {
	return func(yield func(Row, error) bool) {
		for after, more := "", true; more; {
			rows, err := List(ctx, st, after, MaxRows)
			if err != nil {
				yield(Row{}, err)
				return
			}
			for _, r := range rows {
				if !yield(r, nil) {
					return
				}
				after = r.ID
			}
			more = len(rows) == MaxRows
		}
	}
}

func isFailed(r store.Row) bool { return r.Item.Get(table.AttrLastError).Str() != "" }

func rowFrom(r store.Row) Row {
	row := Row{
		ID: r.Key.PK + "/" + r.Key.SK, Attempts: r.Item.Get(table.AttrAttempts).Int64(),
		LastError: r.Item.Get(table.AttrLastError).Str(),
	}
	row.ChatID, _, _ = strings.Cut(r.Key.SK, "#")
	if o, err := table.OutboxFrom(r); err == nil {
		row.FirstVersion, row.Count, row.Replay, row.CreatedAt = o.FirstVersion, o.Count, o.Replay,
			time.UnixMilli(o.CreatedAt)
	}
	return row
}

func keyOf(id string) (store.Key, error) {
	shard, sk, ok := strings.Cut(id, "/")
	k := store.Key{Table: store.Outbox, PK: shard, SK: sk}
	if !ok || k.Validate() != nil || len(shard) != 2 {
		return k, fmt.Errorf("%w: %.100q is not the id of a failed row", ErrInvalid, id)
	}
	return k, nil
}

// get reads a failed row.
func get(ctx context.Context, st store.Store, id string) (store.Row, error) {
	key, err := keyOf(id)
	if err != nil {
		return store.Row{}, err
	}
	it, err := st.Get(ctx, key, store.Strong)
	switch {
	case err != nil:
		return store.Row{}, fmt.Errorf("read row: %w", err)
	case !isFailed(store.Row{Key: key, Item: it}):
		return store.Row{}, fmt.Errorf("%w: %.100q", ErrNotFound, id)
	}
	return store.Row{Key: key, Item: it}, nil
}

// Drop removes a failed row: its events will not be published. Without execute it only
// returns the row.
func Drop(ctx context.Context, st store.Store, id string, execute bool) (Row, error) {
	r, err := get(ctx, st, id)
	if err != nil || !execute {
		return rowFrom(r), err
	}
	return rowFrom(r), replace(ctx, st, r, nil)
}

// Repair replaces a failed row by correct rows: those of the chat's events from the row's first
// version up to the next row or the head, as far as they exist and can be read. A row whose
// version cannot be read is assumed to announce all events that follow those of the other
// rows. Without execute Repair only returns what it would write. ErrNoEvents: nothing can be
// published.
func Repair(ctx context.Context, st store.Store, id string, execute bool) (Row, []table.Outbox, error) {
	r, err := get(ctx, st, id)
	if err != nil {
		return Row{}, nil, err
	}
	row := rowFrom(r)
	from, to, err := span(ctx, st, r, row)
	if err != nil {
		return row, nil, err
	}
	rows, err := derive(ctx, st, row.ChatID, from, to)
	if err != nil {
		return row, nil, err
	}
	for i := range rows {
		rows[i].Replay = row.Replay
		if o, err := table.OutboxFrom(r); err == nil {
			rows[i].ReplayID = o.ReplayID
		}
	}
	if execute {
		err = replace(ctx, st, r, rows)
	}
	return row, rows, err
}

// span returns the versions that a row should announce; to is 0 for no end.
func span(ctx context.Context, st store.Store, r store.Row, row Row) (from, to int64, err error) {
	if row.Replay && row.FirstVersion > 0 {
		return row.FirstVersion, row.FirstVersion + max(row.Count, 1) - 1, nil
	}
	from = max(row.FirstVersion, 1)
	for other, err := range outbox.Rows(ctx, st, row.ChatID) {
		if err != nil {
			return 0, 0, err
		}
		o, err := table.OutboxFrom(other)
		if err != nil || o.Replay || other.Key == r.Key {
			continue
		}
		if row.FirstVersion > 0 && o.FirstVersion > row.FirstVersion && (to == 0 || o.FirstVersion <= to) {
			to = o.FirstVersion - 1
		}
		if row.FirstVersion == 0 {
			from = max(from, o.FirstVersion+o.Count)
		}
	}
	return from, to, nil
}

// derive makes the rows of a chat's readable events, each of at most outbox.MaxRun
// consecutive events.
func derive(ctx context.Context, st store.Store, chatID string, from, to int64) (rows []table.Outbox, err error) {
	q := store.Query{Table: store.Events, PK: chatID, From: table.Number(from), Consistency: store.Strong}
	if to > 0 {
		q.To = table.Number(to)
	}
	for er, err := range store.QueryAll(ctx, st, q) {
		if err != nil {
			return nil, fmt.Errorf("read events: %w", err)
		}
		e, err := table.EventFrom(er)
		if err != nil {
			continue
		}
		decoded, err := event.Unmarshal(e.Type, e.Payload)
		if err != nil {
			continue
		}
		if n := len(rows); n > 0 && rows[n-1].Count < outbox.MaxRun && rows[n-1].FirstVersion+rows[n-1].Count == e.Version {
			rows[n-1].Count++
			continue
		}
		rows = append(rows, table.Outbox{
			Shard: event.Shard(chatID), AggregateID: chatID, FirstVersion: e.Version, Count: 1,
			CreatedAt: decoded.GetMetadata().GetEventTime().AsTime().UnixMilli(),
		})
		if len(rows) > store.MaxPlanWrites-1 {
			return nil, fmt.Errorf("%w: more than %d rows would be written", ErrInvalid, store.MaxPlanWrites-1)
		}
	}
	if len(rows) == 0 {
		return nil, ErrNoEvents
	}
	return rows, nil
}

// replace removes a row that has not changed meanwhile and writes others, atomically.
func replace(ctx context.Context, st store.Store, r store.Row, rows []table.Outbox) error {
	same := store.Exists().Eq(table.AttrLastError, r.Item.Get(table.AttrLastError))
	var p store.Plan
	kept := false
	for _, o := range rows {
		w := store.Write{Op: store.OpPut, Key: o.Key(), Item: o.Item(), Name: "repaired"}
		if o.Key() == r.Key {
			w.Cond, w.Name, kept = same, "row", true
		}
		p.Writes = append(p.Writes, w)
	}
	if !kept {
		p.Writes = append(p.Writes, store.Write{Op: store.OpDelete, Key: r.Key, Cond: same, Name: "row"})
	}
	err := st.Transact(ctx, p)
	var failed *store.ConditionError
	if errors.As(err, &failed) {
		return ErrChanged
	}
	return err
}
