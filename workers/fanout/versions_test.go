package fanout

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/timestamppb"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/registry"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/workers/consume"
)

// Ids of schemas that this version of Parley has not registered.
const (
	newerID      = 1_000 + iota // of a message of a newer version
	foreignID                   // of a type that only newer processes have
	deadLetterID                // of a dead letter
	unknownID
)

// tester is a handler that records its deliveries.
type tester struct {
	serde *event.Serde
	sent  []delivery.Delivery
	newer []string
	fail  error

	applied func(delivery.Delivery) bool
}

func newTester(t *testing.T) *tester {
	t.Helper()
	ids, err := registry.New(storetest.NewMemory(time.Now)).Events(t.Context())
	testkit.Must(t, err)
	x := &tester{}
	x.serde, err = event.NewSerde(ids, func(_ context.Context, id int) ([]string, error) {
		switch id {
		case newerID:
			return []string{"messages.persisted-parley.event.v1.MessagePersisted"}, nil
		case foreignID:
			return []string{"messages.persisted-parley.event.v1.MessagePinned"}, nil
		case deadLetterID:
			return []string{"dead_letters-parley.event.v1.DeadLetter"}, nil
		}
		return nil, nil
	})
	testkit.Must(t, err)
	x.serde.OnNewer(func(eventType string, v int32) { x.newer = append(x.newer, fmt.Sprint(eventType, " ", v)) })
	return x
}

func (x *tester) handle(records ...*kafka.Record) (int, error) {
	return Repairer(x.serde, func(_ context.Context, d delivery.Delivery) error {
		x.sent = append(x.sent, d)
		return x.fail
	}, x.applied)(context.Background(), records)
}

// message makes the record of a message in a version of the event, under a schema, or under
// this process's own (0).
func (x *tester) message(t *testing.T, n int64, version int32, schema int) *kafka.Record {
	t.Helper()
	e := &eventv1.MessagePersisted{
		Metadata: event.Metadata{
			Type: event.TypeMessagePersisted, ID: fmt.Sprint("evt_", n), ChatID: "chat_1", At: time.UnixMilli(n),
			Origin: event.Origin{Generation: "g", Producer: "p"},
			Cause:  event.Cause{Actor: "user_1"}.Complete("evt_1"), Version: n, MembershipVersion: 1,
		}.Proto(),
		ChatId: "chat_1", MessageId: fmt.Sprint("msg_", n), Sequence: n, SenderId: "user_1", Content: "hello",
		ClientMessageId: "c",
		ContentType:     eventv1.ContentType_CONTENT_TYPE_TEXT, CreatedAt: timestamppb.New(time.UnixMilli(n)),
	}
	e.Metadata.EventVersion = version
	value, err := x.serde.Encode(e)
	testkit.Must(t, err)
	if schema != 0 {
		payload, err := event.Marshal(e)
		testkit.Must(t, err)
		payload = protowire.AppendString(protowire.AppendTag(payload, 999, protowire.BytesType),
			"a field of a newer version")
		if value, err = event.Frame(schema, payload); err != nil {
			t.Fatal(err)
		}
	}
	return &kafka.Record{Topic: kafka.MessagesPersisted, Key: []byte("chat_1"), Value: value}
}

func classOf(err error) consume.Class {
	var f *consume.Failure
	if errors.As(err, &f) {
		return f.Class
	}
	return consume.Unknown
}

// Records of every version of an event are delivered. A version newer than this process's is
// reported once (K-154, K-155). A record without a version is no event (K-154). A type that
// only newer processes have is ignored, without holding up the records around it. A type that
// is registered for no topic of events makes a dead letter (K-156). So versions of an event are
// read side by side (EV09).
func TestVersions(t *testing.T) {
	x := newTester(t)
	own := event.SpecOf(&eventv1.MessagePersisted{}).Version
	if n, err := x.handle(x.message(t, 1, own, 0), x.message(t, 2, own+1, newerID), x.message(t, 3, own+1, newerID),
		x.message(t, 4, own+7, newerID)); n != 4 || err != nil {
		t.Fatalf("%d records finished (%v), expected 4", n, err)
	}
	if len(x.sent) != 1 || x.sent[0].Version != 4 {
		t.Fatalf("delivered %+v, expected one delivery of version 4", x.sent)
	}
	if want := []string{fmt.Sprint("MessagePersisted ", own+1),
		fmt.Sprint("MessagePersisted ", own+7)}; !slices.Equal(x.newer, want) {
		t.Fatalf("warned of %q, expected %q", x.newer, want)
	}
	for _, c := range []struct {
		name   string
		record *kafka.Record
		class  consume.Class
	}{
		{"no version", x.message(t, 6, 0, 0), consume.Permanent},
		{"a newer type", x.message(t, 6, 1, foreignID), consume.Ignored},
		{"a type of another topic", x.message(t, 6, 1, deadLetterID), consume.Permanent},
		{"an unknown type", x.message(t, 6, 1, unknownID), consume.Permanent},
	} {
		x.sent = nil
		n, err := x.handle(x.message(t, 5, own, 0), c.record, x.message(t, 7, own, 0))
		if n != 1 || classOf(err) != c.class {
			t.Errorf("%s: %d records finished (%v), expected 1 and a failure of class %v", c.name, n, err, c.class)
		}
		if len(x.sent) != 1 || x.sent[0].Version != 5 {
			t.Errorf("%s: delivered %+v, expected one delivery of version 5", c.name, x.sent)
		}
	}
}

// What the hub says it has applied is finished unread, wherever it is among the others. It is
// asked for messages only, and by their own positions.
func TestAppliedIsNotDecoded(t *testing.T) {
	x := newTester(t)
	var asked []string
	x.applied = func(d delivery.Delivery) bool {
		asked = append(asked, fmt.Sprint(d))
		return d.Generation == "g" && d.MembershipVersion == 1 && d.Version <= 2
	}
	own := event.SpecOf(&eventv1.MessagePersisted{}).Version
	spoilt := x.message(t, 2, own, 0)
	spoilt.Value = append(spoilt.Value, 0xff) // not even protobuf
	if n, err := x.handle(x.message(t, 1, own, 0), spoilt, x.message(t, 3, own, 0), x.message(t, 2, own, 0)); n != 4 ||
		err != nil {
		t.Fatalf("%d records finished (%v), expected 4", n, err)
	}
	if len(x.sent) != 1 || x.sent[0].Version != 3 {
		t.Fatalf("delivered %+v, expected one delivery of version 3", x.sent)
	}
	spoilt = x.message(t, 4, own, 0)
	spoilt.Value = append(spoilt.Value, 0xff)
	if n, err := x.handle(x.message(t, 1, own, 0), spoilt); n != 1 || classOf(err) != consume.Permanent {
		t.Fatalf("%d records finished (%v), expected 1 and a permanent failure", n, err)
	}
	if want := []string{"chat_1@1 (0 events)", "chat_1@2 (0 events)", "chat_1@3 (0 events)", "chat_1@2 (0 events)",
		"chat_1@1 (0 events)", "chat_1@4 (0 events)"}; !slices.Equal(asked, want) {
		t.Errorf("asked for %q, expected %q", asked, want)
	}
}

// When the members cannot be read, all records are retried: none counts as delivered (K-124).
func TestMembersCannotBeRead(t *testing.T) {
	x := newTester(t)
	x.fail = errors.New("unavailable")
	if n, err := x.handle(x.message(t, 1, 1, 0), x.message(t, 2, 1, 0)); n != 0 || classOf(err) != consume.Authoritative {
		t.Fatalf("%d records finished (%v), expected 0 and a failure that is retried", n, err)
	}
}

// Many events make one delivery, with the newest head in any order, and with every user who was
// added or removed. Heads of several generations stay separate.
func TestMerge(t *testing.T) {
	change := func(generation string, v int64, user string, change eventv1.MembershipChangeType) event.Event {
		return &eventv1.MembershipChanged{
			Metadata: event.Metadata{
				Type: event.TypeMembershipChanged, ID: fmt.Sprint("evt_", v), ChatID: "chat_1", At: time.UnixMilli(v),
				Origin:  event.Origin{Generation: generation, Producer: "p"},
				Version: v, MembershipVersion: v,
			}.Proto(),
			ChatId: "chat_1", UserId: user, ChangeType: change,
		}
	}
	const added, removed, role = eventv1.MembershipChangeType_MEMBERSHIP_CHANGE_TYPE_ADDED,
		eventv1.MembershipChangeType_MEMBERSHIP_CHANGE_TYPE_REMOVED,
		eventv1.MembershipChangeType_MEMBERSHIP_CHANGE_TYPE_ROLE_CHANGED
	got := Merge([]event.Event{
		change("g", 3, "bob", added), change("g", 5, "bob", removed), change("old", 9, "dave", removed),
		change("g", 8, "carol", removed),
		change("g", 7, "alice", role), change("g", 5, "bob", removed), // repeated, late
	})
	if len(got) != 2 {
		t.Fatalf("%+v, expected one delivery for each of 2 generations", got)
	}
	slices.Sort(got[0].Targets)
	if d := got[0]; d.Generation != "g" || d.ChatID != "chat_1" || d.Version != 8 || d.MembershipVersion != 8 ||
		!slices.Equal(d.Targets, []string{"bob", "carol"}) || d.Events != nil {
		t.Errorf("%+v, expected version 8 for bob and carol", d)
	}
	if d := got[1]; d.Generation != "old" || d.Version != 9 || !slices.Equal(d.Targets, []string{"dave"}) {
		t.Errorf("%+v, expected version 9 for dave", d)
	}
	if Merge(nil) != nil {
		t.Error("no events made a delivery, expected none")
	}
}
