package api_test

import (
	"fmt"
	"slices"
	"testing"

	"connectrpc.com/connect"

	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// readUpTo is what the store has of a user's mark.
func (s *server) readUpTo(user, id string) int64 {
	s.Helper()
	item, err := s.store.Store.Get(s.Context(), table.UserChatKey(user, id), store.Strong)
	s.must(err)
	return table.UserChatFrom(user, id, item).ReadSequence
}

// An Ack records read marks as MarkRead does: each for itself, durable before the answer,
// and shown to the user's streams; also those of a stream that is gone.
func TestMarksOfAnAck(t *testing.T) {
	s := newServer(t)
	ann := s.ann()
	var ids []string
	for range 3 {
		id := s.group("bob")
		for range 3 {
			_, err := s.chats.Send(t.Context(), chat.Send{Caller: "bob", ChatID: id, Content: "x", ContentType: 1})
			s.must(err)
		}
		ids = append(ids, id)
	}
	s.must(s.chats.EnsureUser(t.Context(), "dan"))
	foreign, err := s.chats.CreateGroup(t.Context(), chat.CreateGroup{Caller: "bob", Name: "g", Members: []string{"dan"}})
	s.must(err)
	stream, err := ann.delivery.Subscribe(t.Context(), &deliveryv1.SubscribeRequest{})
	s.must(err)
	defer stream.Close()
	var frames []*deliveryv1.Frame
	next := func() {
		if !stream.Receive() {
			t.Fatal(stream.Err())
		}
		frames = append(frames, stream.Msg().GetFrames()...)
	}
	live := func(f *deliveryv1.Frame) bool { return f.GetHeartbeat() != nil }
	for !slices.ContainsFunc(frames, live) { // before, marks may come in heads
		next()
	}
	streamID := frames[0].GetHello().GetStreamId()
	res, err := ann.delivery.Ack(t.Context(), &deliveryv1.AckRequest{StreamId: streamID, Position: 1,
		ReadMarks: []*deliveryv1.ReadMark{
			{ChatId: ids[0], Sequence: 2}, {ChatId: foreign.ChatID, Sequence: 1}, {ChatId: ids[1], Sequence: 9},
			{ChatId: chat.NewID("chat_"), Sequence: 1}, {ChatId: ids[2], Sequence: 1},
		}})
	s.must(err)
	got := ""
	for _, o := range res.GetReadOutcomes() {
		state := o.GetState()
		got += fmt.Sprintf("%d of %d unread %s; ", state.GetReadSequence(), state.GetUnreadCount(), o.GetReason())
	}
	testkit.Equal(t, "outcomes", got,
		"2 of 1 unread ; 0 of 0 unread NOT_A_MEMBER; 3 of 0 unread ; 0 of 0 unread NOT_A_MEMBER; 1 of 2 unread ; ")
	receipts := map[string]int64{}
	for len(receipts) < 3 {
		next()
		for _, f := range frames {
			if f.GetMemberState() != nil {
				receipts[f.GetChatId()] = f.GetMemberState().GetReadSequence()
			}
		}
	}
	for i, want := range []int64{2, 3, 1} {
		testkit.Equal(t, "in the store", s.readUpTo("ann", ids[i]), want)
		testkit.Equal(t, "on the stream", receipts[ids[i]], want)
	}
	// A lower mark, as of a repetition, changes nothing; a gone stream or a wrong position
	// takes nothing back.
	_, err = ann.delivery.Ack(t.Context(), &deliveryv1.AckRequest{StreamId: "p.str_1",
		ReadMarks: []*deliveryv1.ReadMark{{ChatId: ids[0], Sequence: 3}}})
	wantCode(t, "a gone stream", err, connect.CodeNotFound, "STREAM_GONE")
	_, err = ann.delivery.Ack(t.Context(), &deliveryv1.AckRequest{StreamId: streamID, Position: 1 << 40,
		ReadMarks: []*deliveryv1.ReadMark{{ChatId: ids[1], Sequence: 1}}})
	wantCode(t, "a wrong position", err, connect.CodeOutOfRange, "POSITION_NOT_SENT")
	testkit.Equal(t, "although the stream is gone", s.readUpTo("ann", ids[0]), 3)
	testkit.Equal(t, "goes back", s.readUpTo("ann", ids[1]), 3)
}

// Marks are checked like those of MarkRead, and an Ack has at most 64.
func TestMarksAreChecked(t *testing.T) {
	s := newServer(t)
	id := s.group("bob")
	_, err := s.chats.Send(t.Context(), chat.Send{Caller: "bob", ChatID: id, Content: "x", ContentType: 1})
	s.must(err)
	many := make([]*deliveryv1.ReadMark, 65)
	for i := range many {
		many[i] = &deliveryv1.ReadMark{ChatId: id, Sequence: 1}
	}
	for name, reads := range map[string][]*deliveryv1.ReadMark{
		"sequence": {{ChatId: id}}, "chat": {{ChatId: "x", Sequence: 1}}, "number": many,
	} {
		_, err := s.ann().delivery.Ack(t.Context(), &deliveryv1.AckRequest{StreamId: "p.str_1", ReadMarks: reads})
		wantCode(t, name, err, connect.CodeInvalidArgument, "INVALID_ARGUMENT")
	}
	testkit.Equal(t, "in the store", s.readUpTo("ann", id), 0)
	_, err = s.ann().delivery.Ack(t.Context(), &deliveryv1.AckRequest{StreamId: "p.str_1", ReadMarks: many[1:]})
	wantCode(t, "64", err, connect.CodeNotFound, "STREAM_GONE")
	testkit.Equal(t, "in the store", s.readUpTo("ann", id), 1)
}
