package device_test

import (
	"fmt"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/client/device"
)

const me, other = "alice", "bob"

// fixture steps a machine by hand: what it stores is kept, what it calls is listed.
type fixture struct {
	t        *testing.T
	now      time.Time
	m        *device.Machine
	snapshot device.Snapshot
	calls    []device.Call // not answered yet
	ids      int
	next     int64 // position
	cfg      device.Config
	seen     []device.Event
	history  string // what answers say of the store's history
}

func newFixture(t *testing.T, snapshot *device.Snapshot) *fixture {
	t.Helper()
	r := &fixture{t: t, now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
	if snapshot != nil {
		r.snapshot = *snapshot
	}
	r.cfg = device.Config{
		UserID: me, Clock: func() time.Time { return r.now }, Rand: func() float64 { return 1 },
		NewID: func() string { r.ids++; return fmt.Sprint("id", r.ids) },
	}
	r.m = device.New(r.cfg, snapshot)
	r.take()
	return r
}

func (r *fixture) take() {
	b, calls := r.m.Take()
	if b.Session != nil {
		r.snapshot.Session = *b.Session
	}
	if r.snapshot.Chats == nil {
		r.snapshot.Chats, r.snapshot.Messages = map[string]device.Record{}, map[string]map[int64]*messagev1.Message{}
	}
	for _, id := range b.Removed {
		delete(r.snapshot.Chats, id)
		delete(r.snapshot.Messages, id)
	}
	for _, c := range b.Chats {
		r.snapshot.Chats[c.Record.ChatID] = c.Record
		if c.Clear || r.snapshot.Messages[c.Record.ChatID] == nil {
			r.snapshot.Messages[c.Record.ChatID] = map[int64]*messagev1.Message{}
		}
		for _, msg := range c.Messages {
			r.snapshot.Messages[c.Record.ChatID][msg.GetSequence()] = msg
		}
	}
	r.snapshot.Outbox = append(r.snapshot.Outbox, b.Outbox...)
	for _, id := range b.Done {
		for i, u := range r.snapshot.Outbox {
			if u.ClientMessageID == id {
				r.snapshot.Outbox = append(r.snapshot.Outbox[:i:i], r.snapshot.Outbox[i+1:]...)
				break
			}
		}
	}
	r.calls = append(r.calls, calls...)
	r.seen = append(r.seen, r.m.Events()...)
}

// call returns the open call of a kind, which must be there.
func (r *fixture) call(k device.Kind) device.Call {
	r.t.Helper()
	for _, c := range r.calls {
		if c.Kind == k {
			return c
		}
	}
	r.t.Fatalf("no call of kind %d in %v", k, r.calls)
	return device.Call{}
}

func (r *fixture) open(k device.Kind) (n int) {
	for _, c := range r.calls {
		if c.Kind == k {
			n++
		}
	}
	return n
}

func (r *fixture) forget(id int64) {
	for i, c := range r.calls {
		if c.ID == id {
			r.calls = append(r.calls[:i:i], r.calls[i+1:]...)
			return
		}
	}
}

func (r *fixture) answer(k device.Kind, res proto.Message) {
	r.t.Helper()
	c := r.call(k)
	r.forget(c.ID)
	r.m.Result(c.ID, res, r.history, nil)
	r.take()
}

func (r *fixture) fail(k device.Kind, code connect.Code, reason string) {
	r.t.Helper()
	c := r.call(k)
	r.forget(c.ID)
	r.m.Result(c.ID, nil, "", &device.Failure{Code: code, Reason: reason})
	r.take()
}

// frames gives the machine frames of the open stream.
func (r *fixture) frames(frames ...*deliveryv1.Frame) {
	r.t.Helper()
	r.m.Frames(r.call(device.Subscribe).ID, &deliveryv1.SubscribeResponse{FirstPosition: r.next + 1, Frames: frames})
	r.next += int64(len(frames))
	r.take()
}

func (r *fixture) end(code deliveryv1.EndCode, after time.Duration) {
	r.t.Helper()
	if code != 0 {
		r.frames(endFrame(code, after))
	}
	c := r.call(device.Subscribe)
	r.forget(c.ID)
	r.next = 0
	r.m.StreamEnded(c.ID, &device.Failure{Code: connect.CodeUnavailable})
	r.take()
}

func (r *fixture) pass(d time.Duration) {
	r.now = r.now.Add(d)
	r.take()
}

func (r *fixture) restart() {
	r.t.Helper()
	snapshot := r.snapshot
	r.m, r.calls, r.next = device.New(r.cfg, &snapshot), nil, 0
	r.take()
}

func (r *fixture) view(id string) device.View {
	r.t.Helper()
	v, ok := r.m.View(id)
	if !ok {
		r.t.Fatalf("%s is not known", id)
	}
	if err := v.Check(); err != nil {
		r.t.Fatal(err)
	}
	return v
}

// texts are the messages that a chat shows.
func (r *fixture) texts(id string) (out string) {
	r.t.Helper()
	for _, m := range r.view(id).Messages {
		out += m.GetContent()
	}
	return out
}

func (r *fixture) expect(what string, got, want any) {
	r.t.Helper()
	if got != want {
		r.t.Fatalf("%s is %v, not %v", what, got, want)
	}
}

// synced is a device that has synchronised and whose stream is complete.
func synced(t *testing.T, chats ...*chatv1.ChatOverview) *fixture {
	t.Helper()
	r := newFixture(t, nil)
	r.answer(device.Sync, &deliveryv1.SyncResponse{Overviews: chats, Token: "t1", Full: true, Generation: "g1"})
	r.frames(hello("g1", false), heartbeat("t2"))
	return r
}

// loaded has the chat "c" open: messages up to sequence n, one for each version
// from 2 on.
func loaded(t *testing.T, n int64) *fixture {
	t.Helper()
	r := synced(t, overview("c", n+1, n))
	r.m.Open("c")
	r.take()
	var messages []*messagev1.Message
	for s := int64(1); s <= n; s++ {
		messages = append(messages, message(s, s+1))
	}
	r.answer(device.ListMessages, &messagev1.ListMessagesResponse{Messages: messages, Head: head(n+1, n)})
	r.answer(device.ListMembers, &chatv1.ListMembersResponse{Head: head(n+1, n),
		Members: []*chatv1.Member{member(me, 1), member(other, 1)}})
	return r
}

func head(version, sequence int64) *chatv1.ChatHead {
	return &chatv1.ChatHead{Version: version, Sequence: sequence, MembershipVersion: 1}
}

func overview(id string, version, sequence int64) *chatv1.ChatOverview {
	return &chatv1.ChatOverview{
		Chat: &chatv1.Chat{ChatId: id, Version: 1, MemberCount: 2}, Head: head(version, sequence),
		State: &chatv1.MemberState{},
	}
}

func member(user string, version int64) *chatv1.Member {
	return &chatv1.Member{UserId: user, Version: version, Role: chatv1.MemberRole_MEMBER_ROLE_MEMBER}
}

// message has its sequence as its text.
func message(sequence, version int64) *messagev1.Message {
	return &messagev1.Message{ChatId: "c", Sequence: sequence, Version: version, SenderId: other,
		Content: fmt.Sprint(sequence)}
}

func hello(generation string, full bool) *deliveryv1.Frame {
	return &deliveryv1.Frame{Body: &deliveryv1.Frame_Hello{Hello: &deliveryv1.Hello{
		StreamId: "s", Generation: generation, Full: full,
		ExpiresAt: timestamppb.New(time.Date(2030, 1, 1, 1, 0, 0, 0, time.UTC)),
	}}}
}

func heartbeat(token string) *deliveryv1.Frame {
	return &deliveryv1.Frame{Body: &deliveryv1.Frame_Heartbeat{Heartbeat: &deliveryv1.Heartbeat{Token: token}}}
}

func endFrame(code deliveryv1.EndCode, after time.Duration) *deliveryv1.Frame {
	return &deliveryv1.Frame{Body: &deliveryv1.Frame_End{End: &deliveryv1.End{Code: code,
		ReconnectAfter: durationOf(after), Token: "end"}}}
}

func messageFrame(after, version, sequence int64) *deliveryv1.Frame {
	return &deliveryv1.Frame{ChatId: "c", AfterVersion: after, Version: version,
		Body: &deliveryv1.Frame_Message{Message: message(sequence, version)}}
}

func membershipFrame(after, version int64, user string, kind messagev1.MembershipChange_Kind) *deliveryv1.Frame {
	return &deliveryv1.Frame{ChatId: "c", AfterVersion: after, Version: version, Body: &deliveryv1.Frame_MembershipChange{
		MembershipChange: &messagev1.MembershipChange{UserId: user, Kind: kind, Version: version, MemberCount: 3,
			Role: chatv1.MemberRole_MEMBER_ROLE_MEMBER},
	}}
}

func headFrame(version int64, ov *chatv1.ChatOverview) *deliveryv1.Frame {
	head := &deliveryv1.Head{Version: version, Overview: ov}
	return &deliveryv1.Frame{ChatId: "c", Body: &deliveryv1.Frame_Head{Head: head}}
}

func resetFrame(id string, version int64) *deliveryv1.Frame {
	return &deliveryv1.Frame{ChatId: id, Body: &deliveryv1.Frame_Reset_{Reset_: &deliveryv1.Reset{Version: version}}}
}
