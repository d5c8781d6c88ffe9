package consume

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
)

// Dead is a record that could not be processed.
type Dead struct {
	Record   *kafka.Record
	Group    string
	Consumer string
	Reason   string // class and message, without content
	At       time.Time
	Attempts int
}

// ID names a dead letter: two of one record and group are the same (K-146).
func (d Dead) ID() string {
	return fmt.Sprintf("%s/%s/%d/%d", d.Group, d.Record.Topic, d.Record.Partition, d.Record.Offset)
}

// Message returns the dead letter: the record byte for byte, and what is known of
// its failure (K-135…K-144).
func (d Dead) Message() *eventv1.DeadLetter {
	m := &eventv1.DeadLetter{
		DlqMetadata: &eventv1.DeadLetterMetadata{
			OriginalTopic:      d.Record.Topic,
			OriginalPartition:  d.Record.Partition,
			OriginalOffset:     d.Record.Offset,
			OriginalTimestamp:  timestamppb.New(d.Record.Timestamp),
			ConsumerGroup:      d.Group,
			ConsumerId:         d.Consumer,
			FailureReason:      d.Reason,
			FailureTimestamp:   timestamppb.New(d.At),
			ProcessingAttempts: int32(d.Attempts),
		},
		OriginalRecord: &eventv1.OriginalRecord{Key: d.Record.Key, Value: d.Record.Value},
	}
	for _, h := range d.Record.Headers {
		m.OriginalRecord.Headers = append(m.OriginalRecord.Headers, &eventv1.RecordHeader{Key: h.Key, Value: h.Value})
	}
	return m
}

// Publisher writes dead letters to their topic. frame puts a schema's id before an
// encoded dead letter.
func Publisher(c *kafka.Client, frame func(payload []byte) ([]byte, error)) func(context.Context, Dead) error {
	return func(ctx context.Context, d Dead) error {
		payload, err := proto.Marshal(d.Message())
		if err != nil {
			return err
		}
		value, err := frame(payload)
		if err != nil {
			return err
		}
		key := d.Record.Key
		if key == nil { // spread by position (K-147)
			key = []byte(d.ID())
		}
		return kafka.Publish(ctx, c, &kafka.Record{
			Topic: kafka.DeadLetters, Partition: int32(event.Partition(string(key), int(kafka.Partitions(kafka.DeadLetters)))),
			Key: d.Record.Key, Value: value,
			Headers: []kafka.Header{{Key: "dead_letter_id", Value: []byte(d.ID())}, {Key: "failure_reason", Value: []byte(d.Reason)}},
		})
	}
}

// bury writes a dead letter, and waits until it is written: only then may the
// record be committed (K-145).
func (e *Engine) bury(ctx context.Context, r *kafka.Record, attempts int, reason string) error {
	d := Dead{Record: r, Group: e.cfg.Group, Consumer: e.cfg.Consumer, Reason: reason, At: e.cfg.Clock(), Attempts: attempts}
	if err := e.cfg.Dead(ctx, d); err != nil {
		return Fail(Authoritative, "write the dead letter", err)
	}
	e.dead.Add(1)
	e.cfg.Logger.Error("consume: dead letter", "id", d.ID(), "reason", reason, "attempts", attempts)
	return nil
}
