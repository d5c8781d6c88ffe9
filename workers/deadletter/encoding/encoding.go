// Package encoding encodes dead letters for Kafka: a dead letter is a record that a consumer group
// could not process, byte for byte, with the reason.
//
// It owns the encoding, the id and the size limit of dead letters. It does not own the
// writing of dead letters (package consume) or what operators do with them (package
// deadletter).
//
// Concurrency: all functions may be called from many goroutines.
package encoding

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/kafka"
)

// DeadLetter is a record that could not be processed, and the failure.
type DeadLetter struct {
	Record   *kafka.Record // topic, partition, offset, time, key, value and headers
	Group    string        // consumer group that failed
	Consumer string        // process of the group
	// Class is unspecified only in dead letters that were written without a class.
	Class    eventv1.FailureClass
	Reason   string // class and message, without content of the record
	FailedAt time.Time
	Attempts int
	// Omitted is how many bytes of the record the dead letter has no room for; 0: none. The
	// record may still be whole at its own position.
	Omitted int64
}

// ID identifies a dead letter: two dead letters of one record and group are the same dead
// letter.
func (l DeadLetter) ID() string {
	return fmt.Sprintf("%s/%s/%d/%d", l.Group, l.Record.Topic, l.Record.Partition, l.Record.Offset)
}

// Class returns the class with a name in small letters, as reasons start with it; any
// other word is unspecified.
func Class(name string) eventv1.FailureClass {
	return eventv1.FailureClass(eventv1.FailureClass_value["FAILURE_CLASS_"+strings.ToUpper(name)])
}

// maxSize is the largest encoded dead letter, in bytes: with its frame and key it fits into a
// producer's batch (1,000,012 bytes) and into its topic (1,048,588 bytes).
const maxSize = 960 << 10

// Encode returns the encoded dead letter. A record that is too large for a dead letter is
// left out: the dead letter then says how many bytes are missing and where the record is.
// Without that rule the record's partition would wait forever for a dead letter that cannot
// be written.
func (l DeadLetter) Encode() ([]byte, error) {
	m := l.message()
	if payload, err := proto.Marshal(m); err != nil || len(payload) <= maxSize {
		return payload, err
	}
	record := m.OriginalRecord
	omitted := int64(len(record.Value))
	for _, h := range record.Headers {
		omitted += int64(len(h.Key) + len(h.Value))
	}
	record.Value, record.Headers = nil, nil
	if len(record.Key) > maxSize/2 {
		omitted += int64(len(record.Key))
		record.Key = nil
	}
	record.OmittedBytes = &omitted
	return proto.Marshal(m)
}

func (l DeadLetter) message() *eventv1.DeadLetter {
	id := l.ID()
	m := &eventv1.DeadLetter{
		DlqMetadata: &eventv1.DeadLetterMetadata{
			OriginalTopic:      l.Record.Topic,
			OriginalPartition:  l.Record.Partition,
			OriginalOffset:     l.Record.Offset,
			OriginalTimestamp:  timestamppb.New(l.Record.Timestamp),
			ConsumerGroup:      l.Group,
			ConsumerId:         l.Consumer,
			FailureReason:      l.Reason,
			FailureTimestamp:   timestamppb.New(l.FailedAt),
			ProcessingAttempts: int32(l.Attempts),
			DeadLetterId:       &id,
		},
		OriginalRecord: &eventv1.OriginalRecord{Key: l.Record.Key, Value: l.Record.Value},
	}
	if l.Class != eventv1.FailureClass_FAILURE_CLASS_UNSPECIFIED {
		m.DlqMetadata.FailureClass = &l.Class
	}
	for _, h := range l.Record.Headers {
		m.OriginalRecord.Headers = append(m.OriginalRecord.Headers, &eventv1.RecordHeader{Key: h.Key, Value: h.Value})
	}
	return m
}

// Decode reads an encoded dead letter. The id always follows from the record's position, and
// the class of an older dead letter, which has no field for it, from its reason.
func Decode(payload []byte) (DeadLetter, error) {
	var m eventv1.DeadLetter
	if err := proto.Unmarshal(payload, &m); err != nil {
		return DeadLetter{}, fmt.Errorf("dead letter: decode: %w", err)
	}
	md, record := m.GetDlqMetadata(), m.GetOriginalRecord()
	if md == nil || record == nil || md.GetConsumerGroup() == "" || md.GetOriginalTopic() == "" ||
		md.GetOriginalOffset() < 0 {
		return DeadLetter{}, errors.New("dead letter: incomplete")
	}
	l := DeadLetter{
		Record: &kafka.Record{
			Topic: md.GetOriginalTopic(), Partition: md.GetOriginalPartition(), Offset: md.GetOriginalOffset(),
			Timestamp: md.GetOriginalTimestamp().AsTime(), Key: record.Key, Value: record.Value,
		},
		Group: md.GetConsumerGroup(), Consumer: md.GetConsumerId(), Class: md.GetFailureClass(),
		Reason:   md.GetFailureReason(),
		FailedAt: md.GetFailureTimestamp().AsTime(), Attempts: int(md.GetProcessingAttempts()),
		Omitted: record.GetOmittedBytes(),
	}
	if md.FailureClass == nil {
		word, _, _ := strings.Cut(l.Reason, ":")
		l.Class = Class(word)
	}
	for _, h := range record.GetHeaders() {
		l.Record.Headers = append(l.Record.Headers, kafka.Header{Key: h.GetKey(), Value: h.Value})
	}
	return l, nil
}
