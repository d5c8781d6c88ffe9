// Package fanout repairs delivery: it reads what was committed from Kafka and tells
// the hubs of it.
//
// The live path has mostly been faster; what it lost, the hubs find out here, and
// read it from the store. The package owns the handler only; reading and
// committing belong to package consume, streams to package delivery.
package fanout

import (
	"context"
	"errors"

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

// Handler tells deliver of each event, without its content: where a hub misses it,
// it reads the store.
func Handler(serde *event.Serde, deliver func(delivery.Delivery)) consume.Handler {
	return Repairer(serde, func(_ context.Context, d delivery.Delivery) error {
		deliver(d)
		return nil
	})
}

// Repairer is Handler where telling others can fail: with an error of the store, after
// which the record waits and comes again (K-124).
func Repairer(serde *event.Serde, repair func(context.Context, delivery.Delivery) error) consume.Handler {
	return func(ctx context.Context, r *kafka.Record) error {
		e, err := serde.Decode(ctx, r.Key, r.Value)
		switch {
		case errors.Is(err, event.ErrSchema):
			return consume.Fail(consume.Permanent, err.Error(), err)
		case err != nil:
			return consume.Fail(consume.Authoritative, "the schema registry cannot be asked", err)
		}
		d := delivery.Of([]event.Event{e})
		d.Events = nil
		if err := repair(ctx, d); err != nil {
			return consume.Fail(consume.Authoritative, "the members cannot be read", err)
		}
		return nil
	}
}
