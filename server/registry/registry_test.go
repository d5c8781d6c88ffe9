package registry

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
)

func TestIdsAreStableAndDistinct(t *testing.T) {
	st := dynamotest.Store(t, time.Now)
	var wg sync.WaitGroup
	all := make([]map[string]int, 4)
	for i := range all {
		wg.Go(func() { // processes that start together
			var err error
			if all[i], err = New(st).Events(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	seen := map[int]bool{}
	for typ, id := range all[0] {
		if id < 1 || seen[id] {
			t.Errorf("%s has id %d", typ, id)
		}
		seen[id] = true
		for _, other := range all {
			if other[typ] != id {
				t.Errorf("%s has ids %d and %d", typ, id, other[typ])
			}
		}
	}
	if len(all[0]) != len(event.Specs()) {
		t.Fatalf("%d ids", len(all[0]))
	}
	if subject := event.Specs()[0].Subject(); subject != "chats.created-parley.event.v1.ChatCreated" {
		t.Errorf("subject %q", subject)
	}
}

func TestSerde(t *testing.T) {
	ids, err := New(dynamotest.Store(t, time.Now)).Events(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s, err := event.NewSerde(ids, nil)
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	md := event.Metadata{Type: event.TypeMembershipChanged, ID: "evt_1", ChatID: "chat_1", At: at,
		Origin: event.Origin{Generation: "g", Producer: "p"}, Cause: event.Cause{}.Complete("evt_1"), Version: 2,
		MembershipVersion: 2}.Proto()
	e := &eventv1.MembershipChanged{Metadata: md, ChatId: "chat_1", UserId: "bob", ChangedBy: "alice",
		ChangedAt: md.GetEventTime()}
	b, err := s.Encode(e)
	if err != nil || b[0] != 0 || int(b[4]) != ids[event.TypeMembershipChanged] || b[5] != 0 {
		t.Fatalf("% x, %v", b[:6], err)
	}
	got, err := s.Decode(t.Context(), []byte("chat_1"), b)
	if err != nil || got.GetMetadata().GetEventId() != "evt_1" {
		t.Fatalf("%v, %v", got, err)
	}
	invalid := func() []byte {
		bad := &eventv1.MembershipChanged{Metadata: md, ChatId: "chat_1"}
		b, err := s.Encode(bad)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	other := append([]byte(nil), b...)
	other[4] = byte(ids[event.TypeChatCreated])
	for name, tt := range map[string]struct {
		key   string
		value []byte
	}{
		"empty": {"chat_1", nil}, "json": {"chat_1", []byte(`{"chat_id":"chat_1"}`)}, "no index": {"chat_1", b[:5]},
		"cut":            {"chat_1", b[:len(b)-3]},
		"unknown schema": {"chat_1", append([]byte{0, 0, 0, 9, 9, 0}, b[6:]...)}, "another schema": {"chat_1", other},
		"another key": {"chat_2", b}, "no key": {"", b}, "invalid": {"chat_1", invalid()},
		"second message": {"chat_1", append(append([]byte(nil), b[:5]...), append([]byte{2, 2}, b[6:]...)...)},
	} {
		if _, err := s.Decode(t.Context(), []byte(tt.key), tt.value); !errors.Is(err, event.ErrSchema) ||
			strings.Contains(err.Error(), "alice") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
