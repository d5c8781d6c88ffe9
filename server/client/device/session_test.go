package device_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/client/device"
)

func TestSyncPages(t *testing.T) {
	r := newFixture(t, nil)
	r.expect("subscribes before it has a token", r.open(device.Subscribe), 0)
	r.answer(device.Sync, &deliveryv1.SyncResponse{Overviews: []*chatv1.ChatOverview{overview("a", 2, 1)},
		NextPageToken: "p", Full: true, Generation: "g1"})
	r.expect("token", r.snapshot.Session.Token, "")
	r.fail(device.Sync, connect.CodeUnavailable, "")
	r.expect("syncs at once again", r.open(device.Sync), 0)
	r.pass(time.Minute)
	page, _ := r.call(device.Sync).Request.(*deliveryv1.SyncRequest)
	r.expect("page", page.GetPageToken(), "p")
	r.answer(device.Sync, &deliveryv1.SyncResponse{
		Overviews: []*chatv1.ChatOverview{overview("b", 2, 1)}, LeftChats: []*deliveryv1.LeftChat{{ChatId: "a", Version: 3}},
		Full: true, Generation: "g1", Token: "t1",
	})
	r.expect("chats", slices.Equal(r.m.Chats(), []string{"b"}), true)
	r.expect("token", r.snapshot.Session, device.Session{Token: "t1", Generation: "g1"})
	sub, _ := r.call(device.Subscribe).Request.(*deliveryv1.SubscribeRequest)
	r.expect("subscribes with", sub.GetToken(), "t1")
}

func TestTokens(t *testing.T) {
	r := loaded(t, 3)
	r.expect("of the heartbeat", r.snapshot.Session.Token, "t2")
	r.frames(heartbeat(""))
	r.expect("of an empty heartbeat", r.snapshot.Session.Token, "t2")
	r.end(deliveryv1.EndCode_END_CODE_DRAIN, 0)
	r.expect("of the end", r.snapshot.Session.Token, "end")
	sub, _ := r.call(device.Subscribe).Request.(*deliveryv1.SubscribeRequest)
	r.expect("subscribes with", sub.GetToken(), "end")
	r.expect("names", fmt.Sprint(sub.GetKnownChats()), fmt.Sprint([]*deliveryv1.KnownChat{{ChatId: "c", Version: 4}}))

	r.frames(hello("g1", false), resetFrame("", 0), heartbeat("t3")) // the heartbeat is of before the reset
	r.expect("after a reset", r.snapshot.Session.Token, "")
	r.expect("messages", r.texts("c"), "")
	r.answer(device.Sync, &deliveryv1.SyncResponse{Full: true, Generation: "g1", Token: "t4",
		Overviews: []*chatv1.ChatOverview{overview("c", 4, 3)}})
	r.expect("of the synchronisation", r.snapshot.Session.Token, "t4")
}

func TestFullHelloReplacesTheList(t *testing.T) {
	r := synced(t, overview("a", 2, 1), overview("c", 4, 3), overview("d", 4, 3))
	r.end(0, 0)
	r.pass(time.Minute)
	r.frames(hello("g1", true), headFrame(4, overview("c", 4, 3)), heartbeat(""))
	r.expect("chats before the token", len(r.m.Chats()), 3)
	r.m.Learn(overview("d", 9, 3), "") // read while the list was on its way
	r.frames(heartbeat("t3"))
	r.expect("chats", fmt.Sprint(r.m.Chats()), "[c d]")
}

func TestOtherGeneration(t *testing.T) {
	r := loaded(t, 3)
	r.frames(headFrame(5, nil))
	old := r.call(device.ListChanges)
	r.end(0, 0)
	r.pass(time.Minute)
	r.frames(hello("g2", true))
	r.expect("token", r.snapshot.Session, device.Session{Generation: "g2"})
	r.expect("messages", r.texts("c"), "")
	r.m.Result(old.ID, &messagev1.ListChangesResponse{Version: 9, Head: head(9, 8)}, "", nil)
	r.take()
	r.frames(headFrame(2, overview("c", 2, 1)), heartbeat("t9"))
	r.answer(device.ListMessages, &messagev1.ListMessagesResponse{Head: head(2, 1),
		Messages: []*messagev1.Message{message(1, 2)}})
	v := r.view("c")
	r.expect("version", v.Version, int64(2))
	r.expect("newest", v.Newest, int64(2))
	r.expect("sequence", v.Head.GetSequence(), int64(1))
	r.expect("token", r.snapshot.Session.Token, "t9")
}

// Found by the explorer: the store was restored to where less had been read.
func TestMarksOfAnotherGenerationAreForgotten(t *testing.T) {
	r := loaded(t, 3)
	ov := overview("c", 4, 3)
	ov.State = &chatv1.MemberState{ReadSequence: 3, JoinedSequence: 2}
	r.frames(headFrame(4, ov))
	r.end(0, 0)
	r.pass(time.Minute)
	r.frames(hello("g2", true), headFrame(3, overview("c", 3, 2)), heartbeat("t9"))
	r.expect("read", r.view("c").State.GetReadSequence(), int64(0))
	r.expect("joined", r.view("c").State.GetJoinedSequence(), int64(0))
}

// Found by the explorer: a chat was read before the store was restored, the first
// list came after.
func TestAnswersBeforeTheFirstGeneration(t *testing.T) {
	r := newFixture(t, nil)
	r.m.Open("c")
	r.take()
	r.answer(device.GetChat, &chatv1.GetChatResponse{Overview: overview("c", 9, 8)})
	r.answer(device.Sync, &deliveryv1.SyncResponse{Overviews: []*chatv1.ChatOverview{overview("c", 4, 3)}, Token: "t1",
		Full: true, Generation: "g2"})
	v := r.view("c")
	r.expect("newest", v.Newest, int64(4))
	r.expect("sequence", v.Head.GetSequence(), int64(3))
}

// Found by the explorer: the user was removed from the only chat known, and the store
// restored to before that, all before the first list.
func TestRemovalBeforeTheFirstGeneration(t *testing.T) {
	r := newFixture(t, nil)
	id := r.m.Send("c", "x")
	r.take()
	r.answer(device.SendMessage, &messagev1.SendMessageResponse{MessageId: "m", Sequence: 8, Version: 9,
		ClientMessageId: id})
	r.fail(device.GetChat, connect.CodePermissionDenied, "NOT_A_MEMBER")
	r.expect("chats", len(r.m.Chats()), 0)
	r.answer(device.Sync, &deliveryv1.SyncResponse{Overviews: []*chatv1.ChatOverview{overview("c", 4, 3)}, Token: "t1",
		Full: true, Generation: "g2"})
	r.expect("chats", len(r.m.Chats()), 1)
}

// Found by the explorer: a restored store answers with less than was heard of, and
// the device asked again and again without a pause.
func TestOlderAnswerIsNotAskedForAgainAtOnce(t *testing.T) {
	r := synced(t, overview("c", 4, 3))
	r.frames(headFrame(9, nil))
	r.answer(device.GetChat, &chatv1.GetChatResponse{Overview: overview("c", 4, 3)})
	r.expect("asks for the chat", r.open(device.GetChat), 0)
	r.pass(time.Minute)
	r.expect("asks for the chat", r.open(device.GetChat), 1)
}

// Found by the explorer: the answer about a chat came while the first list was on
// its way, which does not name the chat.
func TestAnswerBesideTheFirstList(t *testing.T) {
	r := newFixture(t, nil)
	r.m.Open("c")
	r.take()
	old := r.call(device.GetChat)
	r.forget(old.ID)
	r.m.Result(old.ID, &chatv1.GetChatResponse{Overview: overview("c", 4, 3)}, "", nil)
	r.take()
	r.answer(device.Sync, &deliveryv1.SyncResponse{Token: "t1", Full: true, Generation: "g1"})
	r.fail(device.GetChat, connect.CodePermissionDenied, "NOT_A_MEMBER")
	r.expect("chats", len(r.m.Chats()), 0)
}

// The answer to a send comes late, from before the store was restored: the message
// is sent again, because it may be lost.
func TestSendAcrossGenerations(t *testing.T) {
	r := loaded(t, 3)
	id := r.m.Send("c", "x")
	r.take()
	old := r.call(device.SendMessage)
	r.forget(old.ID)
	r.end(0, 0)
	r.pass(time.Minute)
	r.frames(hello("g2", true), headFrame(2, overview("c", 2, 1)), heartbeat("t9"))
	r.m.Result(old.ID, &messagev1.SendMessageResponse{Sequence: 4, Version: 5, ClientMessageId: id}, "", nil)
	r.take()
	r.expect("newest", r.view("c").Newest, int64(2))
	r.expect("unsent", len(r.m.Outbox()), 1)
	r.answer(device.SendMessage, &messagev1.SendMessageResponse{Sequence: 2, Version: 3, ClientMessageId: id})
	r.expect("unsent", len(r.m.Outbox()), 0)
	r.expect("newest", r.view("c").Newest, int64(3))
}

// Found by the explorer: the same before the device has heard of any generation.
func TestSendBeforeTheFirstGeneration(t *testing.T) {
	r := newFixture(t, nil)
	id := r.m.Send("c", "x")
	r.take()
	old := r.call(device.SendMessage)
	r.forget(old.ID)
	r.answer(device.Sync, &deliveryv1.SyncResponse{Overviews: []*chatv1.ChatOverview{overview("c", 2, 1)}, Token: "t1",
		Full: true, Generation: "g2"})
	r.m.Result(old.ID, &messagev1.SendMessageResponse{Sequence: 4, Version: 5, ClientMessageId: id}, "", nil)
	r.take()
	r.expect("unsent", len(r.m.Outbox()), 1)
	r.answer(device.SendMessage, &messagev1.SendMessageResponse{Sequence: 2, Version: 3, ClientMessageId: id})
	r.expect("unsent", len(r.m.Outbox()), 0)
}

func TestEnds(t *testing.T) {
	for _, c := range []struct {
		code       deliveryv1.EndCode
		after      time.Duration
		wait       time.Duration // until the next stream; negative: none
		refreshing bool
		stopped    string
	}{
		{deliveryv1.EndCode_END_CODE_DRAIN, 3 * time.Second, 3 * time.Second, false, ""},
		{deliveryv1.EndCode_END_CODE_SLOW, 0, 500 * time.Millisecond, false, ""},
		{deliveryv1.EndCode_END_CODE_RESYNC, 2 * time.Second, 2 * time.Second, false, ""},
		{deliveryv1.EndCode_END_CODE_TOKEN_EXPIRED, 0, -1, true, ""},
		{deliveryv1.EndCode_END_CODE_SESSION_REVOKED, 0, -1, false, "SESSION_REVOKED"},
		{deliveryv1.EndCode_END_CODE_REPLACED, 0, -1, false, "REPLACED"},
		{99, time.Second, time.Second, false, ""}, // of a newer release
		{0, 0, 500 * time.Millisecond, false, ""},
	} {
		t.Run(c.code.String(), func(t *testing.T) {
			r := loaded(t, 1)
			r.seen = nil
			r.end(c.code, c.after)
			stopped := ""
			for _, e := range r.seen {
				if e.Stopped != nil {
					stopped = e.Stopped.Reason
				}
			}
			r.expect("stopped", stopped, c.stopped)
			r.expect("refreshes", r.open(device.Refresh) == 1, c.refreshing)
			r.expect("subscribes at once", r.open(device.Subscribe), 0)
			if c.wait >= 0 {
				at, ok := r.m.Deadline()
				r.expect("has a deadline", ok, true)
				r.expect("waits", at.Sub(r.now), c.wait)
				r.pass(c.wait)
				r.expect("subscribes", r.open(device.Subscribe), 1)
				return
			}
			r.pass(time.Hour)
			r.expect("subscribes later", r.open(device.Subscribe), 0)
			if c.refreshing {
				r.answer(device.Refresh, nil)
			} else {
				r.m.Resume()
				r.take()
				r.answer(device.Refresh, nil)
			}
			r.expect("subscribes", r.open(device.Subscribe), 1)
		})
	}
}

func TestBackoff(t *testing.T) {
	r := synced(t)
	for _, want := range []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second,
		8 * time.Second, 16 * time.Second, 30 * time.Second, 30 * time.Second} {
		r.end(0, 0)
		at, _ := r.m.Deadline()
		r.expect("wait", at.Sub(r.now), want)
		r.pass(want)
	}
	r.frames(hello("g1", false), heartbeat("t"))
	r.end(0, 0)
	at, _ := r.m.Deadline()
	r.expect("wait after a good stream", at.Sub(r.now), 500*time.Millisecond)
}

func TestFailures(t *testing.T) {
	t.Run("invalid token", func(t *testing.T) {
		r := loaded(t, 3)
		r.end(0, 0)
		r.pass(time.Minute)
		c := r.call(device.Subscribe)
		r.forget(c.ID)
		r.m.StreamEnded(c.ID, &device.Failure{Code: connect.CodeInvalidArgument, Reason: "INVALID_TOKEN"})
		r.take()
		r.expect("token", r.snapshot.Session.Token, "")
		r.expect("messages", r.texts("c"), "123")
		r.call(device.Sync)
	})
	t.Run("unauthenticated", func(t *testing.T) {
		r := synced(t, overview("c", 2, 1))
		r.m.Open("c")
		r.take()
		r.fail(device.ListMessages, connect.CodeUnauthenticated, "TOKEN_EXPIRED")
		r.fail(device.Refresh, connect.CodeUnavailable, "")
		r.pass(time.Minute)
		r.answer(device.Refresh, nil)
		r.call(device.ListMessages)
	})
	t.Run("refused for good", func(t *testing.T) {
		r := synced(t)
		r.end(deliveryv1.EndCode_END_CODE_TOKEN_EXPIRED, 0)
		r.fail(device.Refresh, connect.CodeUnauthenticated, "")
		r.pass(time.Hour)
		r.expect("calls", r.open(device.Refresh)+r.open(device.Subscribe), 0)
	})
	t.Run("position missing", func(t *testing.T) {
		r := synced(t, overview("c", 2, 1))
		r.next++
		r.frames(messageFrame(2, 3, 2))
		r.call(device.CloseStream)
		r.expect("version", r.view("c").Newest, int64(2))
	})
	t.Run("no progress", func(t *testing.T) {
		r := loaded(t, 3)
		r.frames(headFrame(9, nil))
		r.answer(device.ListChanges, &messagev1.ListChangesResponse{Version: 4, Head: head(4, 3)})
		r.expect("asks at once", r.open(device.ListChanges), 0)
		r.pass(time.Minute)
		r.call(device.ListChanges)
	})
}

func TestSilence(t *testing.T) {
	r := synced(t)
	r.pass(49 * time.Second)
	r.frames(heartbeat("t"))
	r.pass(49 * time.Second)
	r.expect("gives up", r.open(device.CloseStream), 0)
	r.pass(time.Second)
	r.expect("gives up", r.call(device.CloseStream).Stream, r.call(device.Subscribe).ID)
	late := r.call(device.Subscribe)
	r.forget(late.ID)
	r.pass(time.Minute)
	r.call(device.Subscribe)
	r.m.StreamEnded(late.ID, nil) // of the old stream
	r.take()
	r.expect("streams", r.open(device.Subscribe), 1)
}

func TestAck(t *testing.T) {
	r := synced(t, overview("c", 4, 3))
	ack := func() int64 {
		req, _ := r.call(device.Ack).Request.(*deliveryv1.AckRequest)
		return req.GetPosition()
	}
	r.expect("position", ack(), int64(2))
	r.frames(messageFrame(4, 5, 4))
	r.answer(device.Ack, &deliveryv1.AckResponse{})
	r.expect("acks", r.open(device.Ack), 0)
	r.pass(time.Second)
	r.expect("position", ack(), int64(3))
	r.fail(device.Ack, connect.CodeNotFound, "STREAM_GONE")
	r.frames(messageFrame(5, 6, 5))
	r.pass(time.Second)
	r.expect("position", ack(), int64(4))
}

func TestExtend(t *testing.T) {
	r := synced(t)
	for range 72 {
		r.pass(49 * time.Second)
		r.frames(heartbeat("t"))
	}
	r.expect("extends", r.open(device.Extend), 0)
	r.pass(12 * time.Second)
	r.answer(device.Extend, &deliveryv1.ExtendResponse{ExpiresAt: timestamppb.New(r.now.Add(time.Hour))})
	r.frames(heartbeat("t"))
	r.pass(49 * time.Second)
	r.expect("extends again", r.open(device.Extend), 0)
}

func TestSend(t *testing.T) {
	sent := func(id string, sequence, version int64) *messagev1.SendMessageResponse {
		return &messagev1.SendMessageResponse{MessageId: "m", Sequence: sequence, Version: version, ClientMessageId: id}
	}
	t.Run("shown at once", func(t *testing.T) {
		r := loaded(t, 3)
		id := r.m.Send("c", "4")
		r.take()
		r.expect("stored before it is sent", len(r.snapshot.Outbox), 1)
		r.answer(device.SendMessage, sent(id, 4, 5))
		r.expect("messages", r.texts("c"), "1234")
		r.expect("stored", len(r.snapshot.Outbox), 0)
		r.frames(messageFrame(4, 5, 4))
		r.expect("messages", r.texts("c"), "1234")
		r.expect("own messages", r.view("c").State.GetOwnSequence(), int64(4))
		r.expect("counted once", r.view("c").State.GetOwnUnreadCount(), int64(1))
		r.expect("unread", r.view("c").Unread, int64(3))
	})
	t.Run("beyond a hole", func(t *testing.T) {
		r := loaded(t, 3)
		id := r.m.Send("c", "5")
		r.take()
		r.answer(device.SendMessage, sent(id, 5, 6))
		r.expect("asks at once", r.open(device.ListChanges), 0)
		r.frames(messageFrame(4, 5, 4), messageFrame(5, 6, 5))
		r.expect("messages", r.texts("c"), "12345")
		r.pass(time.Minute)
		r.expect("asks", r.open(device.ListChanges), 0)
	})
	t.Run("after a restart, with the same id", func(t *testing.T) {
		r := loaded(t, 3)
		id := r.m.Send("c", "4")
		r.m.Send("c", "5")
		r.take()
		r.expect("sent", r.open(device.SendMessage), 1)
		r.restart()
		req, _ := r.call(device.SendMessage).Request.(*messagev1.SendMessageRequest)
		r.expect("id", req.GetClientMessageId(), id)
		r.fail(device.SendMessage, connect.CodeUnavailable, "")
		r.pass(time.Minute)
		req, _ = r.call(device.SendMessage).Request.(*messagev1.SendMessageRequest)
		r.expect("id", req.GetClientMessageId(), id)
	})
	t.Run("refused", func(t *testing.T) {
		r := loaded(t, 3)
		r.m.Send("c", "4")
		r.take()
		r.seen = nil
		r.fail(device.SendMessage, connect.CodePermissionDenied, "NOT_A_MEMBER")
		r.expect("reported", r.seen[len(r.seen)-1].SendFailed != nil || r.seen[0].SendFailed != nil, true)
		r.expect("stored", len(r.snapshot.Outbox), 0)
		r.fail(device.GetChat, connect.CodePermissionDenied, "NOT_A_MEMBER")
		r.expect("chats", len(r.m.Chats()), 0)
	})
	t.Run("too old to be safe", func(t *testing.T) {
		r := loaded(t, 3)
		r.m.Send("c", "4")
		r.take()
		r.fail(device.SendMessage, connect.CodeUnavailable, "")
		r.pass(7 * 24 * time.Hour)
		r.expect("sends", r.open(device.SendMessage), 0)
		r.expect("stored", len(r.snapshot.Outbox), 0)
	})
}

func TestRestart(t *testing.T) {
	r := loaded(t, 3)
	r.frames(messageFrame(4, 5, 4), headFrame(7, nil))
	r.restart()
	r.expect("messages", r.texts("c"), "1234")
	r.expect("newest", r.view("c").Newest, int64(7))
	r.call(device.ListChanges)
	sub, _ := r.call(device.Subscribe).Request.(*deliveryv1.SubscribeRequest)
	r.expect("token", sub.GetToken(), "t2")
	r.expect("known", sub.GetKnownChats()[0].GetVersion(), int64(5))
}
