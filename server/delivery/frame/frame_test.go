package frame

import (
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/event"
)

func md(version, membership int64) *eventv1.EventMetadata {
	return &eventv1.EventMetadata{Version: version, MembershipVersion: membership}
}

func events() []event.Event {
	at := timestamppb.New(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	return []event.Event{
		&eventv1.ChatCreated{Metadata: md(1, 1), ChatId: "c", CreatedBy: "ann", MemberCount: 1, CreatedAt: at},
		&eventv1.MembershipChanged{
			Metadata: md(2, 2), ChatId: "c", UserId: "bob",
			ChangeType: eventv1.MembershipChangeType_MEMBERSHIP_CHANGE_TYPE_ADDED, Role: 1, ChangedAt: at,
		},
		&eventv1.MessagePersisted{Metadata: md(3, 2), ChatId: "c", Sequence: 1, SenderId: "ann", Content: "grüß",
			ClientMessageId: "x", CreatedAt: at},
		&eventv1.MembershipChanged{
			Metadata: md(4, 3), ChatId: "c", UserId: "bob",
			ChangeType: eventv1.MembershipChangeType_MEMBERSHIP_CHANGE_TYPE_ROLE_CHANGED, Role: 2, ChangedAt: at,
		},
		&eventv1.MembershipChanged{
			Metadata: md(5, 4), ChatId: "c", UserId: "bob",
			ChangeType: eventv1.MembershipChangeType_MEMBERSHIP_CHANGE_TYPE_REMOVED, Role: 2, ChangedAt: at,
		},
		&eventv1.ChatUpdated{Metadata: md(6, 5), ChatId: "c", Name: "n", MemberCount: 1, UpdatedAt: at},
	}
}

func TestFramesOfEvents(t *testing.T) {
	for i, e := range events() {
		f := Of(e, int64(i)).Proto()
		if f.GetChatId() != "c" || f.GetAfterVersion() != int64(i) || f.GetVersion() != int64(i)+1 || f.GetBody() == nil {
			t.Errorf("%T is %v", e, f)
		}
	}
	if m := Of(events()[2], 2).Proto().GetMessage(); m.GetContent() != "grüß" || m.GetSequence() != 1 ||
		m.GetVersion() != 3 || m.GetClientMessageId() != "x" {
		t.Errorf("message %v", m)
	}
	if m := Of(events()[4], 4).Proto().GetMembershipChange(); m.GetRole() != 0 || m.GetUserId() != "bob" {
		t.Errorf("a removed member keeps a role: %v", m)
	}
}

// One encoding serves all streams: it must be what the generated code would send.
func TestEncodings(t *testing.T) {
	frames := []*Frame{
		Head("c", 9, 3, nil), Left("c", "ann", 0), Reset("c", 4), Heartbeat("t"), Receipt("c", nil), Profile("ann", 3),
		End(deliveryv1.EndCode_END_CODE_DRAIN, time.Second, "t"), Hello(&deliveryv1.Hello{StreamId: "s"}),
	}
	for i, e := range events() {
		frames = append(frames, Of(e, int64(i)))
	}
	res := &deliveryv1.SubscribeResponse{FirstPosition: 7}
	var wire []byte
	for _, f := range frames {
		res.Frames = append(res.Frames, f.Proto())
		b, err := f.Wire()
		if err != nil {
			t.Fatal(err)
		}
		again, err := f.Wire()
		if err != nil || &b[0] != &again[0] {
			t.Error("a frame was encoded twice")
		}
		wire = append(wire, b...)
		j, err := f.JSON()
		var back deliveryv1.Frame
		if err != nil || protojson.Unmarshal(j, &back) != nil || !proto.Equal(&back, f.Proto()) {
			t.Errorf("JSON of %v is %s (%v)", f.Proto(), j, err)
		}
		if f.Size() < proto.Size(f.Proto())/2 {
			t.Errorf("%v counts as %d bytes", f.Proto(), f.Size())
		}
	}
	var back deliveryv1.SubscribeResponse
	if err := proto.Unmarshal(wire, &back); err != nil {
		t.Fatal(err)
	}
	back.FirstPosition = 7
	if !proto.Equal(&back, res) {
		t.Errorf("the frames together are %v", &back)
	}
}

func TestEffects(t *testing.T) {
	want := []struct {
		target     string
		effect     Effect
		membership bool
	}{{"ann", Added, true}, {"bob", Added, true}, {"", None, false}, {"", None, true}, {"bob", Removed, true},
		{"", None, true}}
	var changes []*Change
	for i, e := range events() {
		c := NewChange(e)
		changes = append(changes, c)
		if c.Target != want[i].target || c.Effect != want[i].effect || c.Membership != want[i].membership ||
			c.Version != int64(i)+1 {
			t.Errorf("%T: %+v, want %+v", e, c, want[i])
		}
		f := c.Frame()
		if c.Frame() != f || f.Proto().GetAfterVersion() != int64(i) {
			t.Errorf("%T: frame %v", e, c.Frame().Proto())
		}
	}
	if i := IndexOfAddition(changes, "bob"); i != 1 {
		t.Errorf("bob is added at %d", i)
	}
	if i := IndexOfAddition(changes[2:], "bob"); i != -1 {
		t.Errorf("bob is added at %d", i)
	}
}
