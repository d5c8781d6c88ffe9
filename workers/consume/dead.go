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

// maxLetter is how large an encoded dead letter may be, in bytes: with what surrounds it,
// less than a producer's batch (1,000,012) and than what its topic takes (1,048,588).
const maxLetter = 960 << 10

// encode returns the dead letter, without what is too large for its topic: then it says
// how much is missing and where the record stands. Otherwise its partition would wait
// for ever for a letter that nobody can write (K-028, X-24).
func (d Dead) encode() ([]byte, error) {
	m := d.Message()
	if payload, err := proto.Marshal(m); err != nil || len(payload) <= maxLetter {
		return payload, err
	}
	old := m.OriginalRecord
	omitted := int64(len(old.Value))
	for _, h := range old.Headers {
		omitted += int64(len(h.Key) + len(h.Value))
	}
	old.Value, old.Headers = nil, nil
	if len(old.Key) > maxLetter/2 {
		omitted += int64(len(old.Key))
		old.Key = nil
	}
	old.OmittedBytes = &omitted
	return proto.Marshal(m)
}

// Publisher writes dead letters to their topic. frame puts a schema's id before an
// encoded dead letter.
func Publisher(c *kafka.Client, frame func(payload []byte) ([]byte, error)) func(context.Context, Dead) error {
	return func(ctx context.Context, d Dead) error {
		payload, err := d.encode()
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
		e.unwritten.Add(1)
		return Fail(Authoritative, "write the dead letter", err)
	}
	e.dead.Add(1)
	e.cfg.Logger.Error("consume: dead letter", "id", d.ID(), "reason", reason, "attempts", attempts)
	return nil
}
