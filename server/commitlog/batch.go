package commitlog

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/parley-chat/parley/server/commitlog/record"
)

// Form says what a batch holds.
type Form uint8

// The forms of batches. Each topic of the event log may have both records and references.
const (
	Messages   Form = iota // of a durable topic
	Records                // of Kafka
	References             // to events of chats
	forms
)

// Batch holds messages, records or references of consecutive positions that were stored
// together. It never changes.
//
// Messages are encoded one behind the other, each as field 3 of
// parley.topic.v1.Delivery: a part of the body is a part of a delivery.
type Batch struct {
	Form Form
	Base int64 // position of the first message
	// Time is when it was stored, or of the event log the time of its latest record, in unix ms;
	// never before that of an earlier batch.
	Time     int64
	Producer Producer
	// Gap is how many positions right before Base are known not to exist.
	Gap int64

	timed timed // what times its messages may have

	before int64 // bytes of the batches before it; 0 if it does not say

	body []byte
	ends []uint32           // of the messages, records or references in body
	refs *record.References // if these are its form
}

// messageTag begins each message of a body: field 3, length-delimited.
const messageTag = 3<<3 | 2

var (
	errBody = errors.New("not a sequence of messages")
	errText = errors.New("text is not UTF-8")
)

// NewBatch encodes messages; at is the time that they get, in ms.
func NewBatch(base int64, at time.Time, messages []*Message) (*Batch, error) {
	body, ends, err := appendBody(nil, messages, at.UnixMilli())
	if err != nil {
		return nil, err
	}
	return &Batch{Base: base, Time: at.UnixMilli(), body: body, ends: ends, timed: timesOf(body, ends)}, nil
}

// split finds the ends of the messages in a body.
func split(body []byte, count int) ([]uint32, error) {
	ends := make([]uint32, 0, min(count, len(body)/2))
	for at := 0; at < len(body); {
		if body[at] != messageTag || len(ends) == count {
			return nil, errBody
		}
		length, n := protowire.ConsumeVarint(body[at+1:])
		if n < 0 || length > uint64(len(body)-at-1-n) {
			return nil, errBody
		}
		at += 1 + n + int(length)
		ends = append(ends, uint32(at))
	}
	if len(ends) != count {
		return nil, errBody
	}
	return ends, nil
}

// Record is the ith record of a batch of records. Its contents are shared and must not be
// changed.
func (b *Batch) Record(i int) record.Record {
	r, _, _ := record.Parse(b.Bytes(i, i+1)) // it was parsed before
	return r
}

// References are those of a batch of references. They are shared and must not be changed.
func (b *Batch) References() record.References { return *b.refs }

// Count is the number of messages, records or references, at least 1.
func (b *Batch) Count() int { return len(b.ends) }

// End is the position behind the last message.
func (b *Batch) End() int64 { return b.Base + int64(len(b.ends)) }

func (b *Batch) begin(i int) uint32 {
	if i == 0 {
		return 0
	}
	return b.ends[i-1]
}

// Bytes are the encoded messages or records from the ith to the one before the jth, i < j.
// They are shared and must not be changed.
func (b *Batch) Bytes(i, j int) []byte {
	end := b.ends[j-1]
	return b.body[b.begin(i):end:end]
}

// Size is the number of bytes of Bytes; of references, which are smaller than what they
// stand for, it is that of their encoding.
func (b *Batch) Size(i, j int) int { return int(b.ends[j-1] - b.begin(i)) }

// content is the ith message without tag and length.
func (b *Batch) content(i int) []byte {
	m := b.Bytes(i, i+1)[1:]
	_, n := protowire.ConsumeVarint(m)
	return m[n:]
}

// Message decodes the ith message.
func (b *Batch) Message(i int) (*Message, error) {
	m := &Message{}
	if err := proto.Unmarshal(b.content(i), m); err != nil {
		return nil, fmt.Errorf("commitlog: message %d: %w", b.Base+int64(i), err)
	}
	return m, nil
}

// Fields of a message.
const (
	fieldKey           = 1
	fieldType          = 2
	fieldCorrelationID = 3
	fieldHeaders       = 4
	fieldPayload       = 5
	fieldPublishTime   = 6
	fieldTTL           = 7 // of what is published only
	fieldExpireTime    = 8
	fieldDelay         = 9 // of what is published only
	fieldDeliverTime   = 10
	fieldID            = 11 // behind the payload: it is looked for rarely
)

// Key is the key of the ith message.
func (b *Batch) Key(i int) string { return text(b.content(i), fieldKey) }

// Type is the type of the ith message.
func (b *Batch) Type(i int) string { return text(b.content(i), fieldType) }

// ID is the deduplication_id of the ith message.
func (b *Batch) ID(i int) string { return text(b.content(i), fieldID) }

// Header is a header of the ith message.
func (b *Batch) Header(i int, name string) (value string, ok bool) {
	fields(b.content(i), func(field protowire.Number, entry []byte) bool {
		if field > fieldHeaders {
			return false
		}
		if field == fieldHeaders && text(entry, 1) == name {
			value, ok = text(entry, 2), true
		}
		return !ok
	})
	return value, ok
}

// text is a field of an encoded message whose fields are in order, once each.
func text(message []byte, want protowire.Number) (s string) {
	fields(message, func(field protowire.Number, value []byte) bool {
		if field == want {
			s = string(value)
		}
		return field < want
	})
	return s
}

// fields calls f with the length-delimited fields of a message, in order, until f returns
// false.
func fields(message []byte, f func(field protowire.Number, value []byte) bool) {
	for len(message) > 0 {
		field, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return
		}
		message = message[n:]
		if kind != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(field, kind, message); n < 0 {
				return
			}
			message = message[n:]
			continue
		}
		value, n := protowire.ConsumeBytes(message)
		if n < 0 || !f(field, value) {
			return
		}
		message = message[n:]
	}
}
