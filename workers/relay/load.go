package relay

import (
	"context"
	"errors"
	"fmt"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/outbox"
	"github.com/parley-chat/parley/server/store/table"
)

// batcher returns a function that collects plans, and publishes them once they fill a
// transaction.
func (r *Relay) batcher(ctx context.Context, waiting *[]plan) func([]plan) error {
	return func(more []plan) error {
		*waiting = append(*waiting, more...)
		n, size := 0, 0
		for _, p := range *waiting {
			n, size = n+len(p.records), size+p.size
		}
		if n < r.cfg.MaxBatch && size < maxTransaction {
			return nil
		}
		full := *waiting
		*waiting = nil // also after an error: their rows are still in the outbox
		if err := r.publish(ctx, full); err != nil {
			return err
		}
		return r.makeRoom(ctx)
	}
}

// queryAggregate reads the plans of a chat, or of a stream of search events, that follow the last
// published version and calls emit with them, in order and in parts of at most a transaction: after
// hours without Kafka a chat may have more plans than fit into memory. Nothing is read of a chat that
// is deferred.
func (r *Relay) queryAggregate(ctx context.Context, chatID string, emit func([]plan) error) error {
	last, cached := r.lastPublished[chatID]
	if r.isDeferred(chatID) {
		return nil
	}
	rows, err := r.rows(ctx, chatID)
	if err == nil && len(rows.list) > 0 && (!cached || hasGap(rows.list, last)) {
		// The read is not a snapshot: it may have passed the position of a row just before the
		// row was written, and then found the next one. A second read finds the row, unless
		// another relay has published and deleted it.
		rows, err = r.rows(ctx, chatID)
	}
	if err != nil {
		return err
	}
	if rows.unreadable != nil {
		// The row may announce any event, also the next one.
		r.block(ctx, rows.unreadableKey, chatID, rows.unreadable)
		rows.list = nil
	}
	var next []table.Outbox
	published := last // rows up to here that are not pending are replays, or were set aside
	for _, row := range rows.list {
		end := row.FirstVersion + row.Count - 1
		if cached && end <= last {
			// It is published and not yet deleted, or an operator has written it again.
			if end <= published && !r.isPending[row.Key()] {
				rows.replays = append(rows.replays, row)
			}
			continue
		}
		next = append(next, row)
		last, cached = end, true
	}
	if r.cfg.Load != nil { // the rest of earlier rows goes before later ones
		if err := r.publishReplays(ctx, rows.replays, emit); err != nil {
			return err
		}
		rows.replays = nil
	}
	for len(next) > 0 && !r.deferred[chatID] {
		n := r.batchSize(next)
		plans, err := r.load(ctx, next[:n])
		if err := errors.Join(emit(plans), retriable(err)); err != nil {
			return err
		}
		if err != nil {
			r.block(ctx, next[len(plans)].Key(), chatID, err)
			break
		}
		next = next[n:]
	}
	return r.publishReplays(ctx, rows.replays, emit)
}

// maxBatchEvents bounds the events of a chat that are read at once.
const maxBatchEvents = 500

// batchSize returns how many rows from the first on are consecutive and fit into a
// transaction: their events are read at once.
func (r *Relay) batchSize(rows []table.Outbox) int {
	limit := int64(min(r.cfg.MaxBatch, maxBatchEvents))
	n, events := 1, rows[0].Count
	for n < len(rows) && rows[n].FirstVersion == rows[n-1].FirstVersion+rows[n-1].Count && events+rows[n].Count <= limit {
		events += rows[n].Count
		n++
	}
	return n
}

// retriable returns the error unless it is that of an unpublishable row.
func retriable(err error) error {
	if errors.Is(err, ErrPoison) {
		return nil
	}
	return err
}

// publishReplays calls emit with the plans of rows whose events were published before. They
// come in any order, and one that cannot be published does not block its chat.
func (r *Relay) publishReplays(ctx context.Context, rows []table.Outbox, emit func([]plan) error) error {
	for i, row := range rows {
		if r.allRefused(row) {
			continue
		}
		plans, err := r.load(ctx, rows[i:i+1])
		if err := retriable(err); err != nil {
			return err
		}
		if err != nil {
			r.quarantine(ctx, row.Key(), row.AggregateID, err)
			continue
		}
		plans[0].replay = true
		if err := emit(plans); err != nil {
			return err
		}
	}
	return nil
}

// hasGap reports whether the rows of a chat leave out a version after the last.
func hasGap(rows []table.Outbox, last int64) bool {
	for _, row := range rows {
		if row.FirstVersion > last+1 {
			return true
		}
		last = max(last, row.FirstVersion+row.Count-1)
	}
	return false
}

// chatRows are the rows of a chat that are not pending deletion.
type chatRows struct {
	list, replays []table.Outbox // those of new events, and replays
	unreadable    error          // why unreadableKey cannot be read; nil if all can
	unreadableKey store.Key
}

// rows reads the outbox rows of a chat.
func (r *Relay) rows(ctx context.Context, chatID string) (rows chatRows, err error) {
	for row, err := range outbox.Rows(ctx, r.cfg.Store, chatID) {
		if err != nil {
			return rows, err
		}
		o, err := read(row)
		switch {
		case err != nil && o.Replay:
			r.quarantine(ctx, row.Key, chatID, err)
		case err != nil:
			rows.unreadable, rows.unreadableKey = err, row.Key
		case o.Replay && r.isPending[row.Key]: // published and not yet deleted
		case o.Replay:
			rows.replays = append(rows.replays, o)
		default:
			rows.list = append(rows.list, o)
		}
	}
	return rows, nil
}

// read reads a row; one that cannot be read is poison.
func read(row store.Row) (table.Outbox, error) {
	o, err := outbox.Read(row)
	if err != nil {
		return o, fmt.Errorf("%w: %w", ErrPoison, err)
	}
	return o, nil
}

// load reads the events of consecutive rows. With ErrPoison it returns the plans of the rows
// before the one that cannot be published.
func (r *Relay) load(ctx context.Context, rows []table.Outbox) ([]plan, error) {
	if r.cfg.Load != nil {
		return r.loadRecords(ctx, rows)
	}
	end := rows[len(rows)-1]
	q := store.Query{
		Table: store.Events, PK: end.AggregateID, Consistency: store.Strong,
		From: table.Number(rows[0].FirstVersion), To: table.Number(end.FirstVersion + end.Count - 1),
	}
	found := map[string]store.Row{} // by sort key
	for er, err := range store.QueryAll(ctx, r.cfg.Store, q) {
		if err != nil {
			return nil, fmt.Errorf("read events: %w", err)
		}
		found[er.Key.SK] = er
	}
	plans := make([]plan, 0, len(rows))
	for _, row := range rows {
		p, err := r.planFrom(row, found)
		if err != nil {
			return plans, err
		}
		plans = append(plans, p)
	}
	return plans, nil
}

// loadRecords is load of streams whose records others make.
func (r *Relay) loadRecords(ctx context.Context, rows []table.Outbox) ([]plan, error) {
	lists, err := r.cfg.Load(ctx, rows)
	plans := make([]plan, 0, len(lists))
	for i, records := range lists {
		row := rows[i]
		p := plan{key: row.Key(), chatID: row.AggregateID, last: row.FirstVersion + row.Count - 1, stored: true,
			since: row.CreatedAt}
		for at, rec := range records {
			if r.aside[p.key].waits(at) {
				p.add(rec, at)
			}
		}
		plans = append(plans, p)
	}
	return plans, err
}

// planFrom makes the plan of an outbox row from the rows of its events.
func (r *Relay) planFrom(row table.Outbox, found map[string]store.Row) (plan, error) {
	var events []event.Event
	var payloads [][]byte // stored as they are published
	for v := row.FirstVersion; v < row.FirstVersion+row.Count; v++ {
		er, ok := found[table.Number(v)]
		if !ok {
			continue
		}
		stored, err := table.EventFrom(er)
		if err != nil {
			return plan{}, fmt.Errorf("%w: %w", ErrPoison, err)
		}
		e, err := event.Unmarshal(stored.Type, stored.Payload)
		if err != nil {
			return plan{}, fmt.Errorf("%w: %w", ErrPoison, err)
		}
		events, payloads = append(events, e), append(payloads, stored.Payload)
	}
	if int64(len(events)) != row.Count {
		return plan{}, fmt.Errorf("%w: %d of %d events exist", ErrPoison, len(events), row.Count)
	}
	p, err := r.planOf(row.Key(), row.AggregateID, row.FirstVersion, events, payloads)
	p.stored = true
	return p, err
}
