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

// gather returns a function that adds plans to those that wait, and publishes them
// once they fill a transaction.
func (r *Relay) gather(ctx context.Context, waiting *[]plan) func([]plan) error {
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
		*waiting = nil // also after a failure: the outbox still has them
		if err := r.publish(ctx, full); err != nil {
			return err
		}
		return r.makeRoom(ctx)
	}
}

// queryChat hands the plans of a chat that follow the last version published to take,
// in order and in parts of at most a transaction: after hours without Kafka a chat
// may have more than fits into memory, and what was read is thrown away whenever it
// cannot be published. Nothing is read of a chat that has to wait for a partition.
func (r *Relay) queryChat(ctx context.Context, chatID string, last int64, known bool, take func([]plan) error) error {
	if r.leftOut(chatID) {
		return nil
	}
	rows, err := r.rows(ctx, chatID)
	if err == nil && len(rows.list) > 0 && (!known || hole(rows.list, last)) {
		// A read that is no snapshot may have passed the place of a row just before
		// it was written, and then met the next. The second read shows the row, or it
		// is deleted: then another relay has published it.
		rows, err = r.rows(ctx, chatID)
	}
	if err != nil {
		return err
	}
	if rows.bad != nil {
		// Nobody knows what it points to: it may be what comes next.
		r.stop(ctx, rows.badKey, chatID, rows.bad)
		rows.list = nil
	}
	var next []table.Outbox
	published := int64(0)
	if known {
		published = last
	}
	for _, row := range rows.list {
		end := row.FirstVersion + row.Count - 1
		if known && end <= last {
			// Published, waiting to be deleted; or written again since, by an operator.
			if end <= published && !r.waits[row.Key()] {
				rows.again = append(rows.again, row)
			}
			continue
		}
		next = append(next, row)
		last, known = end, true
	}
	for len(next) > 0 && !r.left[chatID] {
		n := r.together(next)
		plans, err := r.load(ctx, next[:n])
		if err := errors.Join(take(plans), retriable(err)); err != nil {
			return err
		}
		if err != nil {
			r.stop(ctx, next[len(plans)].Key(), chatID, err)
			break
		}
		next = next[n:]
	}
	return r.replays(ctx, rows.again, take)
}

// maxTogether bounds the events of a chat that are read at once.
const maxTogether = 500

// together says how many rows from the first on follow each other and fit into a
// transaction: their events are read at once.
func (r *Relay) together(rows []table.Outbox) int {
	most := int64(min(r.cfg.MaxBatch, maxTogether))
	n, events := 1, rows[0].Count
	for n < len(rows) && rows[n].FirstVersion == rows[n-1].FirstVersion+rows[n-1].Count && events+rows[n].Count <= most {
		events += rows[n].Count
		n++
	}
	return n
}

// retriable returns an error that is not the fault of a row.
func retriable(err error) error {
	if errors.Is(err, errPoison) {
		return nil
	}
	return err
}

// replays hands the plans of rows whose events were published before to take. They
// come in any order, and one that cannot be published stops nothing.
func (r *Relay) replays(ctx context.Context, rows []table.Outbox, take func([]plan) error) error {
	for i, row := range rows {
		plans, err := r.load(ctx, rows[i:i+1])
		if err := retriable(err); err != nil {
			return err
		}
		if err != nil {
			r.setAside(ctx, row.Key(), row.ChatID, err)
			continue
		}
		plans[0].replay = true
		if err := take(plans); err != nil {
			return err
		}
	}
	return nil
}

// hole reports whether rows of a chat leave out a version after the last.
func hole(rows []table.Outbox, last int64) bool {
	for _, row := range rows {
		if row.FirstVersion > last+1 {
			return true
		}
		last = max(last, row.FirstVersion+row.Count-1)
	}
	return false
}

// chatRows are the outbox rows of a chat.
type chatRows struct {
	list, again []table.Outbox // those of new events, and replays
	bad         error          // why badKey cannot be read; nil if all can
	badKey      store.Key
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
			r.setAside(ctx, row.Key, chatID, err)
		case err != nil:
			rows.bad, rows.badKey = err, row.Key
		case o.Replay && r.waits[row.Key]: // published, waiting to be deleted
		case o.Replay:
			rows.again = append(rows.again, o)
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
		return o, fmt.Errorf("%w: %w", errPoison, err)
	}
	return o, nil
}

// load reads the events that rows point to, which follow each other. With errPoison
// come the plans of the rows before the one that cannot be published.
func (r *Relay) load(ctx context.Context, rows []table.Outbox) ([]plan, error) {
	end := rows[len(rows)-1]
	q := store.Query{
		Table: store.Events, PK: end.ChatID, Consistency: store.Strong,
		From: table.Number(rows[0].FirstVersion), To: table.Number(end.FirstVersion + end.Count - 1),
	}
	found := map[string]store.Row{} // by sort key
	for first := true; first || q.Cursor != ""; first = false {
		page, err := r.cfg.Store.Query(ctx, q)
		if err != nil {
			return nil, fmt.Errorf("read events: %w", err)
		}
		for _, er := range page.Rows {
			found[er.Key.SK] = er
		}
		q.Cursor = page.Cursor
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

// planFrom makes the plan of a row from the rows of its events.
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
			return plan{}, fmt.Errorf("%w: %w", errPoison, err)
		}
		e, err := event.Unmarshal(stored.Type, stored.Payload)
		if err != nil {
			return plan{}, fmt.Errorf("%w: %w", errPoison, err)
		}
		events, payloads = append(events, e), append(payloads, stored.Payload)
	}
	if int64(len(events)) != row.Count {
		return plan{}, fmt.Errorf("%w: %d of %d events are there", errPoison, len(events), row.Count)
	}
	p, err := r.planOf(row.Key(), row.ChatID, events, payloads)
	p.read = true
	return p, err
}
