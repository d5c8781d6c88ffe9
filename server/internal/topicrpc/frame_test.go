package topicrpc

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/topic"
)

// stored is what a batch holds of messages.
func stored(messages ...*topicv1.TopicMessage) (piece []byte) {
	for _, m := range messages {
		b, err := proto.Marshal(m)
		if err != nil {
			panic(err)
		}
		piece = protowire.AppendTag(piece, fieldMessages, protowire.BytesType)
		piece = protowire.AppendBytes(piece, b)
	}
	return piece
}

// random makes a delivery of some messages and the message that it stands for.
func random(r *rand.Rand, count, size int) (topic.Delivery, *topicv1.Delivery) {
	d := topic.Delivery{Partition: r.Int32N(3), Base: r.Int64N(3) * 1e12, Count: count, Moves: r.Int64N(2) * r.Int64N(1e6)}
	m := &topicv1.Delivery{Partition: d.Partition, Base: d.Base, Moves: d.Moves}
	gaps, attempts := r.IntN(2) == 0, r.IntN(2) == 0
	for i, offset := 0, uint32(0); i < count; i++ {
		m.Messages = append(m.Messages, &topicv1.TopicMessage{Key: fmt.Sprint(i), Headers: map[string]string{"h": "v"},
			Payload: bytes.Repeat([]byte{byte(i)}, r.IntN(size))})
		if gaps {
			d.Offsets = append(d.Offsets, offset)
			offset += 1 + r.Uint32N(400)
		}
		if attempts {
			d.Attempts = append(d.Attempts, 1+r.Uint32N(300))
		}
	}
	m.Offsets, m.Attempts = d.Offsets, d.Attempts
	for rest := m.GetMessages(); len(rest) > 0; {
		n := 1 + r.IntN(len(rest))
		d.Pieces = append(d.Pieces, stored(rest[:n]...))
		rest = rest[n:]
	}
	return d, m
}

// A delivery is on the wire what the generated code makes of it, in both encodings, and
// for both procedures.
func TestDeliveriesAreWhatTheContractSays(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		d, want := random(r, 1+r.IntN(20), 300)
		f := &deliveryFrame{Delivery: d, commit: r.Int64N(2) * r.Int64()}
		wire, err := f.AppendWire(nil)
		if err != nil {
			t.Fatal(err)
		}
		var one topicv1.ConsumeResponse
		var both topicv1.ConsumeBidiResponse
		if err := proto.Unmarshal(wire, &one); err != nil || !proto.Equal(one.GetDelivery(), want) ||
			one.GetCommit() != f.commit {
			t.Fatalf("%v, %v; want %v", &one, err, want)
		}
		if err := proto.Unmarshal(wire, &both); err != nil || !proto.Equal(both.GetDelivery(), want) ||
			both.GetCommit() != f.commit {
			t.Fatalf("%v, %v; want %v", &both, err, want)
		}
		text, err := f.AppendJSON(nil)
		if err != nil {
			t.Fatal(err)
		}
		var read topicv1.ConsumeResponse
		if err := protojson.Unmarshal(text, &read); err != nil || !proto.Equal(read.GetDelivery(), want) ||
			read.GetCommit() != f.commit {
			t.Fatalf("%s: %v", text, err)
		}
	}
}

// A delivery that no client of gRPC would take is sent in parts that together are the same.
func TestLargeDeliveriesAreSplit(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 4))
	split := 0
	for range 30 {
		d, want := random(r, 1+r.IntN(60), 200<<10)
		parts, err := frames(d)
		if err != nil {
			t.Fatal(err)
		}
		i := 0
		for _, f := range parts {
			if f.bytes() > maxFrame && f.Count > 1 {
				t.Fatalf("%d messages of %d bytes in one part", f.Count, f.bytes())
			}
			got, err := f.message()
			if err != nil || len(got.GetMessages()) != f.Count {
				t.Fatalf("%d messages, %v; want %d", len(got.GetMessages()), err, f.Count)
			}
			for j, m := range got.GetMessages() {
				offset, position := int64(i), int64(j)
				if want.GetOffsets() != nil {
					offset, position = int64(want.GetOffsets()[i]), int64(got.GetOffsets()[j])
				}
				if !proto.Equal(m, want.GetMessages()[i]) || got.GetBase()+position != want.GetBase()+offset ||
					want.GetAttempts() != nil && got.GetAttempts()[j] != want.GetAttempts()[i] {
					t.Fatalf("message %d is another, or elsewhere", i)
				}
				i++
			}
		}
		if i != len(want.GetMessages()) {
			t.Fatalf("%d messages of %d", i, len(want.GetMessages()))
		}
		if len(parts) > 1 {
			split++
		}
	}
	if split < 10 {
		t.Errorf("%d deliveries were split", split)
	}
}

// Bytes that are no messages end in an error, not in a stream that cannot be read.
func TestBrokenPieces(t *testing.T) {
	t.Parallel()
	piece := append(stored(&topicv1.TopicMessage{Payload: make([]byte, maxFrame)}), 0x1a, 0xff, 0xff)
	if _, err := frames(topic.Delivery{Count: 2, Pieces: [][]byte{piece}}); err == nil {
		t.Error("a broken batch is split")
	}
	broken := topic.Delivery{Count: 1, Pieces: [][]byte{{0x1a, 9, 1}}}
	if _, err := (&deliveryFrame{Delivery: broken}).AppendJSON(nil); err == nil {
		t.Error("a broken batch is JSON")
	}
}
