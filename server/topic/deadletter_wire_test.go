package topic

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	linkv1 "github.com/parley-chat/parley/gen/parley/link/v1"
	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/topic/internal/operations"
)

// over passes a message through its encoding.
func over[M proto.Message](t *testing.T, m M) M {
	t.Helper()
	b, err := proto.Marshal(m)
	testkit.Must(t, err)
	got := m.ProtoReflect().New().Interface()
	testkit.Must(t, proto.Unmarshal(b, got))
	return got.(M)
}

// What passes to another process is there what it was here.
func TestRoundTrip(t *testing.T) {
	position := operations.DeadLetterPosition{Log: "t.dlq", Parked: true, Partition: 2, Position: 3, Group: "g"}
	for _, l := range []operations.DeadLetter{
		{LogPosition: position, Number: 4, Topic: "t", Partition: 5, Position: 6, Group: "g", Attempts: 7, Reason: "bad",
			First: time.Unix(8, 9).UTC(), Last: time.Unix(10, 11).UTC(),
			Message: &topicv1.TopicMessage{Key: "k", Payload: []byte("p"), Headers: map[string]string{"h": "v"}}},
		{LogPosition: operations.DeadLetterPosition{Log: "t.dlq"}, Topic: "t", Group: "g"},
	} {
		got := DeadLetterFromWire(over(t, DeadLetterToWire(l)))
		if !proto.Equal(got.Message, l.Message) {
			t.Errorf("message %v, want %v", got.Message, l.Message)
		}
		got.Message, l.Message = nil, nil
		if !reflect.DeepEqual(got, l) {
			t.Errorf("%+v, want %+v", got, l)
		}
		ref := DeadLetterRefFromWire(over(t, DeadLetterRefToWire(l)))
		want := operations.DeadLetter{LogPosition: l.LogPosition, Number: l.Number, Topic: l.Topic, Group: l.Group}
		if !reflect.DeepEqual(ref, want) {
			t.Errorf("%+v, want %+v", ref, want)
		}
	}
	everything := func(string) bool { return true }
	owns := func(n uint64) bool { return n == 1 }
	for _, s := range []operations.DeadLetterSelection{{}, {
		Topic: "t", Group: "g", Dead: true, Positions: []operations.DeadLetterPosition{position},
		Logs: map[string]bool{"t.dlq": true}, After: map[commitlog.Partition]int64{{Topic: 1, Number: 2}: 3},
	}} {
		if got := SelectionFromWire(over(t, SelectionToWire(&s, everything, owns))); !reflect.DeepEqual(got, s) {
			t.Errorf("%+v, want %+v", got, s)
		}
	}
}

// A slot is asked for what it may have, and for all if too much is named.
func TestSelectionOfASlot(t *testing.T) {
	s := operations.DeadLetterSelection{
		Positions: []operations.DeadLetterPosition{{Log: "a"}, {Log: "b"}}, Logs: map[string]bool{"a": true, "b": true},
		After: map[commitlog.Partition]int64{{Topic: 1}: 1, {Topic: 2}: 2},
	}
	has := func(log string) bool { return log == "b" }
	m := SelectionToWire(&s, has, func(n uint64) bool { return n == 2 })
	want := &linkv1.LetterSelection{Places: []*linkv1.LetterPlace{{Log: "b"}}, Logs: []string{"b"},
		Starts: []*linkv1.LetterStart{{Number: 2, Position: 2}}}
	if !proto.Equal(m, want) {
		t.Errorf("%v, want %v", m, want)
	}
	s = operations.DeadLetterSelection{Logs: map[string]bool{}}
	for i := range 10_001 {
		s.Logs[fmt.Sprint(i)] = true
	}
	if got := SelectionFromWire(SelectionToWire(&s, func(string) bool { return true }, nil)); got.Logs != nil {
		t.Errorf("%d topics are named", len(got.Logs))
	}
}
