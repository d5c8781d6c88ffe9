package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
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
	size    int                    // of the records' values, in bytes
	created []*eventv1.ChatCreated // of these events
}

// publishNudges publishes what nudges told of chats.
func (r *Relay) publishNudges(ctx context.Context, list []*waiting) error {
	if r.taken.Load() == 0 { // since a failure there is more that waits
		r.taken.Store(list[0].since.UnixMilli())
	}
	clear(r.left)
	var plans []plan
	take := r.gather(ctx, &plans)
	for _, w := range list {
		more, ask := r.follow(ctx, w)
		if !ask {
			plans = append(plans, more...)
			continue
		}
		last, known := r.last[w.chatID]
		if err := r.queryChat(ctx, w.chatID, last, known, take); err != nil {
			return err
		}
	}
	r.poisoned.Store(int64(len(r.aside)))
	if err := r.publish(ctx, plans); err != nil {
		return err
	}
	r.taken.Store(0)
	return nil
}

// follow returns the plans that nudges of a chat brought, if they follow each other and
// what was published. Otherwise the outbox has to be asked for the chat.
func (r *Relay) follow(ctx context.Context, w *waiting) (plans []plan, ask bool) {
	if r.stopped[w.chatID] != nil || r.route.waits[w.chatID] {
		return nil, false // it waits for the sweep
	}
	last, known := r.last[w.chatID]
	for _, c := range w.commits {
		from := c.Head.Version - int64(len(c.Events)) + 1
		switch {
		case known && c.Head.Version <= last:
			continue // a query or the sweep was faster
		case !known || from != last+1:
			return nil, true
		}
		p, err := r.planOf(c.Outbox.Key, w.chatID, c.Events, nil)
		if err != nil {
			r.stop(ctx, c.Outbox.Key, w.chatID, err)
			return plans, false
		}
		plans = append(plans, p)
		last = p.last
	}
	return plans, w.ask
}

// planOf makes the plan of events that follow each other. payloads are the encoded events,
// or nil.
func (r *Relay) planOf(key store.Key, chatID string, events []event.Event, payloads [][]byte) (plan, error) {
	p := plan{key: key, chatID: chatID}
	for i, e := range events {
		md := e.GetMetadata()
		spec := event.SpecOf(e)
		if spec.Type == "" || chatID == "" {
			return p, fmt.Errorf("%w: event %s is not in the catalogue", errPoison, md.GetEventId())
		}
		var value []byte
		var err error
		if payloads != nil {
			value, err = r.cfg.Serde.Frame(spec.Type, payloads[i])
		} else {
			value, err = r.cfg.Serde.Encode(e)
		}
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
		p.size += len(value)
		p.last = md.GetVersion()
		if c, ok := e.(*eventv1.ChatCreated); ok {
			p.created = append(p.created, c)
		}
	}
	return p, nil
}

// maxTransaction bounds the values of one transaction, in bytes: they are all in memory.
const maxTransaction = 8 << 20

// publish publishes plans in transactions of at most MaxBatch records; a plan is
// never split, and the order of plans is kept. Plans of partitions that take nothing at
// present wait with the rest of their chats; the others go without them.
func (r *Relay) publish(ctx context.Context, plans []plan) error {
	plans = r.available(plans)
	for len(plans) > 0 {
		n, size, records := 0, 0, []*kafka.Record(nil)
		for n < len(plans) && (n == 0 || len(records)+len(plans[n].records) <= r.cfg.MaxBatch && size+plans[n].size <= maxTransaction) {
			records = append(records, plans[n].records...)
			size += plans[n].size
			n++
		}
		if slices.ContainsFunc(plans[:n], func(p plan) bool { return p.read }) {
			// What a query saw may not be on disk yet: a crash that took it away would
			// leave an event on Kafka that the store never had.
			if err := r.cfg.Store.Durable(ctx); err != nil {
				return fmt.Errorf("wait for the disk: %w", err)
			}
		}
		if err := r.attempt(records, func() error { return r.cfg.Publish(ctx, records) }); err != nil {
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

// failed counts and logs events that the log did not take. They are not lost: their rows
// are still there.
func (r *Relay) failed(records []*kafka.Record, why error) {
	if errors.Is(why, kafka.ErrFenced) { // another publishes them
		return
	}
	var types map[string]int
	if errors.As(why, new(countedError)) {
		types = typesOf(records)
	} else {
		types = r.countFailed(records)
	}
	r.cfg.Logger.Error("lifecycle_event_publish_failed", "events", types, "error", why)
}

// countFailed counts each of the records as failed, and returns their number by type.
func (r *Relay) countFailed(records []*kafka.Record) map[string]int {
	types := typesOf(records)
	for eventType, n := range types {
		for range n {
			if r.cfg.Failed != nil {
				r.cfg.Failed(eventType)
			}
		}
	}
	return types
}

// typesOf counts records by the type of their event.
func typesOf(records []*kafka.Record) map[string]int {
	types := map[string]int{}
	for _, rec := range records {
		for _, h := range rec.Headers {
			if h.Key == kafka.HeaderEventType {
				types[string(h.Value)]++
			}
		}
	}
	return types
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
			Set: []store.Attr{{Name: table.AttrLastError, Value: store.String(reason)}},
			Add: []store.Increment{{Name: table.AttrAttempts, N: 1}},
		},
	}}})
	if err != nil {
		r.cfg.Logger.Warn("relay: note the failure", "error", err)
	}
}
