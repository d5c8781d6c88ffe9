package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// errPoison says that a row cannot be published, now or later: it stops its chat,
// and no other.
var errPoison = errors.New("relay: row cannot be published")

// plan is one outbox row on its way, with its records.
type plan struct {
	key     store.Key
	chatID  string
	last    int64 // version
	replay  bool  // the events were published before
	read    bool  // from the store; nudges tell of what is on disk
	frozen  bool  // a topic of its events takes none at present
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
	clear(r.left)
	var plans []plan
	at := map[string]int64{} // versions as they will be after plans
	take := r.gather(ctx, &plans)
	asked := map[string]bool{}
	for _, c := range batch {
		id := c.ChatID
		if asked[id] || r.stopped[id] != nil || r.route.waits[id] {
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
			if err := r.queryChat(ctx, id, last, known, take); err != nil {
				return err
			}
		}
	}
	r.poisoned.Store(int64(len(r.aside)))
	return r.publish(ctx, plans)
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
		to := r.route.state.Place(spec.Topic, chatID)
		p.frozen = p.frozen || r.route.state.Frozen(spec.Topic)
		p.records = append(p.records, &kafka.Record{
			Topic:     to.Topic,
			Partition: to.ID,
			Key:       []byte(chatID),
			Value:     value,
			Headers: []kafka.Header{
				{Key: kafka.HeaderEventID, Value: []byte(md.GetEventId())},
				{Key: kafka.HeaderEventType, Value: []byte(spec.Type)},
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
// never split, and the order of plans is kept. Plans of partitions that take nothing at
// present wait with the rest of their chats; the others go without them.
func (r *Relay) publish(ctx context.Context, plans []plan) error {
	plans = r.available(plans)
	for len(plans) > 0 {
		n, records := 0, []*kafka.Record(nil)
		for n < len(plans) && (n == 0 || len(records)+len(plans[n].records) <= r.cfg.MaxBatch) {
			records = append(records, plans[n].records...)
			n++
		}
		if slices.ContainsFunc(plans[:n], func(p plan) bool { return p.read }) {
			// What a query saw may not be on disk yet: a crash that took it away would
			// leave an event on Kafka that the store never had.
			if err := r.cfg.Store.Durable(ctx); err != nil {
				return fmt.Errorf("wait for the disk: %w", err)
			}
		}
		if err := r.cfg.Publish(ctx, records); err != nil {
			r.failed(records, err)
			if r.holdBack(err) {
				plans = r.available(plans)
				continue
			}
			for _, p := range plans { // the outcome decides what comes next: ask the outbox
				delete(r.last, p.chatID)
			}
			return err
		}
		r.published.Add(int64(len(records)))
		r.restore(records)
		for _, p := range plans[:n] {
			r.done(p)
		}
		r.moves()
		plans = plans[n:]
	}
	return nil
}

// done notes that a plan is published.
func (r *Relay) done(p plan) {
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
			if h.Key == kafka.HeaderEventType {
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
func (r *Relay) sweep(ctx context.Context) (err error) {
	clear(r.stopped)
	clear(r.aside)
	clear(r.left)
	var found, oldest int64
	var plans []plan // of many chats: a transaction costs as much for one
	take := r.gather(ctx, &plans)
	// What was read before an error is published: it has waited long enough.
	stop := func(err error) error { return errors.Join(err, r.publish(ctx, plans)) }
	defer func() {
		if err != nil { // what it has found and what was known waits, at least
			found = max(found, r.backlog.Load())
			if was := r.oldest.Load(); was > 0 && (oldest == 0 || was < oldest) {
				oldest = was
			}
		}
		r.backlog.Store(found)
		r.oldest.Store(oldest)
		r.poisoned.Store(int64(len(r.aside)))
	}()
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
				if err := r.queryChat(ctx, o.ChatID, last, known, take); err != nil {
					return stop(err)
				}
			}
			q.Cursor = page.Cursor
		}
	}
	return r.publish(ctx, plans)
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
