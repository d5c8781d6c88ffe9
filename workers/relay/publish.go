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
	"github.com/parley-chat/parley/server/eventlog"
	"github.com/parley-chat/parley/server/infra/bounded"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// ErrPoison is the error of a row that cannot be published, now or later. The row blocks its
// chat, and no other.
var ErrPoison = errors.New("relay: row cannot be published")

// plan is one outbox row with its records.
type plan struct {
	key     store.Key
	chatID  string
	last    int64 // version
	replay  bool  // the events were published before
	stored  bool  // read from the store; the events of nudges are durable already
	frozen  bool  // a topic of its events is frozen
	copied  bool  // its events may not be what their rows have
	records []*kafka.Record
	index   []int                  // of each record in its row; nil for events of chats
	since   int64                  // unix ms: when the row was written; 0 for events of chats
	size    int                    // of the records' values, in bytes
	created []*eventv1.ChatCreated // of these events
}

// publishNudges publishes the events of nudges.
func (r *Relay) publishNudges(ctx context.Context, list []*nudges) error {
	if r.inFlightSince.Load() == 0 { // otherwise older nudges wait since a failure
		r.inFlightSince.Store(list[0].since.UnixMilli())
	}
	r.beginPass()
	var plans []plan
	emit := r.batcher(ctx, &plans)
	for _, w := range list {
		more, query := r.plansOf(ctx, w)
		if !query {
			plans = append(plans, more...)
			continue
		}
		if err := r.queryAggregate(ctx, w.chatID, emit); err != nil {
			return err
		}
	}
	r.poisoned.Store(int64(len(r.quarantined)))
	if err := r.publish(ctx, plans); err != nil {
		return err
	}
	r.inFlightSince.Store(0)
	return nil
}

// plansOf returns the plans of a chat's nudges if they are consecutive and follow the last
// published version. Otherwise the outbox must be queried for the chat.
func (r *Relay) plansOf(ctx context.Context, w *nudges) (plans []plan, query bool) {
	if r.blocked[w.chatID] != nil || r.route.frozenChats[w.chatID] {
		return nil, false // it waits for the sweep
	}
	last, cached := r.lastPublished[w.chatID]
	for _, c := range w.commits {
		from := c.Head.Version - int64(len(c.Events)) + 1
		switch {
		case cached && c.Head.Version <= last:
			continue // a query or the sweep has published it
		case !cached || from != last+1:
			return nil, true
		}
		p, err := r.planOf(c.Outbox.Key, w.chatID, from, c.Events, c.Payloads)
		if err != nil {
			r.block(ctx, c.Outbox.Key, w.chatID, err)
			return plans, false
		}
		plans = append(plans, p)
		last = p.last
	}
	return plans, w.queryOutbox
}

// planOf makes the plan of consecutive events, whose rows begin with a version. payloads are the
// encoded events as the store has them, one for each, which are published byte for byte; without
// them, as in nudges of another process, events are encoded again, perhaps to other bytes.
func (r *Relay) planOf(
	key store.Key, chatID string, first int64, events []event.Event, payloads [][]byte,
) (plan, error) {
	p := plan{key: key, chatID: chatID, copied: len(payloads) != len(events)}
	for i, e := range events {
		md := e.GetMetadata()
		spec := event.SpecOf(e)
		if spec.Type == "" || chatID == "" {
			return p, fmt.Errorf("%w: event %s is not in the catalogue", ErrPoison, md.GetEventId())
		}
		var value []byte
		var err error
		if len(payloads) == len(events) {
			value, err = r.cfg.Serde.Frame(spec.Type, payloads[i])
		} else {
			value, err = r.cfg.Serde.Encode(e)
		}
		if err != nil {
			return p, fmt.Errorf("%w: %w", ErrPoison, err)
		}
		if len(value) > kafka.MaxEvent {
			return p, fmt.Errorf("%w: event %s has %d bytes", ErrPoison, md.GetEventId(), len(value))
		}
		to := r.route.state.PartitionOf(spec.Topic, chatID)
		p.frozen = p.frozen || r.route.state.Frozen(spec.Topic)
		p.records = append(p.records, &kafka.Record{
			Topic:     to.Topic,
			Partition: to.ID,
			Key:       []byte(chatID),
			Value:     value,
			Headers: []kafka.Header{
				{Key: kafka.HeaderEventID, Value: []byte(md.GetEventId())},
				{Key: kafka.HeaderEventType, Value: []byte(spec.Type)},
				{Key: kafka.HeaderGeneration, Value: []byte(md.GetGeneration())},
				{Key: kafka.HeaderPublished, Value: []byte(r.cfg.Generation)},
			},
		})
		p.size += len(value)
		p.last = md.GetVersion()
		p.copied = p.copied || p.last != first+int64(i)
		if c, ok := e.(*eventv1.ChatCreated); ok {
			p.created = append(p.created, c)
		}
	}
	return p, nil
}

// maxTransaction bounds the values of one transaction, in bytes: they are all in memory.
const maxTransaction = 8 << 20

// publish publishes plans in transactions of at most MaxBatch records. It never splits a
// plan and keeps the order of plans. Plans for partitions that are left out wait, with all
// later plans of their chats.
func (r *Relay) publish(ctx context.Context, plans []plan) error {
	plans = r.publishable(plans)
	for len(plans) > 0 {
		n, count, size := 0, 0, 0
		for n < len(plans) && (n == 0 || count+len(plans[n].records) <= r.cfg.MaxBatch &&
			size+plans[n].size <= maxTransaction) {
			count += len(plans[n].records)
			size += plans[n].size
			n++
		}
		list := r.publications(plans[:n])
		records := Records(list)
		if slices.ContainsFunc(plans[:n], func(p plan) bool { return p.stored }) {
			// Rows that a query returns may not be durable yet. After a crash Kafka would
			// have an event that the store does not have.
			if err := r.cfg.Store.Durable(ctx); err != nil {
				return fmt.Errorf("wait for the disk: %w", err)
			}
		}
		if err := r.attempt(records, func() error { return r.cfg.Publish(ctx, list) }); err != nil {
			r.recordFailure(records, err)
			if r.recordOutages(err) {
				before := countRecords(plans)
				if plans = r.publishable(plans); countRecords(plans) < before {
					continue
				}
			}
			for _, p := range plans { // the outcome is unknown: the outbox must be queried
				delete(r.lastPublished, p.chatID)
			}
			return err
		}
		r.published.Add(int64(len(records)))
		r.clearOutages(records)
		for _, p := range plans[:n] {
			r.recordPublished(p)
		}
		r.recordProgress()
		plans = plans[n:]
	}
	return nil
}

// countRecords counts the records of plans.
func countRecords(plans []plan) (n int) {
	for _, p := range plans {
		n += len(p.records)
	}
	return n
}

// publications are what is published of plans. While records of a row are left, the row stays.
func (r *Relay) publications(plans []plan) []eventlog.Publication {
	list := make([]eventlog.Publication, len(plans))
	for i, p := range plans {
		list[i].Records = p.records
		if r.completes(p) {
			list[i].Row = p.key
		}
		if r.cfg.Load == nil && !p.copied {
			list[i].Chat, list[i].Last = p.chatID, p.last
		}
	}
	return list
}

// Flatten returns a function for Config.Publish that publishes the records of all publications
// in one call, in their order.
func Flatten(
	publish func(ctx context.Context, records []*kafka.Record) error,
) func(context.Context, []eventlog.Publication) error {
	return func(ctx context.Context, list []eventlog.Publication) error {
		return publish(ctx, Records(list))
	}
}

// Records are the records of publications, in their order.
func Records(list []eventlog.Publication) (records []*kafka.Record) {
	for _, p := range list {
		records = append(records, p.Records...)
	}
	return records
}

// recordPublished records that a plan is published.
func (r *Relay) recordPublished(p plan) {
	if !p.replay {
		bounded.Put(r.lastPublished, p.chatID, p.last, maxChats)
		r.reportCreated(p.created)
	}
	if r.recordRest(p) && !r.cfg.Deletes && !r.isPending[p.key] {
		r.isPending[p.key] = true
		r.pendingDelete = append(r.pendingDelete, p.key)
	}
}

// reportCreated reports the chats whose creation was published.
func (r *Relay) reportCreated(created []*eventv1.ChatCreated) {
	if r.cfg.Created == nil {
		return
	}
	for _, c := range created {
		// The time may come from the clock of another machine.
		r.cfg.Created(c, max(0, r.cfg.Clock().Sub(c.GetMetadata().GetEventTime().AsTime())))
	}
}

// recordFailure counts and logs events that were not published. They are not lost: their
// rows remain in the outbox.
func (r *Relay) recordFailure(records []*kafka.Record, why error) {
	if errors.Is(why, kafka.ErrFenced) { // another relay publishes them
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

// block quarantines a row and blocks its chat: no later event may be published before.
func (r *Relay) block(ctx context.Context, key store.Key, chatID string, why error) {
	r.blocked[chatID] = why
	r.quarantine(ctx, key, chatID, why)
}

// logEvery is how often the same row is logged again.
const logEvery = time.Minute

// maxReason bounds the text of an error on a row, in bytes.
const maxReason = 500

// quarantine records that a row cannot be published, on the row and in the log. The row
// remains until an operator repairs or drops it.
func (r *Relay) quarantine(ctx context.Context, key store.Key, chatID string, why error) {
	r.quarantined[key] = true
	now := r.cfg.Clock()
	if at, ok := r.logged[key]; ok && now.Sub(at) < logEvery {
		return
	}
	bounded.Put(r.logged, key, now, maxChats)
	r.cfg.Logger.Error("relay: an outbox row is quarantined; its chat waits for it", "chat_id", chatID, "shard", key.PK,
		"row", key.SK, "error", why)
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
		r.cfg.Logger.Warn("relay: cannot record the failure on the row", "error", err)
	}
}
