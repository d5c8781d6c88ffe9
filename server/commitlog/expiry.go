package commitlog

import (
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// The time at which a message ends is the last field of its encoding, after publish_time: expire_time with
// seconds only, which take five bytes. So it costs expirySize bytes and is found at the end of a message,
// and a message without one is as it was before there were such times. A release without them passes the
// field on and does not act on it.
const (
	expirySize = 8
	secondsTag = 1<<3 | protowire.VarintType
	maxSeconds = 1<<35 - 1 // that five bytes hold
)

// expiryHead begins the field.
var expiryHead = [...]byte{fieldExpireTime<<3 | byte(protowire.BytesType), expirySize - 2, byte(secondsTag)}

// Expiry is when a message ends that is stored at a time in unix ms: unix seconds, rounded up; 0 for never.
// A message that was stored elsewhere before says it itself.
func Expiry(m *Message, at int64) int64 {
	var ms int64
	switch {
	case m.GetExpireTime() != nil:
		ms = m.GetExpireTime().GetSeconds()*1000 + int64(m.GetExpireTime().GetNanos()+999_999)/1_000_000
	case m.GetTtl() != nil:
		ms = at + m.GetTtl().AsDuration().Milliseconds()
	default:
		return 0
	}
	return max(1, min((ms+999)/1000, maxSeconds))
}

// appendExpiry appends when a message ends.
func appendExpiry(b []byte, seconds int64) []byte {
	if seconds == 0 {
		return b
	}
	b = append(b, expiryHead[:]...)
	for range 4 {
		b = append(b, byte(seconds)|0x80)
		seconds >>= 7
	}
	return append(b, byte(seconds))
}

// appendTTL appends the field ttl, as it is hashed.
func appendTTL(b []byte, m *Message) []byte {
	if m.GetTtl() == nil {
		return b
	}
	b = protowire.AppendTag(b, fieldTTL, protowire.BytesType)
	return protowire.AppendBytes(b, protowire.AppendVarint(nil, uint64(m.GetTtl().AsDuration())))
}

// expires reports whether some message of a body may end.
func expires(body []byte, ends []uint32) bool {
	for _, end := range ends {
		if mayEnd(body[:end]) {
			return true
		}
	}
	return false
}

// mayEnd reports whether an encoded message ends like one that ends at a time. Others may by chance.
func mayEnd(message []byte) bool {
	at := len(message) - expirySize
	return at >= 0 && [len(expiryHead)]byte(message[at:]) == expiryHead
}

// Expires reports whether the batch has messages that end at a time. It is true for few other batches.
func (b *Batch) Expires() bool { return b.expires }

// Expiry is when the ith message ends, in unix ns; 0 for never.
func (b *Batch) Expiry(i int) (at int64) {
	if !b.expires || !mayEnd(b.body[b.begin(i):b.ends[i]]) {
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
