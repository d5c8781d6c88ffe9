// Package fanout repairs delivery: it reads what was committed from Kafka and tells
// the hubs of it.
//
// The live path has mostly been faster; what it lost, the hubs find out here, and
// read it from the store. The package owns the handler only; reading and
// committing belong to package consume, streams to package delivery.
//
// Concurrency: handlers may be called by many goroutines.
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

// Group is the consumer group (K-091).
const Group = "fanout-workers"

// Topics are the topics that concern deliveries.
func Topics() []string {
	return []string{kafka.MessagesPersisted, kafka.MembershipsChanged, kafka.ChatsCreated}
}

// Handler tells deliver of events, without their content: where a hub misses them,
// it reads the store.
func Handler(serde *event.Serde, deliver func(delivery.Delivery)) consume.BatchHandler {
	return Repairer(serde, func(_ context.Context, d delivery.Delivery) error {
		deliver(d)
		return nil
	})
}

// ErrHead says that the store's head of a chat is not there, or older than an event of
// the chat: what the event tells of cannot be found out from the store.
var ErrHead = errors.New("fanout: the chat's head is missing or older than its event")

// Repairer is Handler where telling others can fail: with an error of the store, after
// which the records wait and come again (K-124), or with ErrHead. A head may only be
// late, so that the record is tried three times; then it is a dead letter, and its
// partition goes on: one chat must not stop the others. Of all events of a chat that it
// gets together it tells once.
func Repairer(serde *event.Serde, repair func(context.Context, delivery.Delivery) error) consume.BatchHandler {
	return func(ctx context.Context, records []*kafka.Record) (int, error) {
		var events []event.Event
		var failed error
		for _, r := range records {
			e, err := serde.Decode(ctx, r.Key, r.Value)
			if err == nil {
				events = append(events, e)
				continue
			}
			failed = failure(err)
			break
		}
		for _, d := range Merge(events) {
			switch err := repair(ctx, d); {
			case errors.Is(err, ErrHead):
				return 0, consume.Fail(consume.Unknown, "the chat's head is missing or older than its event", err)
			case err != nil:
				return 0, consume.Fail(consume.Authoritative, "the members cannot be read", err)
			}
		}
		return len(events), failed
	}
}

// failure is what an error of decoding means: a newer type of event is told of by those
// who know it, what is no event will never be one.
func failure(err error) error {
	switch {
	case errors.Is(err, event.ErrForeign):
		return consume.Fail(consume.Ignored, err.Error(), err)
	case errors.Is(err, event.ErrSchema):
		return consume.Fail(consume.Permanent, err.Error(), err)
	}
	return consume.Fail(consume.Authoritative, "the schema registry cannot be asked", err)
}

// Merge returns what hubs have to hear of events of one chat, in any order: its newest
// head, and everybody whose membership began or ended. Events of several generations
// of the store tell of several heads.
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
