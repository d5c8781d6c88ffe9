package commitlog

import (
	"bytes"
	"encoding/hex"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/parley-chat/parley/server/commitlog/producers"
)

// A message without a time to live is stored as it always was; one with it takes eight bytes more, wherever it
// stands in its batch. What ends like one and has none never is over.
func TestExpiry(t *testing.T) {
	at := time.UnixMilli(1_800_000_000_123)
	plain, err := NewBatch(0, at, []*Message{{Key: "k", Payload: []byte("one")}})
	if err != nil {
		t.Fatal(err)
	}
	if got := hex.EncodeToString(plain.body); got != goldenBody || plain.Expires() {
		t.Errorf("%s, expires %v", got, plain.Expires())
	}
	forged := &Message{Payload: append(bytes.Clone(expiryHead[:]), 0x80, 0x80, 0x80, 0x80, 0x01)}
	for name, c := range map[string]struct {
		m    *Message
		want int64 // seconds
	}{
		"without":           {&Message{Key: "k"}, 0},
		"rounded up":        {&Message{Ttl: durationpb.New(time.Second)}, 1_800_000_002},
		"whole seconds":     {&Message{Ttl: durationpb.New(877 * time.Millisecond)}, 1_800_000_001},
		"a nanosecond":      {&Message{Ttl: durationpb.New(877*time.Millisecond + 1)}, 1_800_000_002},
		"a year":            {&Message{Ttl: durationpb.New(365 * 24 * time.Hour)}, 1_800_000_001 + 365*86400},
		"said by itself":    {&Message{ExpireTime: &timestamppb.Timestamp{Seconds: 1_900_000_000, Nanos: 1}}, 1_900_000_001},
		"in the far future": {&Message{ExpireTime: &timestamppb.Timestamp{Seconds: 1 << 50}}, maxSeconds},
		"long ago":          {&Message{ExpireTime: &timestamppb.Timestamp{Seconds: -5}}, 1},
	} {
		b, err := NewBatch(7, at, []*Message{{Type: "before"}, c.m, {Payload: []byte("after")}})
		if err != nil {
			t.Fatal(err)
		}
		if b.Expires() != (c.want != 0) || b.Expiry(0) != 0 || b.Expiry(2) != 0 ||
			b.Expiry(1) != c.want*int64(time.Second) || b.Expiry(1) < 0 {
			t.Errorf("%s: ends at %d, %d, %d", name, b.Expiry(0), b.Expiry(1), b.Expiry(2))
		}
		m, err := b.Message(1)
		if err != nil || m.GetTtl() != nil || m.GetExpireTime().GetSeconds() != c.want || m.GetExpireTime().GetNanos() != 0 {
			t.Errorf("%s: %v, %v", name, m, err)
		}
		none := &Message{Key: c.m.GetKey()}
		other, err := NewBatch(7, at, []*Message{{Type: "before"}, none, {Payload: []byte("after")}})
		if more := b.Size(0, 3) - other.Size(0, 3); err != nil || (c.want != 0) != (more == expirySize) {
			t.Errorf("%s: %d bytes more, %v", name, more, err)
		}
	}
	b, err := NewBatch(0, time.UnixMilli(0), []*Message{forged, {}}) // the stamp of that time is short
	if err != nil || b.Expiry(0) != 0 || b.Expiry(1) != 0 {
		t.Errorf("%d, %v", b.Expiry(0), err)
	}
}

// A message that waits says so before it says when it ends; one that does not wait, or whose time is past, is stored as
// it always was.
func TestDelivery(t *testing.T) {
	at := time.UnixMilli(1_800_000_000_123)
	forged := append(bytes.Clone(deliveryHead[:]), 0x80, 0x80, 0x80, 0x80, 0x01, 0x10, 0x80, 0x80, 0x80, 0x80, 0x01)
	for name, c := range map[string]struct {
		m    *Message
		want int64 // ms
	}{
		"at once":    {&Message{Key: "k"}, 0},
		"no delay":   {&Message{Delay: durationpb.New(0)}, 0},
		"a delay":    {&Message{Delay: durationpb.New(877 * time.Millisecond)}, 1_800_000_001_000},
		"rounded up": {&Message{Delay: durationpb.New(time.Nanosecond)}, 1_800_000_000_124},
		"a time": {&Message{DeliverTime: &timestamppb.Timestamp{Seconds: 1_900_000_000, Nanos: 1}},
			1_900_000_000_001},
		"now":               {&Message{DeliverTime: timestamppb.New(at)}, 0},
		"past":              {&Message{DeliverTime: &timestamppb.Timestamp{Seconds: -5, Nanos: 7}}, 0},
		"in the far future": {&Message{DeliverTime: &timestamppb.Timestamp{Seconds: 1 << 50}}, maxSeconds * 1000},
	} {
		for _, ttl := range []*durationpb.Duration{nil, durationpb.New(time.Hour)} {
			c.m.Ttl = ttl
			b, err := NewBatch(7, at, []*Message{{Type: "before"}, c.m, {Payload: forged}})
			if err != nil {
				t.Fatal(err)
			}
			if b.Delays() != (c.want != 0) || b.Delivery(0) != 0 || b.Delivery(2) != 0 ||
				b.Delivery(1) != c.want*int64(time.Millisecond) || (b.Expiry(1) != 0) != (ttl != nil) {
				t.Errorf("%s: is due at %d, %d, %d, ends at %d", name, b.Delivery(0), b.Delivery(1), b.Delivery(2),
					b.Expiry(1))
			}
			m, err := b.Message(1)
			if err != nil || m.GetDelay() != nil || (m.GetDeliverTime() != nil) != (c.want != 0) ||
				c.want != 0 && m.GetDeliverTime().AsTime().UnixMilli() != c.want {
				t.Errorf("%s: %v, %v", name, m, err)
			}
			want := max(at.UnixMilli(), c.want)
			if since := b.Since(8).UnixMilli(); since != want || !b.Since(7).Equal(at) || !b.Since(100).Equal(at) {
				t.Errorf("%s: since %d, should be %d", name, since, want)
			}
		}
	}
	b, err := NewBatch(0, time.UnixMilli(0), []*Message{{Payload: forged}, {}}) // the stamp of that time is short
	if err != nil || b.Delivery(0) != 0 || b.Delivery(1) != 0 {
		t.Errorf("%d, %v", b.Delivery(0), err)
	}
}

// How releases without times to live stored a message, and the hash that they had of a request.
const (
	goldenBody = "1a150a016b2a036f6e65320b0880a4a7da0610c0a9d33a"
	goldenHash = "8813ccfc79262e3a7e03adcec446bf31"
)

// A request without times to live has the hash that it had before there were any.
func TestHashOfTTL(t *testing.T) {
	plain := []*Message{{Key: "k", Payload: []byte("one")}, {}}
	if got, want := HashOf(plain), goldenHash; hex.EncodeToString(got[:]) != want {
		t.Errorf("%x, should be %s", got, want)
	}
	seen := map[producers.Hash]bool{}
	for _, list := range [][]*Message{
		plain,
		{{Key: "k", Payload: []byte("one"), Ttl: durationpb.New(time.Second)}, {}},
		{{Key: "k", Payload: []byte("one"), Ttl: durationpb.New(2 * time.Second)}, {}},
		{{Key: "k", Payload: []byte("one")}, {Ttl: durationpb.New(time.Second)}},
		{{Key: "k", Payload: []byte("one")}, {Delay: durationpb.New(time.Second)}},
		{{Key: "k", Payload: []byte("one")}, {Delay: durationpb.New(0)}},
		{{Key: "k", Payload: []byte("one"), DeduplicationId: "k"}, {}},
		{{Key: "k", Payload: []byte("one")}, {DeduplicationId: "k"}},
		{{Key: "k", Payload: []byte("onek")}, {}},
		{{Key: "k", Payload: []byte("one")}, {DeliverTime: timestamppb.New(time.Unix(1, 0))}},
	} {
		h := HashOf(list)
		if seen[h] {
			t.Errorf("%v has the hash of another request", list)
		}
		seen[h] = true
	}
}
