package device_test

import (
	"fmt"
	"testing"
	"time"

	"connectrpc.com/connect"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/client/device"
)

// marked answers an Ack with states of chats.
func marked(states ...*chatv1.MemberState) *deliveryv1.AckResponse {
	res := &deliveryv1.AckResponse{}
	for _, s := range states {
		res.ReadOutcomes = append(res.ReadOutcomes, &deliveryv1.ReadOutcome{State: s})
	}
	return res
}

func read(n int64) *chatv1.MemberState { return &chatv1.MemberState{ReadSequence: n} }

// reading is a device with the chat "c" of nine messages, and nothing to acknowledge.
func reading(t *testing.T) *fixture {
	t.Helper()
	r := loaded(t, 9)
	r.answer(device.Ack, &deliveryv1.AckResponse{})
	return r
}

// reads are the marks of the Ack under way.
func (r *fixture) reads() string {
	r.t.Helper()
	out := ""
	req, _ := r.call(device.Ack).Request.(*deliveryv1.AckRequest)
	for _, k := range req.GetReadMarks() {
		out += fmt.Sprint(k.GetChatId(), k.GetSequence())
	}
	return out
}

// Marks are sent at once, and then at most every 100 ms, the latest of each chat.
func TestMarksAreGathered(t *testing.T) {
	r := reading(t)
	r.m.MarkRead("c", 1)
	r.take()
	r.expect("first", r.reads(), "c1")
	r.m.MarkRead("c", 2)
	r.take()
	r.expect("under way", r.reads(), "c1")
	r.answer(device.Ack, marked(read(1)))
	r.m.MarkRead("c", 3)
	r.take()
	r.expect("at once", r.open(device.Ack), 0)
	at, ok := r.m.Deadline()
	r.expect("wakes", ok && at.Sub(r.now) == 100*time.Millisecond, true)
	r.pass(100 * time.Millisecond)
	r.expect("second", r.reads(), "c3")
	r.answer(device.Ack, marked(read(3)))
	r.expect("read", r.view("c").State.GetReadSequence(), int64(3))
	r.pass(time.Second)
	r.expect("sent again", r.open(device.Ack)+r.open(device.MarkRead), 0)
}

// What is read while an earlier mark is under way is sent, whichever way that goes.
func TestMarkWhileAnotherIsUnderWay(t *testing.T) {
	r := reading(t)
	r.m.MarkRead("c", 1)
	r.take()
	r.m.MarkRead("c", 4)
	r.answer(device.Ack, marked(read(1)))
	r.pass(time.Second)
	r.expect("with an Ack", r.reads(), "c4")

	r = reading(t)
	r.end(0, 0)
	r.m.MarkRead("c", 1)
	r.take()
	r.m.MarkRead("c", 4)
	r.answer(device.MarkRead, &messagev1.MarkReadResponse{State: read(1)})
	again, _ := r.call(device.MarkRead).Request.(*messagev1.MarkReadRequest)
	r.expect("without a stream", again.GetSequence(), int64(4))
}

// A mark that an Ack does not bring is sent in another way, unless the server refuses it.
func TestMarksThatAckDoesNotBring(t *testing.T) {
	for name, tt := range map[string]struct {
		end   func(r *fixture) // of the Ack
		marks int              // calls of MarkRead then
		acks  int              // a minute later
		chats int
	}{
		"an earlier release": {func(r *fixture) { r.answer(device.Ack, &deliveryv1.AckResponse{}) }, 1, 0, 1},
		"the stream is gone": {func(r *fixture) { r.fail(device.Ack, connect.CodeNotFound, "STREAM_GONE") }, 1, 0, 1},
		"unavailable":        {func(r *fixture) { r.fail(device.Ack, connect.CodeUnavailable, "") }, 0, 1, 1},
		"refused": {func(r *fixture) {
			r.answer(device.Ack, &deliveryv1.AckResponse{ReadOutcomes: []*deliveryv1.ReadOutcome{{Reason: "FORBIDDEN"}}})
		}, 0, 0, 1},
		"not a member": {func(r *fixture) {
			r.answer(device.Ack, &deliveryv1.AckResponse{ReadOutcomes: []*deliveryv1.ReadOutcome{{Reason: "NOT_A_MEMBER"}}})
		}, 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := reading(t)
			r.m.MarkRead("c", 2)
			r.take()
			tt.end(r)
			r.expect("calls", r.open(device.MarkRead), tt.marks)
			r.pass(200 * time.Millisecond)
			r.expect("Acks at once", r.open(device.Ack), 0)
			r.pass(40 * time.Second)
			r.expect("Acks", r.open(device.Ack), tt.acks)
			r.expect("chats", len(r.m.Chats()), tt.chats)
		})
	}
}

// A server that takes no marks with Acks gets each by a call, until the next stream.
func TestMarksOfAnEarlierRelease(t *testing.T) {
	r := reading(t)
	r.m.MarkRead("c", 2)
	r.take()
	r.answer(device.Ack, &deliveryv1.AckResponse{})
	r.answer(device.MarkRead, &messagev1.MarkReadResponse{State: read(2)})
	r.m.MarkRead("c", 3)
	r.pass(time.Second)
	r.answer(device.MarkRead, &messagev1.MarkReadResponse{State: read(3)})
	r.expect("Acks", r.open(device.Ack), 0)
	r.end(0, 0)
	r.pass(time.Minute)
	r.frames(hello("g1", false), heartbeat("t3"))
	r.answer(device.Ack, &deliveryv1.AckResponse{})
	r.m.MarkRead("c", 4)
	r.take()
	r.expect("the next stream", r.reads(), "c4")
}

// The answer to an Ack to another store says nothing about this one: the mark is sent again.
func TestMarkOfAnotherStore(t *testing.T) {
	r := reading(t)
	r.m.MarkRead("c", 2)
	r.take()
	old := r.call(device.Ack)
	r.forget(old.ID)
	r.end(0, 0)
	r.pass(time.Minute)
	r.frames(hello("g2", true), headFrame(4, overview("c", 4, 3)), heartbeat("t3"))
	r.m.Result(old.ID, marked(read(2)), "", nil)
	r.take()
	r.expect("read", r.view("c").State.GetReadSequence(), int64(0))
	r.expect("to be sent", r.view("c").ReadTo, int64(2))
}

// An Ack has at most 64 marks; the others go with the next one.
func TestManyMarks(t *testing.T) {
	var chats []*chatv1.ChatOverview
	for i := range 65 {
		chats = append(chats, overview(fmt.Sprintf("c%02d", i), 4, 3))
	}
	r := synced(t, chats...)
	r.answer(device.Ack, &deliveryv1.AckResponse{})
	for _, c := range chats {
		r.m.MarkRead(c.GetChat().GetChatId(), 1)
	}
	r.take()
	sent, _ := r.call(device.Ack).Request.(*deliveryv1.AckRequest)
	r.expect("marks", len(sent.GetReadMarks()), 64)
	res := &deliveryv1.AckResponse{}
	for range sent.GetReadMarks() {
		res.ReadOutcomes = append(res.ReadOutcomes, &deliveryv1.ReadOutcome{State: read(1)})
	}
	r.answer(device.Ack, res)
	r.pass(time.Second)
	r.expect("marks of the next", len(r.reads()), len("c641"))
}
