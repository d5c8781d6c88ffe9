package registry

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
)

// While a new version is rolled out, each process reads what the others write: an id
// that was registered after its start, under an event's subject, is that event
// (K-150). An id of another subject is none, and a registry that is away says nothing
// about the record.
func TestRecordsOfOtherVersions(t *testing.T) {
	r := New(dynamotest.Store(t, time.Now))
	ids, err := r.Events(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	away := errors.New("away")
	var asked int
	var down bool
	s, err := event.NewSerde(ids, func(ctx context.Context, id int) ([]string, error) {
		asked++
		if down {
			return nil, away
		}
		return r.SubjectsOf(ctx, id)
	})
	if err != nil {
		t.Fatal(err)
	}
	md := event.Metadata{Type: event.TypeMembershipChanged, ID: "evt_1", ChatID: "chat_1", At: time.Now(),
		Origin: event.Origin{Generation: "g", Producer: "p"}, Cause: event.Cause{}.Complete("evt_1"), Version: 2,
		MembershipVersion: 2}.Proto()
	b, err := s.Encode(&eventv1.MembershipChanged{Metadata: md, ChatId: "chat_1", UserId: "bob", ChangedBy: "alice",
		ChangedAt: md.GetEventTime()})
	if err != nil {
		t.Fatal(err)
	}
	subject := ""
	for _, spec := range event.Specs() {
		if spec.Type == event.TypeMembershipChanged {
			subject = spec.Subject()
		}
	}
	now, err := r.Version(t.Context(), subject, Latest, false)
	if err != nil {
		t.Fatal(err)
	}
	// The next version has one more optional field; an unrelated subject has a schema too.
	text := now.Text
	i := strings.LastIndex(text, "}")
	next := now.Schema
	next.Text = text[:i] + "  optional string why = 60;\n}\n"
	register := func(subject string, s Schema) int {
		t.Helper()
		v, err := r.Register(t.Context(), subject, s, RegisterOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return v.ID
	}
	newer := register(subject, next)
	foreign := register("metrics-value",
		Schema{Text: "syntax = \"proto3\";\npackage other;\nmessage M { string a = 1; }\n"})
	if newer == now.ID {
		t.Fatal("the next version has the same id")
	}
	with := func(id int) []byte { return append([]byte{0, 0, 0, byte(id >> 8), byte(id)}, b[5:]...) }

	down = true
	if _, err := s.Decode(t.Context(), []byte("chat_1"), with(newer)); !errors.Is(err, away) ||
		errors.Is(err, event.ErrSchema) {
		t.Fatalf("registry away: %v", err)
	}
	down = false
	asked = 0
	for range 3 {
		if e, err := s.Decode(t.Context(), []byte("chat_1"), with(newer)); err != nil ||
			e.GetMetadata().GetEventId() != "evt_1" {
			t.Fatalf("newer version: %v, %v", e, err)
		}
	}
	if asked != 1 {
		t.Errorf("asked %d times for one id", asked)
	}
	for _, id := range []int{foreign, 4000} {
		if _, err := s.Decode(t.Context(), []byte("chat_1"), with(id)); !errors.Is(err, event.ErrSchema) {
			t.Errorf("id %d: %v", id, err)
		}
	}
}
