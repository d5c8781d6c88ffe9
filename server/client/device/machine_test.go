package device_test

import (
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/client/device"
)

func durationOf(d time.Duration) *durationpb.Duration { return durationpb.New(d) }

const (
	added   = messagev1.MembershipChange_KIND_ADDED
	removed = messagev1.MembershipChange_KIND_REMOVED
)

// A chat with messages 1 to 3 at version 4 gets frames.
func TestFrames(t *testing.T) {
	frame := func(f ...*deliveryv1.Frame) []*deliveryv1.Frame { return f }
	for _, c := range []struct {
		name            string
		frames          []*deliveryv1.Frame
		texts           string
		version, newest int64
		asks            bool
	}{
		{"next", frame(messageFrame(4, 5, 4)), "1234", 5, 5, false},
		{"two", frame(messageFrame(4, 5, 4), messageFrame(5, 6, 5)), "12345", 6, 6, false},
		{"repeated", frame(messageFrame(4, 5, 4), messageFrame(4, 5, 4)), "1234", 5, 5, false},
		{"old", frame(messageFrame(2, 3, 2)), "123", 4, 4, false},
		{"hole", frame(messageFrame(5, 6, 5)), "123", 4, 6, true},
		{"hole, then the missing one", frame(messageFrame(5, 6, 5), messageFrame(4, 5, 4)), "1234", 5, 6, true},
		{"merged changes", frame(messageFrame(1, 5, 4)), "1234", 5, 5, false},
		{"unknown body", frame(&deliveryv1.Frame{ChatId: "c", AfterVersion: 4, Version: 5}, messageFrame(5, 6, 4)), "1234",
			6, 6, false},
		{"without a version", frame(&deliveryv1.Frame{ChatId: "c"}), "123", 4, 4, false},
		{"head", frame(headFrame(9, nil)), "123", 4, 9, true},
		{"old head", frame(headFrame(2, nil)), "123", 4, 4, false},
		{"head in full", frame(headFrame(9, overview("c", 9, 8))), "123", 4, 9, true},
		{"member", frame(membershipFrame(4, 5, "carol", added)), "123", 5, 5, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := loaded(t, 3)
			r.frames(c.frames...)
			v := r.view("c")
			r.expect("messages", r.texts("c"), c.texts)
			r.expect("version", v.Version, c.version)
			r.expect("newest", v.Newest, c.newest)
			r.expect("asks for changes", r.open(device.ListChanges) == 1, c.asks)
			r.expect("asks for the chat", r.open(device.GetChat), 0)
		})
	}
}

func TestMembersFollow(t *testing.T) {
	r := loaded(t, 1)
	r.frames(membershipFrame(2, 3, "carol", added), membershipFrame(3, 4, other, removed))
	v := r.view("c")
	r.expect("members", len(v.Present), 2)
	r.expect("the new one", v.Present[1].UserID, "carol")
	r.expect("count", v.Chat.GetMemberCount(), int32(3))
	r.expect("membership version", v.Head.GetMembershipVersion(), int64(3))
}

func TestRemoval(t *testing.T) {
	for _, c := range []struct {
		name   string
		frames []*deliveryv1.Frame
		kept   bool
	}{
		{"next", []*deliveryv1.Frame{membershipFrame(4, 5, me, removed)}, false},
		{"beyond a hole", []*deliveryv1.Frame{membershipFrame(7, 8, me, removed)}, false},
		{"before what is known", []*deliveryv1.Frame{membershipFrame(2, 3, me, removed)}, true},
		{"of another", []*deliveryv1.Frame{membershipFrame(4, 5, other, removed)}, true},
		{"not a chat of the user", []*deliveryv1.Frame{membershipFrame(0, 0, me, removed)}, false},
		{"and added again", []*deliveryv1.Frame{membershipFrame(4, 5, me, removed), membershipFrame(5, 6, me, added)}, true},
		{"after the addition", []*deliveryv1.Frame{headFrame(9, overview("c", 9, 5)), membershipFrame(4, 5, me, removed)},
			true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := synced(t, overview("c", 4, 3))
			r.m.Open("c")
			r.take()
			r.answer(device.ListMessages, &messagev1.ListMessagesResponse{Head: head(4, 3),
				Messages: []*messagev1.Message{message(1, 2), message(2, 3), message(3, 4)}})
			r.end(0, 0)
			r.pass(time.Minute) // the chat is named in this subscription
			r.frames(append([]*deliveryv1.Frame{hello("g1", false)}, c.frames...)...)
			_, kept := r.m.View("c")
			r.expect("kept", kept, c.kept)
			_, stored := r.snapshot.Chats["c"]
			r.expect("stored", stored, c.kept)
		})
	}
}

func TestOwnAdditionStartsOver(t *testing.T) {
	r := loaded(t, 3)
	r.frames(membershipFrame(4, 5, me, added))
	r.expect("messages", r.texts("c"), "")
	r.expect("stored messages", len(r.snapshot.Messages["c"]), 0)
	r.answer(device.ListMessages, &messagev1.ListMessagesResponse{Head: head(5, 3)})
	r.answer(device.GetChat, &chatv1.GetChatResponse{Overview: overview("c", 5, 3)})
	r.frames(messageFrame(5, 6, 4))
	r.expect("messages", r.texts("c"), "4")
}

func TestChatListFollowsWithoutMessages(t *testing.T) {
	r := synced(t, overview("c", 4, 3))
	r.frames(messageFrame(4, 5, 4))
	v := r.view("c")
	r.expect("unread", v.Unread, int64(4))
	r.expect("preview", v.Head.GetLastMessage().GetText(), "4")
	r.expect("loaded", v.Loaded, false)
	r.expect("asks for the chat", r.open(device.GetChat), 0)
	r.frames(messageFrame(6, 7, 6)) // a hole: the list is read again
	r.answer(device.GetChat, &chatv1.GetChatResponse{Overview: overview("c", 7, 6)})
	r.expect("unread", r.view("c").Unread, int64(6))
	r.expect("asks for more", r.open(device.GetChat)+r.open(device.ListChanges), 0)
}

func TestNewChatOnTheStream(t *testing.T) {
	r := synced(t)
	r.frames(membershipFrame(6, 7, me, added))
	r.answer(device.GetChat, &chatv1.GetChatResponse{Overview: overview("c", 7, 3)})
	r.expect("listed", len(r.m.Chats()), 1)
}

func TestChanges(t *testing.T) {
	change := func(version int64, m *messagev1.Message) *messagev1.Change {
		return &messagev1.Change{Version: version, Body: &messagev1.Change_Message{Message: m}}
	}
	own := &messagev1.Change{Version: 7, Body: &messagev1.Change_MembershipChange{
		MembershipChange: &messagev1.MembershipChange{UserId: me, Kind: added, Version: 7}}}
	for _, c := range []struct {
		name    string
		res     *messagev1.ListChangesResponse
		texts   string
		version int64
		again   bool
	}{
		{"all", &messagev1.ListChangesResponse{Version: 6, Head: head(6, 5),
			Changes: []*messagev1.Change{change(5, message(4, 5)), change(6, message(5, 6))}}, "12345", 6, false},
		{"a page", &messagev1.ListChangesResponse{Version: 5, Head: head(6, 5),
			Changes: []*messagev1.Change{change(5, message(4, 5))}}, "1234", 5, true},
		{"nothing visible", &messagev1.ListChangesResponse{Version: 6, Head: head(6, 3)}, "123", 6, false},
		{"newer", &messagev1.ListChangesResponse{Version: 6, Head: head(9, 5),
			Changes: []*messagev1.Change{change(5, message(4, 5)), change(6, message(5, 6))}}, "12345", 6, true},
		{"reset", &messagev1.ListChangesResponse{Version: 9, Head: head(9, 8), Reset_: true,
			Messages: []*messagev1.Message{message(8, 9)}}, "8", 9, false},
		{"added again", &messagev1.ListChangesResponse{Version: 7, Head: head(7, 5), Changes: []*messagev1.Change{own}}, "",
			0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := loaded(t, 3)
			r.frames(headFrame(6, nil))
			r.answer(device.ListChanges, c.res)
			r.expect("messages", r.texts("c"), c.texts)
			r.expect("version", r.view("c").Version, c.version)
			r.expect("asks again", r.open(device.ListChanges) == 1, c.again)
			r.expect("stored", r.snapshot.Chats["c"].Version, c.version)
			r.expect("stored messages", len(r.snapshot.Messages["c"]), len(c.texts))
		})
	}
}

func TestChangesAfterFrames(t *testing.T) {
	r := loaded(t, 3)
	r.frames(messageFrame(5, 6, 5))
	r.frames(messageFrame(4, 5, 4), messageFrame(5, 6, 5)) // what was missing comes before the answer
	r.answer(device.ListChanges, &messagev1.ListChangesResponse{Version: 5, Head: head(5, 4), Changes: []*messagev1.Change{
		{Version: 5, Body: &messagev1.Change_Message{Message: message(4, 5)}},
	}})
	r.expect("messages", r.texts("c"), "12345")
	r.expect("version", r.view("c").Version, int64(6))
}

func TestNotAMemberCountsOnlyWithoutNews(t *testing.T) {
	for _, news := range []bool{false, true} {
		r := loaded(t, 3)
		r.frames(headFrame(6, nil))
		asked := r.call(device.ListChanges)
		if news {
			r.frames(headFrame(8, nil)) // added again
		}
		r.fail(device.ListChanges, connect.CodePermissionDenied, "NOT_A_MEMBER")
		_, kept := r.m.View("c")
		r.expect("kept", kept, news)
		if news && r.call(device.ListChanges).ID == asked.ID {
			t.Fatal("does not ask again")
		}
	}
}

func TestOldAnswersDoNotBringALeftChatBack(t *testing.T) {
	r := loaded(t, 3)
	r.frames(headFrame(5, nil), resetFrame("c", 5)) // asks for the messages
	r.frames(membershipFrame(5, 6, me, removed))
	r.answer(device.ListMessages, &messagev1.ListMessagesResponse{Head: head(5, 3)})
	r.m.Learn(overview("c", 5, 3), "")
	r.frames(messageFrame(4, 5, 4), headFrame(5, overview("c", 5, 4)))
	r.expect("chats", len(r.m.Chats()), 0)
	r.frames(headFrame(7, overview("c", 7, 4)))
	r.expect("chats", len(r.m.Chats()), 1)
}

func TestResetOfAChat(t *testing.T) {
	r := loaded(t, 3)
	r.frames(resetFrame("c", 9), messageFrame(9, 10, 9))
	r.expect("messages", r.texts("c"), "")
	r.answer(device.ListMessages, &messagev1.ListMessagesResponse{Head: head(9, 8),
		Messages: []*messagev1.Message{message(8, 9)}, HasMore: true})
	r.expect("messages", r.texts("c"), "8")
	r.expect("asks for what came meanwhile", r.open(device.ListChanges), 1)
	r.m.LoadOlder("c")
	r.answer(device.ListChanges, &messagev1.ListChangesResponse{Version: 10, Head: head(10, 9),
		Changes: []*messagev1.Change{
			{Version: 10, Body: &messagev1.Change_Message{Message: message(9, 10)}},
		}})
	r.answer(device.ListMessages, &messagev1.ListMessagesResponse{Head: head(10, 9),
		Messages: []*messagev1.Message{message(6, 7), message(7, 8)}})
	r.expect("messages", r.texts("c"), "6789")
	r.expect("has older", r.view("c").HasOlder, false)
}

func TestReceipts(t *testing.T) {
	r := loaded(t, 3)
	receipt := func(n int64) *deliveryv1.Frame {
		return &deliveryv1.Frame{ChatId: "c", Body: &deliveryv1.Frame_MemberState{
			MemberState: &chatv1.MemberState{ReadSequence: n}}}
	}
	r.frames(receipt(2), receipt(1))
	r.expect("unread", r.view("c").Unread, int64(1))
	r.answer(device.Ack, &deliveryv1.AckResponse{})
	r.m.MarkRead("c", 3)
	r.take()
	r.fail(device.Ack, connect.CodeUnavailable, "")
	r.pass(40 * time.Second)
	r.answer(device.Ack, marked(&chatv1.MemberState{ReadSequence: 3}))
	r.expect("unread", r.view("c").Unread, int64(0))
	r.m.MarkRead("c", 2)
	r.pass(time.Second)
	r.expect("asks again", r.open(device.Ack)+r.open(device.MarkRead), 0)
}
