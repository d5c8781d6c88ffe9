package consume

import (
	"context"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/workers/deadletter/encoding"
)

// DeadLetter is a record that could not be processed.
type DeadLetter = encoding.DeadLetter

// Publisher writes dead letters to their topic in Kafka, see Writer.
func Publisher(c *kafka.Client, frame func(payload []byte) ([]byte, error)) func(context.Context, DeadLetter) error {
	return Writer(func(ctx context.Context, r *kafka.Record) error { return kafka.Publish(ctx, c, r) }, frame)
}

// Writer writes dead letters to their topic by publish, which returns once the record is durable.
// frame puts a schema's id before an encoded dead letter.
func Writer(
	publish func(context.Context, *kafka.Record) error, frame func(payload []byte) ([]byte, error),
) func(context.Context, DeadLetter) error {
	return func(ctx context.Context, d DeadLetter) error {
		payload, err := d.Encode()
		if err != nil {
			return err
		}
		value, err := frame(payload)
		if err != nil {
			return err
		}
		key := d.Record.Key
		if key == nil { // dead letters without a key are spread by their position
			key = []byte(d.ID())
		}
		return publish(ctx, &kafka.Record{
			Topic: kafka.DeadLetters, Partition: int32(event.Partition(string(key), int(kafka.Partitions(kafka.DeadLetters)))),
			Key: d.Record.Key, Value: value,
			Headers: []kafka.Header{{Key: "dead_letter_id", Value: []byte(d.ID())},
				{Key: "failure_reason", Value: []byte(d.Reason)}},
		})
	}
}

// deadLetter writes the dead letter of a record, and waits until it is written. The record
// must not be committed before, or a crash in between would lose it.
func (e *Engine) deadLetter(ctx context.Context, r *kafka.Record, attempts int, failure error) error {
	d := DeadLetter{
		Record: r, Group: e.cfg.Group, Consumer: e.cfg.Consumer, Class: encoding.Class(ClassOf(failure).String()),
		Reason:   Reason(failure),
		FailedAt: e.cfg.Clock(), Attempts: attempts,
	}
	if err := e.cfg.WriteDeadLetter(ctx, d); err != nil {
		e.unwritten.Add(1)
		return Fail(Authoritative, "write the dead letter", err)
	}
	e.deadLettered.Add(1)
	e.cfg.Logger.Error("consume: dead letter", "id", d.ID(), "reason", d.Reason, "attempts", attempts)
	return nil
}
