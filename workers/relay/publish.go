package relay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// headerType names the event's type in a record's headers.
const headerType = "event_type"

// errPoison says that a row cannot be published, now or later: it stops its chat,
// and no other.
var errPoison = errors.New("relay: row cannot be published")

// plan is one outbox row on its way, with its records.
type plan struct {
	key     store.Key
	chatID  string
	last    int64 // version
	replay  bool  // the events were published before
	records []*kafka.Record
	created []*eventv1.ChatCreated // of these events
}

// publishNudges publishes a commit and those waiting behind it.
func (r *Relay) publishNudges(ctx context.Context, first chat.Commit) error {
	batch := []chat.Commit{first}
	for n := len(first.Events); n < r.cfg.MaxBatch; {
		select {
		case c := <-r.nudges:
			batch, n = append(batch, c), n+len(c.Events)
			continue
		default:
		}
		break
	}
	var plans []plan
	at := map[string]int64{} // versions as they will be after plans
	asked := map[string]bool{}
	for _, c := range batch {
		id := c.ChatID
		if asked[id] || r.stopped[id] != nil {
			continue // the query shows this commit too; a stopped chat waits for the sweep
		}
		last, known := at[id]
		if !known {
			last, known = r.last[id]
		}
		from := c.Head.Version - int64(len(c.Events)) + 1
		switch {
		case known && c.Head.Version <= last:
			continue // a query or the sweep was faster
		case known && from == last+1:
			p, err := r.planOf(c.Outbox.Key, id, c.Events)
			if err != nil {
				r.stop(ctx, c.Outbox.Key, id, err)
				continue
			}
			plans = append(plans, p)
			at[id] = p.last
		default:
			asked[id] = true
			more, err := r.queryChat(ctx, id, last, known)
			if err != nil {
				return err
			}
			plans = append(plans, more...)
		}
	}
	r.poisoned.Store(int64(len(r.aside)))
	return r.publish(ctx, plans)
}

// queryChat returns the plans of a chat that follow the last version published,
// in order.
func (r *Relay) queryChat(ctx context.Context, chatID string, last int64, known bool) ([]plan, error) {
	rows, err := r.rows(ctx, chatID)
	if err == nil && len(rows.list) > 0 && (!known || hole(rows.list, last)) {
		// A read that is no snapshot may have passed the place of a row just before
		// it was written, and then met the next. The second read shows the row, or it
		// is deleted: then another relay has published it.
		rows, err = r.rows(ctx, chatID)
	}
	if err != nil {
		return nil, err
	}
	if rows.bad != nil {
		// Nobody knows what it points to: it may be what comes next.
		r.stop(ctx, rows.badKey, chatID, rows.bad)
		rows.list = nil
	}
	var plans []plan
	for _, row := range rows.list {
		end := row.FirstVersion + row.Count - 1
		if known && end <= last {
			continue // published, waiting to be deleted
		}
		p, err := r.load(ctx, row)
		if errors.Is(err, errPoison) {
			r.stop(ctx, row.Key(), chatID, err)
			break
		}
		if err != nil {
			return nil, err
		}
		plans = append(plans, p)
		last, known = end, true
	}
	more, err := r.replays(ctx, rows.again)
	return append(plans, more...), err
}

// replays returns the plans of rows whose events were published before. They come
// in any order, and one that cannot be published stops nothing.
func (r *Relay) replays(ctx context.Context, rows []table.Outbox) (plans []plan, err error) {
	for _, row := range rows {
		if r.waits[row.Key()] {
			continue
		}
		p, err := r.load(ctx, row)
		if errors.Is(err, errPoison) {
			r.setAside(ctx, row.Key(), row.ChatID, err)
			continue
		}
		if err != nil {
			return nil, err
		}
		p.replay = true
		plans = append(plans, p)
	}
	return plans, nil
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
	q := store.Query{
		Table: store.Outbox, PK: table.ShardKey(event.Shard(chatID)), Consistency: store.Strong,
		From: chatID + "#", To: chatID + "#~",
	}
	for first := true; first || q.Cursor != ""; first = false {
		page, err := r.cfg.Store.Query(ctx, q)
		if err != nil {
			return rows, fmt.Errorf("read outbox: %w", err)
		}
		for _, row := range page.Rows {
			o, err := read(row)
			switch {
			case err != nil && o.Replay:
				r.setAside(ctx, row.Key, chatID, err)
			case err != nil:
				rows.bad, rows.badKey = err, row.Key
			case o.Replay:
				rows.again = append(rows.again, o)
			default:
				rows.list = append(rows.list, o)
			}
		}
		q.Cursor = page.Cursor
	}
	return rows, nil
}

// read reads a row. One that is not as the plans of chats write them is poison: the
// engines keep what they are given, and hands or faulty tools may have been at it.
func read(row store.Row) (table.Outbox, error) {
	o, err := table.OutboxFrom(row)
	switch {
	case err != nil:
	case o.Key() != row.Key || o.ChatID == "":
		err = errors.New("its key is not one of the outbox")
	case event.Shard(o.ChatID) != o.Shard:
		err = fmt.Errorf("its chat belongs to shard %d", event.Shard(o.ChatID))
	case o.FirstVersion < 1 || o.Count < 1 || o.Count > store.MaxPlanWrites:
		err = fmt.Errorf("%d events from version %d on are none of one plan", o.Count, o.FirstVersion)
	}
	if err != nil {
		return o, fmt.Errorf("%w: %w", errPoison, err)
	}
	return o, nil
}

// load reads the events that a row points to.
func (r *Relay) load(ctx context.Context, row table.Outbox) (plan, error) {
	q := store.Query{
		Table: store.Events, PK: row.ChatID, Consistency: store.Strong,
		From: table.Number(row.FirstVersion), To: table.Number(row.FirstVersion + row.Count - 1),
	}
	var events []event.Event
	for first := true; first || q.Cursor != ""; first = false {
		page, err := r.cfg.Store.Query(ctx, q)
		if err != nil {
			return plan{}, fmt.Errorf("read events: %w", err)
		}
		for _, er := range page.Rows {
			stored, err := table.EventFrom(er)
			if err != nil {
				return plan{}, fmt.Errorf("%w: %w", errPoison, err)
			}
			e, err := event.Unmarshal(stored.Type, stored.Payload)
			if err != nil {
				return plan{}, fmt.Errorf("%w: %w", errPoison, err)
			}
			events = append(events, e)
		}
		q.Cursor = page.Cursor
	}
	if int64(len(events)) != row.Count {
		return plan{}, fmt.Errorf("%w: %d of %d events are there", errPoison, len(events), row.Count)
	}
	return r.planOf(row.Key(), row.ChatID, events)
}

func (r *Relay) planOf(key store.Key, chatID string, events []event.Event) (plan, error) {
	p := plan{key: key, chatID: chatID}
	for _, e := range events {
		md := e.GetMetadata()
		spec := event.SpecOf(e)
		if spec.Type == "" || chatID == "" {
			return p, fmt.Errorf("%w: event %s is not in the catalogue", errPoison, md.GetEventId())
		}
		value, err := r.cfg.Serde.Encode(e)
		if err != nil {
			return p, fmt.Errorf("%w: %w", errPoison, err)
		}
		if len(value) > kafka.MaxEvent {
			return p, fmt.Errorf("%w: event %s has %d bytes", errPoison, md.GetEventId(), len(value))
		}
		p.records = append(p.records, &kafka.Record{
			Topic:     spec.Topic,
			Partition: int32(event.Partition(chatID, int(kafka.Partitions(spec.Topic)))),
			Key:       []byte(chatID),
			Value:     value,
			Headers: []kafka.Header{
				{Key: "event_id", Value: []byte(md.GetEventId())},
				{Key: headerType, Value: []byte(spec.Type)},
				{Key: "generation", Value: []byte(md.GetGeneration())},
			},
		})
		p.last = md.GetVersion()
		if c, ok := e.(*eventv1.ChatCreated); ok {
			p.created = append(p.created, c)
		}
	}
	return p, nil
}

// publish publishes plans in transactions of at most MaxBatch records; a plan is
// never split, and the order of plans is kept.
func (r *Relay) publish(ctx context.Context, plans []plan) error {
	for len(plans) > 0 {
		n, records := 0, []*kafka.Record(nil)
		for n < len(plans) && (n == 0 || len(records)+len(plans[n].records) <= r.cfg.MaxBatch) {
			records = append(records, plans[n].records...)
			n++
		}
		if err := r.cfg.Publish(ctx, records); err != nil {
			for _, p := range plans { // the outcome decides what comes next: ask the outbox
				delete(r.last, p.chatID)
			}
			r.failed(records, err)
			return err
		}
		for _, p := range plans[:n] {
			if len(r.last) >= maxChats {
				clear(r.last)
			}
			if !p.replay {
				r.last[p.chatID] = p.last
				r.tell(p.created)
			}
			if !r.waits[p.key] {
				r.waits[p.key] = true
				r.awaiting = append(r.awaiting, p.key)
			}
		}
		r.published.Add(int64(len(records)))
		plans = plans[n:]
	}
	return nil
}

// tell tells of chats whose creation is in the log now.
func (r *Relay) tell(created []*eventv1.ChatCreated) {
	if r.cfg.Created == nil {
		return
	}
	for _, c := range created {
		// The clock that set the time may be another machine's.
		r.cfg.Created(c, max(0, r.cfg.Clock().Sub(c.GetMetadata().GetEventTime().AsTime())))
	}
}

// failed tells of events that the log did not take (L-118, L-119). They are not
// lost: their rows are still there.
func (r *Relay) failed(records []*kafka.Record, why error) {
	if errors.Is(why, kafka.ErrFenced) { // another publishes them
		return
	}
	types := map[string]int{}
	for _, rec := range records {
		for _, h := range rec.Headers {
			if h.Key == headerType {
				types[string(h.Value)]++
				if r.cfg.Failed != nil {
					r.cfg.Failed(string(h.Value))
				}
			}
		}
	}
	r.cfg.Logger.Error("lifecycle_event_publish_failed", "events", types, "error", why)
}

// sweep reads its shards from their start and publishes what is there and was not
// published yet.
func (r *Relay) sweep(ctx context.Context) error {
	clear(r.stopped)
	clear(r.aside)
	var found, oldest int64
	var plans []plan // of many chats: a transaction costs as much for one
	waiting := 0     // records of plans
	// What was read before an error is published: it has waited long enough.
	stop := func(err error) error { return errors.Join(err, r.publish(ctx, plans)) }
	for shard, mine := range r.mine {
		if !mine {
			continue
		}
		q := store.Query{Table: store.Outbox, PK: table.ShardKey(shard), Consistency: store.Strong}
		before := ""
		for first := true; first || q.Cursor != ""; first = false {
			page, err := r.cfg.Store.Query(ctx, q)
			if err != nil {
				return stop(fmt.Errorf("sweep outbox: %w", err))
			}
			for _, row := range page.Rows {
				if r.waits[row.Key] {
					continue
				}
				found++
				o, err := read(row)
				if err != nil {
					// Its chat's other rows stay, if it is among them; see queryChat.
					id, _, _ := strings.Cut(row.Key.SK, "#")
					r.setAside(ctx, row.Key, id, err)
					continue
				}
				if oldest == 0 || o.CreatedAt < oldest {
					oldest = o.CreatedAt
				}
				if o.ChatID == before {
					continue // its rows were published together
				}
				before = o.ChatID
				last, known := r.last[o.ChatID]
				more, err := r.queryChat(ctx, o.ChatID, last, known)
				if err != nil {
					return stop(err)
				}
				for _, p := range more {
					waiting += len(p.records)
				}
				if plans = append(plans, more...); waiting >= r.cfg.MaxBatch {
					if err := r.publish(ctx, plans); err != nil {
						return err
					}
					plans, waiting = nil, 0
				}
			}
			q.Cursor = page.Cursor
		}
	}
	if err := r.publish(ctx, plans); err != nil {
		return err
	}
	r.backlog.Store(found)
	r.oldest.Store(oldest)
	r.poisoned.Store(int64(len(r.aside)))
	return nil
}

// stop sets a row aside, and with it its chat: nothing later of it may go before.
func (r *Relay) stop(ctx context.Context, key store.Key, chatID string, why error) {
	r.stopped[chatID] = why
	r.setAside(ctx, key, chatID, why)
}

// noteEvery is how often the same row is told of again.
const noteEvery = time.Minute

// maxReason bounds what is noted of an error, in bytes.
const maxReason = 500

// setAside notes that a row cannot be published, on the row itself and for operators:
// it is FAILED, and stays until somebody has mended or removed it.
func (r *Relay) setAside(ctx context.Context, key store.Key, chatID string, why error) {
	r.aside[key] = true
	now := r.cfg.Clock()
	if at, ok := r.noted[key]; ok && now.Sub(at) < noteEvery {
		return
	}
	if len(r.noted) >= maxChats {
		clear(r.noted)
	}
	r.noted[key] = now
	r.cfg.Logger.Error("relay: an outbox row is set aside; its chat waits for it", "chat_id", chatID, "shard", key.PK, "row", key.SK, "error", why)
	reason := why.Error()
	if len(reason) > maxReason {
		reason = strings.ToValidUTF8(reason[:maxReason], "")
	}
	err := r.cfg.Store.Transact(ctx, store.Plan{Writes: []store.Write{{
		Op: store.OpUpdate, Key: key, Cond: store.Exists(), Name: "row",
		Update: store.Update{
			Set: []store.Attr{{Name: "last_error", Value: store.String(reason)}},
			Add: []store.Increment{{Name: "attempts", N: 1}},
		},
	}}})
	if err != nil {
		r.cfg.Logger.Warn("relay: note the failure", "error", err)
	}
}
