// Package fanout repairs delivery: it reads committed events from Kafka and notifies the
// hubs.
//
// Mostly the live path has been faster. A hub that missed something finds out here, and
// reads it from the store. The package owns the handler only; reading and committing
// belong to package consume, streams to package delivery.
//
// Concurrency: handlers may be called from many goroutines.
package fanout

import (
	"context"
	"errors"
	"slices"

	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/workers/consume"
)

// Group is the consumer group.
const Group = kafka.FanoutGroup

// Handler passes events to deliver, without their content: a hub that misses them reads
// the store.
func Handler(serde *event.Serde, deliver func(delivery.Delivery)) consume.BatchHandler {
	return Repairer(serde, func(_ context.Context, d delivery.Delivery) error {
		deliver(d)
		return nil
	}, nil)
}

// ErrHead says that the store's head of a chat is missing, or older than an event of the
// chat, so that the store does not have what the event says.
var ErrHead = errors.New("fanout: the chat's head is missing or older than its event")

// Repairer is a Handler whose repair can fail: with an error of the store, after which the
// records wait and come again, since the members are unknown without the store; or with
// ErrHead. A head may only be late, so the record is tried three times. Then it becomes a
// dead letter, and its partition continues: one chat must not stop the others. All events
// of a chat that come together are repaired by one call.
//
// applied, if given, reports whether the one hub has applied a message, by its position.
// Such a record is finished without being decoded or validated, because every stream
// already has its content.
func Repairer(serde *event.Serde, repair func(context.Context, delivery.Delivery) error,
	applied func(delivery.Delivery) bool,
) consume.BatchHandler {
	return func(ctx context.Context, records []*kafka.Record) (int, error) {
		var events []event.Event
		var failed error
		finished := 0
		for _, r := range records {
			if applied == nil || !skips(serde, r, applied) {
				e, err := serde.Decode(ctx, r.Key, r.Value)
				if err != nil {
					failed = failure(err)
					break
				}
				events = append(events, e)
			}
			finished++
		}
		for _, d := range Merge(events) {
			switch err := repair(ctx, d); {
			case errors.Is(err, ErrHead):
				return 0, consume.Fail(consume.Unknown, "the chat's head is missing or older than its event", err)
			case err != nil:
				return 0, consume.Fail(consume.Authoritative, "the members cannot be read", err)
			}
		}
		return finished, failed
	}
}

// skips reports whether a record is a message that the hub has applied.
func skips(serde *event.Serde, r *kafka.Record, applied func(delivery.Delivery) bool) bool {
	p, ok := serde.MessagePosition(r.Key, r.Value)
	return ok && applied(delivery.Delivery{Generation: p.Generation, ChatID: string(r.Key), Version: p.Version,
		MembershipVersion: p.MembershipVersion})
}

// failure classifies an error of decoding. Newer processes handle the types of events that
// this one does not know: as dead letters they would flood the topic at every upgrade. A
// record that is no event will never be one.
func failure(err error) error {
	switch {
	case errors.Is(err, event.ErrForeign):
		return consume.Fail(consume.Ignored, err.Error(), err)
	case errors.Is(err, event.ErrSchema):
		return consume.Fail(consume.Permanent, err.Error(), err)
	}
	return consume.Fail(consume.Authoritative, "the schema registry does not answer", err)
}

// Merge returns what hubs must know of events of one chat, in any order: its newest head,
// and all users whose membership started or ended. Events of several generations of the
// store have several heads.
func Merge(events []event.Event) []delivery.Delivery {
	var out []delivery.Delivery
	for _, e := range events {
		d := delivery.Of([]event.Event{e})
		d.Events = nil
		i := slices.IndexFunc(out, func(o delivery.Delivery) bool { return o.Generation == d.Generation })
		if i < 0 {
			out = append(out, d)
			continue
		}
		o := &out[i]
		o.Version, o.MembershipVersion = max(o.Version, d.Version), max(o.MembershipVersion, d.MembershipVersion)
		for _, user := range d.Targets {
			if !slices.Contains(o.Targets, user) {
				o.Targets = append(o.Targets, user)
			}
		}
	}
	return out
}
