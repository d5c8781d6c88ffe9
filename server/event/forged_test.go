package event

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
)

// A record is believed only if it is what its schema says, of its own chat: another chat's key, type or partition key,
// bytes behind it, or a schema of something else make it no event, whoever wrote it. So a forged record reaches the
// members of no chat but the one that its key names (S-42).
func TestSec_S_42_ForgedRecords(t *testing.T) {
	ids := map[string]int{}
	for n, s := range Specs() {
		ids[s.Type] = n + 1
	}
	serde, err := NewSerde(ids, nil)
	if err != nil {
		t.Fatal(err)
	}
	forgeries := 0
	for _, e := range samples() {
		value, err := serde.Encode(e)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := serde.Decode(t.Context(), []byte(e.GetChatId()), value); err != nil {
			t.Errorf("%s as it is: %v", TypeOf(e), err)
		}
		change := func(f func(Event)) []byte {
			forged := proto.Clone(e).(Event)
			f(forged)
			b, err := serde.Encode(forged)
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
		schema := func(id uint32) []byte {
			b := slices.Clone(value)
			binary.BigEndian.PutUint32(b[1:], id)
			return b
		}
		for name, record := range map[string]struct {
			key   string
			value []byte
		}{
			"another chat's key": {"chat_2", value}, "no key": {"", value}, "a longer key": {e.GetChatId() + "1", value},
			"another partition key": {e.GetChatId(), change(func(e Event) { e.GetMetadata().PartitionKey = "chat_2" })},
			"another type":          {e.GetChatId(), change(func(e Event) { e.GetMetadata().EventType = "Other" })},
			"no metadata":           {e.GetChatId(), schemaOnly(value)},
			"an unknown schema":     {e.GetChatId(), schema(9999)},
			"no schema":             {e.GetChatId(), value[1:]},
			"nothing":               {e.GetChatId(), nil},
			"cut":                   {e.GetChatId(), value[:len(value)-1]},
			"JSON":                  {e.GetChatId(), []byte(`{"chatId":"` + e.GetChatId() + `"}`)},
		} {
			got, err := serde.Decode(t.Context(), []byte(record.key), record.value)
			if got != nil || !errors.Is(err, ErrSchema) {
				t.Errorf("%s with %s: %v, %v", TypeOf(e), name, got, err)
			}
			forgeries++
		}
	}
	m := samples()[len(samples())-1].(*eventv1.MessagePersisted)
	m.ChatId, m.Metadata.PartitionKey = "chat_2", "chat_2" // all of it is another chat's, but the key
	value, err := serde.Encode(m)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := serde.Decode(t.Context(), []byte("chat_1"), value); !errors.Is(err, ErrSchema) {
		t.Errorf("a message for another chat: %v", err)
	}
	if forgeries < 30 {
		t.Errorf("%d forgeries", forgeries)
	}
}

// schemaOnly is a record without a payload.
func schemaOnly(value []byte) []byte { return slices.Clone(value[:6]) }

// Why a record is no event says nothing of what it has: the reason goes to logs and dead letters (S-38).
func TestSec_S_38_ReasonsHaveNoContent(t *testing.T) {
	ids := map[string]int{}
	for n, s := range Specs() {
		ids[s.Type] = n + 1
	}
	serde, err := NewSerde(ids, nil)
	if err != nil {
		t.Fatal(err)
	}
	const canary = "canary4711"
	message := func(change func(*eventv1.MessagePersisted)) []byte {
		m := samples()[len(samples())-1].(*eventv1.MessagePersisted)
		m.Content = canary
		change(m)
		b, err := serde.Encode(m)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	whole := message(func(*eventv1.MessagePersisted) {})
	for name, value := range map[string][]byte{
		"another chat": whole, "too long": message(func(m *eventv1.MessagePersisted) {
			m.ChatId, m.Content = "chat_1", strings.Repeat(canary, 10_000)
		}),
		"no sender": message(func(m *eventv1.MessagePersisted) { m.SenderId = "" }),
		"cut":       whole[:len(whole)-3], "text": []byte(canary), "text behind": append(slices.Clone(whole), canary...),
	} {
		key := "chat_1"
		if name == "another chat" {
			key = canary
		}
		if _, err := serde.Decode(t.Context(), []byte(key), value); err == nil || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
