package conformance_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/client"
	"github.com/parley-chat/parley/server/client/conformance"
	"github.com/parley-chat/parley/server/client/device"
)

// script steps a recorded machine by hand through what the explorer's worlds do not have.
type script struct {
	t        *testing.T
	now      time.Time
	cfg      device.Config
	storage  *client.Memory
	m        *conformance.Recorder
	scenario *conformance.Scenario
	open     []device.Call // calls without an answer
	position int64
	ids      int
	// generation and commit are what the server says of its history; it says nothing without a commit.
	generation string
	commit     int64
}

func newScript(t *testing.T, name string, cfg device.Config) *script {
	t.Helper()
	x := &script{t: t, now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC), cfg: cfg, storage: &client.Memory{}}
	x.cfg.UserID, x.cfg.Clock = "ann", func() time.Time { return x.now }
	x.cfg.Rand = func() float64 { return conformance.Random }
	x.cfg.NewID = func() string { x.ids++; return fmt.Sprintf("00000000-0000-4000-8000-%012d", x.ids) }
	x.scenario = &conformance.Scenario{Name: "scripted-" + name, User: "ann", PageSize: cfg.PageSize,
		SubscribeFirst: cfg.SubscribeFirst}
	x.m = conformance.Record(device.New(x.cfg, nil), x.scenario, x.cfg.Clock)
	x.m.Idle = true
	x.take()
	return x
}

func (x *script) take() {
	x.t.Helper()
	for {
		batch, calls := x.m.Take()
		x.m.Events()
		if err := x.storage.Store(&batch); err != nil {
			x.t.Fatal(err)
		}
		if len(calls) == 0 {
			return
		}
		for _, c := range calls {
			if c.Kind == device.Subscribe {
				x.position = 0
			}
			if c.Kind == device.CloseStream {
				x.drop(c.Stream)
				continue
			}
			x.open = append(x.open, c)
		}
	}
}

func (x *script) drop(id int64) {
	x.open = slices.DeleteFunc(x.open, func(c device.Call) bool { return c.ID == id })
}

func (x *script) do(f func(*conformance.Recorder)) *script {
	x.t.Helper()
	f(x.m)
	x.take()
	return x
}

func (x *script) restart() *script {
	x.t.Helper()
	snapshot, err := x.storage.Load()
	if err != nil {
		x.t.Fatal(err)
	}
	x.open = nil
	x.m = x.m.Restart(device.New(x.cfg, snapshot))
	x.take()
	return x
}

func (x *script) pass(d time.Duration) *script {
	x.t.Helper()
	x.now = x.now.Add(d)
	x.take()
	return x
}

func (x *script) call(k device.Kind) device.Call {
	x.t.Helper()
	i := slices.IndexFunc(x.open, func(c device.Call) bool { return c.Kind == k })
	if i < 0 {
		x.t.Fatalf("%s: no call of kind %d among %v", x.scenario.Name, k, x.open)
	}
	return x.open[i]
}

// says is the header Parley-History of an answer.
func (x *script) says() string {
	if x.commit == 0 {
		return ""
	}
	return fmt.Sprint(x.generation, "-", x.commit)
}

// at has the server be at a commit of a generation.
func (x *script) at(generation string, commit int64) *script {
	x.generation, x.commit = generation, commit
	return x
}

func (x *script) hello() *deliveryv1.Frame {
	h := hello()
	h.GetHello().Generation = x.generation
	return h
}

func (x *script) result(k device.Kind, res proto.Message, why *device.Failure) *script {
	x.t.Helper()
	c := x.call(k)
	x.drop(c.ID)
	x.m.Result(c.ID, res, x.says(), why)
	x.take()
	return x
}

func (x *script) answer(k device.Kind, res proto.Message) *script {
	x.t.Helper()
	return x.result(k, res, nil)
}

func (x *script) fail(k device.Kind, code connect.Code, reason string) *script {
	x.t.Helper()
	return x.result(k, nil, &device.Failure{Code: code, Reason: reason})
}

func (x *script) frames(frames ...*deliveryv1.Frame) *script {
	x.t.Helper()
	x.m.Frames(x.call(device.Subscribe).ID, &deliveryv1.SubscribeResponse{FirstPosition: x.position + 1, Frames: frames,
		Commit: x.commit})
	x.position += int64(len(frames))
	x.take()
	return x
}

func (x *script) end(why *device.Failure) *script {
	x.t.Helper()
	c := x.call(device.Subscribe)
	x.drop(c.ID)
	x.m.StreamEnded(c.ID, why)
	x.take()
	return x
}

func (x *script) endsWith(code deliveryv1.EndCode, after time.Duration) *script {
	x.t.Helper()
	return x.frames(&deliveryv1.Frame{Body: &deliveryv1.Frame_End{End: &deliveryv1.End{Code: code, Token: "end",
		ReconnectAfter: durationpb.New(after)}}}).end(&device.Failure{Code: connect.CodeUnavailable})
}

// synced has the chat "c" in its list, and a complete stream.
func (x *script) synced() *script {
	x.t.Helper()
	return x.answer(device.Sync, &deliveryv1.SyncResponse{Overviews: []*chatv1.ChatOverview{overview("c", 4, 3)},
		Token: "t1", Full: true, Generation: "g1"}).frames(hello(), heartbeat("t2"))
}

// loaded has it open besides, with three messages.
func (x *script) loaded() *script {
	x.t.Helper()
	return x.synced().do(func(m *conformance.Recorder) { m.Open("c") }).
		answer(device.ListMessages, &messagev1.ListMessagesResponse{
			Messages: []*messagev1.Message{message(1, 2), message(2, 3), message(3, 4)}, Head: head(4, 3)}).
		answer(device.ListMembers, &chatv1.ListMembersResponse{Head: head(4, 3),
			Members: []*chatv1.Member{member("ann", 1), member("bob", 1)}})
}

func head(version, sequence int64) *chatv1.ChatHead {
	return &chatv1.ChatHead{Version: version, Sequence: sequence, MembershipVersion: 1}
}

func overview(id string, version, sequence int64) *chatv1.ChatOverview {
	return &chatv1.ChatOverview{Chat: &chatv1.Chat{ChatId: id, Version: 1, MemberCount: 2, Name: "Tea"},
		Head: head(version, sequence), State: &chatv1.MemberState{Revision: 1}}
}

// directOverview is that of a direct chat whose last message is somebody's.
func directOverview(sender string, sequence int64) *chatv1.ChatOverview {
	ov := overview("c", sequence+1, sequence)
	ov.Chat.Type, ov.Chat.Name, ov.Chat.DirectUserIds = chatv1.ChatType_CHAT_TYPE_DIRECT, "", []string{"ann", "bob"}
	ov.Head.LastMessage = &chatv1.MessagePreview{Sequence: sequence, SenderId: sender, Text: "text"}
	return ov
}

func member(user string, version int64) *chatv1.Member {
	return &chatv1.Member{UserId: user, Version: version, Role: chatv1.MemberRole_MEMBER_ROLE_MEMBER}
}

func message(sequence, version int64) *messagev1.Message {
	return &messagev1.Message{ChatId: "c", MessageId: fmt.Sprint("m", sequence), Sequence: sequence, Version: version,
		SenderId: "bob", Content: fmt.Sprint("text ", sequence), ContentType: messagev1.ContentType_CONTENT_TYPE_TEXT}
}

func hello() *deliveryv1.Frame {
	return &deliveryv1.Frame{Body: &deliveryv1.Frame_Hello{Hello: &deliveryv1.Hello{StreamId: "s", Generation: "g1",
		ExpiresAt: timestamppb.New(time.Date(2030, 1, 1, 1, 0, 0, 0, time.UTC))}}}
}

func heartbeat(token string) *deliveryv1.Frame {
	return &deliveryv1.Frame{Body: &deliveryv1.Frame_Heartbeat{Heartbeat: &deliveryv1.Heartbeat{Token: token}}}
}

func messageFrame(after, version, sequence int64) *deliveryv1.Frame {
	return &deliveryv1.Frame{ChatId: "c", AfterVersion: after, Version: version,
		Body: &deliveryv1.Frame_Message{Message: message(sequence, version)}}
}

func headFrame(version int64) *deliveryv1.Frame {
	return &deliveryv1.Frame{ChatId: "c",
		Body: &deliveryv1.Frame_Head{Head: &deliveryv1.Head{Version: version, Sequence: version - 1}}}
}

func membershipFrame(version int64, user string, kind messagev1.MembershipChange_Kind, count int32) *deliveryv1.Frame {
	return &deliveryv1.Frame{ChatId: "c", AfterVersion: version - 1, Version: version,
		Body: &deliveryv1.Frame_MembershipChange{MembershipChange: &messagev1.MembershipChange{UserId: user, Kind: kind,
			Version: version, MemberCount: count, Role: chatv1.MemberRole_MEMBER_ROLE_MEMBER}}}
}

func resetFrame(chatID string, version int64) *deliveryv1.Frame {
	return &deliveryv1.Frame{ChatId: chatID, Body: &deliveryv1.Frame_Reset_{Reset_: &deliveryv1.Reset{Version: version}}}
}

func receiptFrame(s *chatv1.MemberState) *deliveryv1.Frame {
	return &deliveryv1.Frame{ChatId: "c", Body: &deliveryv1.Frame_MemberState{MemberState: s}}
}
