package event

import (
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
)

// The position of a message is read without the rest of it, as a decoder would read it; of
// anything that is not a message of the key's chat, none is.
func TestMessagePosition(t *testing.T) {
	ids := map[string]int{}
	for i, spec := range Specs() {
		ids[spec.Type] = i + 1
	}
	serde, err := NewSerde(ids, nil)
	if err != nil {
		t.Fatal(err)
	}
	metadata := func(change func(*eventv1.EventMetadata)) *eventv1.EventMetadata {
		md := Metadata{Type: TypeMessagePersisted, ID: "evt_1", ChatID: "chat_1", At: time.UnixMilli(1),
			Origin: Origin{Generation: "g1", Producer: "p"}, Cause: Cause{Actor: "ann"}.Complete("evt_1"), Version: 1 << 40,
			MembershipVersion: 7}.Proto()
		change(md)
		return md
	}
	record := func(e Event) []byte {
		value, err := serde.Encode(e)
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
	message := func(change func(*eventv1.EventMetadata)) []byte {
		return record(&eventv1.MessagePersisted{Metadata: metadata(change), ChatId: "chat_1", MessageId: "m",
			Sequence: 3, SenderId: "ann", Content: "hello"})
	}
	whole := message(func(*eventv1.EventMetadata) {})
	want := Position{Generation: "g1", Version: 1 << 40, MembershipVersion: 7}
	if p, ok := serde.MessagePosition([]byte("chat_1"), whole); !ok || p != want {
		t.Errorf("%+v, %v; expected %+v", p, ok, want)
	}
	newer, err := proto.Marshal(metadata(func(*eventv1.EventMetadata) {}))
	if err != nil {
		t.Fatal(err)
	}
	newer = protowire.AppendString(protowire.AppendTag(newer, 900, protowire.BytesType), "of a newer version")
	framed, err := Frame(ids[TypeMessagePersisted],
		protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), newer))
	if err != nil {
		t.Fatal(err)
	}
	if p, ok := serde.MessagePosition([]byte("chat_1"), framed); !ok || p != want {
		t.Errorf("with a field of a newer version %+v, %v; expected %+v", p, ok, want)
	}
	for name, value := range map[string][]byte{
		"another chat":          message(func(md *eventv1.EventMetadata) { md.PartitionKey = "chat_2" }),
		"no generation":         message(func(md *eventv1.EventMetadata) { md.Generation = "" }),
		"no version":            message(func(md *eventv1.EventMetadata) { md.Version = 0 }),
		"a negative version":    message(func(md *eventv1.EventMetadata) { md.Version = -1 }),
		"no membership version": message(func(md *eventv1.EventMetadata) { md.MembershipVersion = 0 }),
		"another type": record(&eventv1.MembershipChanged{Metadata: metadata(func(*eventv1.EventMetadata) {}),
			ChatId: "chat_1"}),
		"no metadata":       record(&eventv1.MessagePersisted{ChatId: "chat_1"}),
		"an unknown schema": append([]byte{0, 0, 0, 99, 0}, whole[5:]...),
		"nothing":           nil,
	} {
		if p, ok := serde.MessagePosition([]byte("chat_1"), value); ok {
			t.Errorf("%s: %+v, expected none", name, p)
		}
	}
	for n := range whole {
		if p, ok := serde.MessagePosition([]byte("chat_1"), whole[:n]); ok && p != want {
			t.Errorf("the first %d bytes: %+v, expected %+v or none", n, p, want)
		}
	}
}
