package commitlog

import (
	"math"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// The times of a message are the last fields of its encoding, after publish_time: deliver_time, before which it is
// not delivered, and then expire_time, at which it ends, with seconds only. Numbers take five bytes, so each field
// has a size and is found at the end of a message. A message without them is as it was before there were such
// times. A release without them passes the fields on and does not act on them.
const (
	expirySize   = 8
	deliverySize = 14
	secondsTag   = 1<<3 | protowire.VarintType
	nanosTag     = 2<<3 | protowire.VarintType
	maxSeconds   = math.MaxInt64/int64(time.Second) - 1 // in the year 2262; five bytes hold more
)

// timeHead is how a field of a time begins.
type timeHead = [3]byte

// How the fields begin.
var (
	expiryHead   = timeHead{fieldExpireTime<<3 | byte(protowire.BytesType), expirySize - 2, byte(secondsTag)}
	deliveryHead = timeHead{fieldDeliverTime<<3 | byte(protowire.BytesType), deliverySize - 2, byte(secondsTag)}
)

// timed says what times the messages of a batch may have. It is false for few batches that have none.
type timed struct{ expires, delays bool }

// Expiry is when a message ends that is stored at a time in unix ms: unix seconds, rounded up; 0 for never.
// A message that was stored elsewhere before says it itself.
func Expiry(m *Message, at int64) int64 {
	var ms int64
	switch {
	case m.GetExpireTime() != nil:
		ms = m.GetExpireTime().GetSeconds()*1000 + int64(m.GetExpireTime().GetNanos()+999_999)/1_000_000
	case m.GetTtl() != nil:
		ms = at + (m.GetTtl().AsDuration() + time.Millisecond - 1).Milliseconds()
	default:
		return 0
	}
	return max(1, min((ms+999)/1000, maxSeconds))
}

// Delivery is when a message may be delivered that is stored at a time in unix ms: in unix ms, rounded up; 0 for
// at once.
func Delivery(m *Message, at int64) int64 {
	var ms int64
	switch {
	case m.GetDeliverTime() != nil:
		seconds := min(m.GetDeliverTime().GetSeconds(), maxSeconds)
		ms = seconds*1000 + (int64(m.GetDeliverTime().GetNanos())+999_999)/1_000_000
	case m.GetDelay() != nil:
		ms = at + (m.GetDelay().AsDuration() + time.Millisecond - 1).Milliseconds()
	}
	if ms <= at {
		return 0
	}
	return ms
}

// appendTimes appends when a message may be delivered, in unix ms, and when it ends, in seconds, unless they are 0.
func appendTimes(b []byte, delivery, expiry int64) []byte {
	if delivery != 0 {
		b = appendFive(append(b, deliveryHead[:]...), delivery/1000)
		b = appendFive(append(b, byte(nanosTag)), delivery%1000*1_000_000)
	}
	if expiry != 0 {
		b = appendFive(append(b, expiryHead[:]...), expiry)
	}
	return b
}

// appendFive appends a number as a varint of five bytes.
func appendFive(b []byte, n int64) []byte {
	for range 4 {
		b = append(b, byte(n)|0x80)
		n >>= 7
	}
	return append(b, byte(n))
}

// appendAsked appends the message's id, and what the publisher says of its times, as they are hashed.
func appendAsked(b []byte, m *Message) []byte {
	b = appendText(b, fieldID, m.GetDeduplicationId())
	if m.GetTtl() != nil {
		b = appendNumber(b, fieldTTL, int64(m.GetTtl().AsDuration()))
	}
	if m.GetDelay() != nil {
		b = appendNumber(b, fieldDelay, int64(m.GetDelay().AsDuration()))
	}
	if m.GetDeliverTime() != nil {
		b = appendNumber(b, fieldDeliverTime, m.GetDeliverTime().AsTime().UnixNano())
	}
	return b
}

func appendNumber(b []byte, field protowire.Number, n int64) []byte {
	b = protowire.AppendTag(b, field, protowire.BytesType)
	return protowire.AppendBytes(b, protowire.AppendVarint(nil, uint64(n)))
}

// timesOf finds which times the messages of a body may have.
func timesOf(body []byte, ends []uint32) (t timed) {
	for _, end := range ends {
		m := body[:end]
		t.expires = t.expires || mayHave(m, expirySize, expiryHead)
		t.delays = t.delays || mayDelay(m)
	}
	return t
}

// mayHave reports whether an encoded message has a field so many bytes before its end. Others may by chance.
func mayHave(message []byte, before int, head timeHead) bool {
	at := len(message) - before
	return at >= 0 && timeHead(message[at:]) == head
}

// mayDelay reports whether an encoded message may have a time of delivery.
func mayDelay(message []byte) bool {
	return mayHave(message, deliverySize, deliveryHead) || mayHave(message, deliverySize+expirySize, deliveryHead)
}

// Expires reports whether the batch has messages that end at a time. It is true for few other batches.
func (b *Batch) Expires() bool { return b.timed.expires }

// Delays reports whether the batch has messages that wait for a time. It is true for few other batches.
func (b *Batch) Delays() bool { return b.timed.delays }

// Expiry is when the ith message ends, in unix ns; 0 for never.
func (b *Batch) Expiry(i int) (at int64) {
	if !b.timed.expires || !mayHave(b.body[b.begin(i):b.ends[i]], expirySize, expiryHead) {
		return 0
	}
	fields(b.content(i), func(field protowire.Number, value []byte) bool {
		if field == fieldExpireTime && len(value) == expirySize-2 {
			seconds, _ := protowire.ConsumeVarint(value[1:])
			at = int64(seconds) * int64(time.Second)
		}
		return true
	})
	return at
}

// Since is when the message at a position could be delivered first; of one that does not exist, when the batch was
// stored.
func (b *Batch) Since(position int64) time.Time {
	at := time.UnixMilli(b.Time)
	if i := position - b.Base; i >= 0 && i < int64(b.Count()) && b.Delays() {
		if due := time.Unix(0, b.Delivery(int(i))); due.After(at) {
			return due
		}
	}
	return at
}

// Delivery is before when the ith message is not delivered, in unix ns; 0 for at once.
func (b *Batch) Delivery(i int) (at int64) {
	if !b.timed.delays || !mayDelay(b.body[b.begin(i):b.ends[i]]) {
		return 0
	}
	fields(b.content(i), func(field protowire.Number, value []byte) bool {
		if field == fieldDeliverTime && len(value) == deliverySize-2 {
			seconds, n := protowire.ConsumeVarint(value[1:])
			nanos, _ := protowire.ConsumeVarint(value[2+max(n, 0):])
			at = int64(seconds)*int64(time.Second) + int64(nanos)
		}
		return true
	})
	return at
}
