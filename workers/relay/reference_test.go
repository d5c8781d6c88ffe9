package relay

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/parley-chat/parley/server/commitlog/record"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/eventlog"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// eventOf is an event of a type with the metadata given.
func eventOf(t *testing.T, spec event.Spec, md event.Metadata) event.Event {
	t.Helper()
	e, ok := event.Prototype(spec.Type).(event.Event)
	if !ok {
		t.Fatalf("%s is no event", spec.Type)
	}
	m := e.ProtoReflect()
	fields := m.Descriptor().Fields()
	m.Set(fields.ByName("metadata"), protoreflect.ValueOfMessage(md.Proto().ProtoReflect()))
	m.Set(fields.ByName("chat_id"), protoreflect.ValueOfString(md.ChatID))
	return e
}

// The record that is made of a reference and the event's row is the one that is published of
// the event, byte for byte: of every type, with and without an id, a generation, and fields
// that this version does not know.
func TestRecordOfAReferenceIsWhatIsPublished(t *testing.T) {
	re := newFixture(t).relay()
	for i, spec := range event.Specs() {
		for j, origin := range []event.Origin{{Generation: "generation", Producer: "p"}, {}} {
			chatID := fmt.Sprint("chat_", i)
			md := event.Metadata{Type: spec.Type, ID: "evt_1", ChatID: chatID, At: re.cfg.Clock(), Origin: origin,
				Version: 7, MembershipVersion: 3}
			if j == 1 {
				md.ID = ""
			}
			e := eventOf(t, spec, md)
			payload, err := event.Marshal(e)
			if err != nil {
				t.Fatal(err)
			}
			unknown := protowire.AppendVarint(protowire.AppendTag(nil, 1000, protowire.Fixed32Type), 9)
			unknown = append(unknown, 0, 0, 0)
			for _, payload := range [][]byte{payload, append(bytes.Clone(payload), unknown...)} {
				decoded, err := event.Unmarshal(spec.Type, payload)
				if err != nil || !proto.Equal(decoded.GetMetadata(), e.GetMetadata()) {
					t.Fatalf("%s: %v, %v", spec.Type, decoded, err)
				}
				p, err := re.planOf(store.Key{}, chatID, e.GetMetadata().GetVersion(), []event.Event{decoded}, [][]byte{payload})
				if err != nil || len(p.records) != 1 {
					t.Fatalf("%s: %d records, %v", spec.Type, len(p.records), err)
				}
				want := p.records[0]
				id, _, err := event.Unframe(want.Value)
				if err != nil {
					t.Fatal(err)
				}
				row := table.Event{ChatID: chatID, Version: 7, EventID: md.ID, Type: spec.Type, Payload: payload}
				stored, err := table.EventFrom(store.Row{Key: table.EventKey(chatID, 7), Item: row.Item()})
				if err != nil {
					t.Fatal(err)
				}
				ref := record.Reference{Chat: chatID, Version: 7, Schema: int32(id), Time: 123}
				got, err := eventlog.Record(ref, re.cfg.Generation, &stored)
				if err != nil || !sameRecord(got, want) || got.Time != 123 {
					t.Errorf("%s: %+v, %v; published is %+v", spec.Type, got, err, want)
				}
			}
		}
	}
}

// sameRecord compares all bytes; null and empty differ.
func sameRecord(a record.Record, b *kafka.Record) bool {
	same := func(a, b []byte) bool { return bytes.Equal(a, b) && (a == nil) == (b == nil) }
	if !same(a.Key, b.Key) || !same(a.Value, b.Value) || len(a.Headers) != len(b.Headers) {
		return false
	}
	for i, h := range a.Headers {
		if h.Key != b.Headers[i].Key || !same(h.Value, b.Headers[i].Value) {
			return false
		}
	}
	return true
}

// A reference names the row of an event by its version. Where the event says another version
// than its row, the publication names no chat, so that the record is copied.
func TestEventUnderAnotherVersion(t *testing.T) {
	r := newFixture(t)
	id := r.group()
	r.send(id)
	key := table.EventKey(id, 3)
	item, err := r.store.Get(r.ctx, key, store.Strong)
	r.must(err)
	stored, err := table.EventFrom(store.Row{Key: key, Item: item})
	r.must(err)
	e, err := event.Unmarshal(stored.Type, stored.Payload)
	r.must(err)
	e.GetMetadata().Version = 9
	stored.Payload, err = event.Marshal(e)
	r.must(err)
	r.must(r.store.BatchWrite(r.ctx, []store.Write{{Op: store.OpPut, Key: key, Item: stored.Item()}}))
	re := r.relay()
	chats := map[int64]string{}
	re.cfg.Publish = func(_ context.Context, list []eventlog.Publication) error {
		for _, p := range list {
			e, err := r.serde.Decode(context.Background(), p.Records[0].Key, p.Records[0].Value)
			r.must(err)
			chats[e.GetMetadata().GetVersion()] = p.Chat
		}
		return nil
	}
	r.must(re.Cycle(r.ctx))
	if len(chats) != 3 || chats[1] != id || chats[2] != id || chats[9] != "" {
		t.Errorf("publications by the version of their event: %v, expected two of the chat and one of no chat", chats)
	}
}
