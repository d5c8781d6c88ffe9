package device_test

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/client/device"
)

func receiptFrame(s *chatv1.MemberState) *deliveryv1.Frame {
	return &deliveryv1.Frame{ChatId: "c", Body: &deliveryv1.Frame_MemberState{MemberState: s}}
}

func withState(s *chatv1.MemberState) *chatv1.ChatOverview {
	ov := overview("c", 4, 3)
	ov.State = s
	return ov
}

// Another device mutes the chat, or puts it away. Whatever the order in which copies of
// the user's state arrive, the newest stands, across a restart too.
func TestNewestStateWins(t *testing.T) {
	until := timestamppb.New(time.Date(2031, 1, 1, 0, 0, 0, 0, time.UTC))
	plain := &chatv1.MemberState{Revision: 5, Role: chatv1.MemberRole_MEMBER_ROLE_MEMBER}
	muted := &chatv1.MemberState{Revision: 6, MutedUntil: until, Archived: true, ReadSequence: 2,
		Role: chatv1.MemberRole_MEMBER_ROLE_ADMIN}
	again := &chatv1.MemberState{Revision: 7, ReadSequence: 1, Role: chatv1.MemberRole_MEMBER_ROLE_MEMBER}
	for name, c := range map[string]struct {
		bring func(r *fixture)
		muted bool
	}{
		"the list was read before the mute": {func(r *fixture) {
			r.frames(receiptFrame(muted), headFrame(4, withState(plain)))
		}, true},
		"receipts in the other order": {func(r *fixture) { r.frames(receiptFrame(again), receiptFrame(muted)) }, false},
		"in order":                    {func(r *fixture) { r.frames(receiptFrame(muted), receiptFrame(again)) }, false},
		"an old answer": {func(r *fixture) {
			r.answer(device.Ack, &deliveryv1.AckResponse{})
			r.m.MarkRead("c", 1)
			r.take()
			r.frames(receiptFrame(muted))
			r.answer(device.Ack, marked(plain))
		}, true},
		"the same once more": {func(r *fixture) { r.frames(receiptFrame(muted), receiptFrame(muted)) }, true},
		"from a server of old": {func(r *fixture) { r.frames(receiptFrame(muted), receiptFrame(&chatv1.MemberState{})) },
			true},
		"an own message meanwhile": {func(r *fixture) {
			r.frames(receiptFrame(muted), ownMessage(), receiptFrame(plain))
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := loaded(t, 3)
			r.frames(receiptFrame(plain))
			c.bring(r)
			for range 2 {
				s := r.view("c").State
				if (s.GetMutedUntil() != nil) != c.muted || s.GetArchived() != c.muted ||
					(s.GetRole() == chatv1.MemberRole_MEMBER_ROLE_ADMIN) != c.muted {
					t.Errorf("the state is %v", s)
				}
				r.restart()
			}
		})
	}
}

func ownMessage() *deliveryv1.Frame {
	f := messageFrame(4, 5, 4)
	f.GetMessage().SenderId = me
	return f
}

// Servers that do not count revisions: the last word stands, marks only go up.
func TestStateWithoutRevisions(t *testing.T) {
	r := loaded(t, 3)
	r.frames(receiptFrame(&chatv1.MemberState{Archived: true, ReadSequence: 2}),
		receiptFrame(&chatv1.MemberState{ReadSequence: 1}))
	s := r.view("c").State
	r.expect("archived", s.GetArchived(), false)
	r.expect("read", s.GetReadSequence(), int64(2))
}

// The user's own role changes: the state is read again.
func TestOwnRoleIsReadAgain(t *testing.T) {
	r := loaded(t, 3)
	r.frames(membershipFrame(4, 5, me, messagev1.MembershipChange_KIND_ROLE_CHANGED))
	ov := overview("c", 5, 3)
	ov.State = &chatv1.MemberState{Revision: 9, Role: chatv1.MemberRole_MEMBER_ROLE_ADMIN}
	r.answer(device.GetChat, &chatv1.GetChatResponse{Overview: ov})
	r.expect("role", r.view("c").State.GetRole(), chatv1.MemberRole_MEMBER_ROLE_ADMIN)
	r.expect("messages", r.texts("c"), "123")
	r.expect("asks again", r.open(device.GetChat), 0)
}

// A member list can be newer than the changes that come after it: an older change of a
// member does not overwrite what the list says.
func TestOlderChangeOfAMember(t *testing.T) {
	r := synced(t, overview("c", 4, 3))
	r.m.Open("c")
	r.take()
	r.answer(device.ListMessages, &messagev1.ListMessagesResponse{Messages: []*messagev1.Message{message(3, 4)},
		Head: head(4, 3)})
	admin := member(other, 6)
	admin.Role = chatv1.MemberRole_MEMBER_ROLE_ADMIN
	r.answer(device.ListMembers, &chatv1.ListMembersResponse{Head: head(6, 3),
		Members: []*chatv1.Member{member(me, 1), admin}})
	// to member; version 6 made them admin
	r.frames(membershipFrame(4, 5, other, messagev1.MembershipChange_KIND_ROLE_CHANGED))
	for _, m := range r.view("c").Present {
		if m.UserID == other && (m.Role != chatv1.MemberRole_MEMBER_ROLE_ADMIN || m.Version != 6) {
			t.Errorf("the list shows %+v", m)
		}
	}
	r.frames(membershipFrame(5, 6, other, removed), membershipFrame(6, 7, other, removed))
	r.expect("members", len(r.view("c").Present), 1)
}

// The chat was read for the list before a rename, its messages after it: a change of the
// members that follows must not make the old name look new.
func TestRenameBetweenListAndMessages(t *testing.T) {
	r := synced(t, overview("c", 4, 3))
	r.m.Open("c")
	r.take()
	// renamed in 5
	r.answer(device.ListMessages, &messagev1.ListMessagesResponse{Messages: []*messagev1.Message{message(3, 4)},
		Head: head(6, 3)})
	r.frames(membershipFrame(6, 7, other, messagev1.MembershipChange_KIND_ADDED))
	ov := overview("c", 7, 3)
	ov.Chat.Version, ov.Chat.Name, ov.Chat.MemberCount = 7, "new", 3
	r.answer(device.GetChat, &chatv1.GetChatResponse{Overview: ov})
	r.expect("name", r.view("c").Chat.GetName(), "new")
	r.expect("members", r.view("c").Chat.GetMemberCount(), int32(3))
	r.expect("asks again", r.open(device.GetChat), 0)
}

// A user who was removed is added again and mutes the chat elsewhere: the receipt comes
// before anything that shows the new membership, which was read before the mute.
func TestReceiptBeforeTheMembership(t *testing.T) {
	r := loaded(t, 3)
	r.frames(membershipFrame(4, 5, me, removed), receiptFrame(&chatv1.MemberState{Revision: 9, Archived: true}),
		receiptFrame(&chatv1.MemberState{Revision: 8}))
	r.expect("chats", len(r.m.Chats()), 0)
	ov := overview("c", 6, 3)
	ov.State = &chatv1.MemberState{Revision: 7}
	r.frames(headFrame(6, ov))
	r.expect("archived", r.view("c").State.GetArchived(), true)
}

// A removal, an addition and a change of role that come in one answer look like a change
// of role: since when the member is one must be read again.
func TestMembershipsMergedIntoARoleChange(t *testing.T) {
	r := loaded(t, 3)
	r.frames(headFrame(7, nil))
	r.answer(device.ListChanges, &messagev1.ListChangesResponse{Version: 7, Head: head(7, 3),
		Changes: []*messagev1.Change{{
			Version: 7, Body: &messagev1.Change_MembershipChange{MembershipChange: &messagev1.MembershipChange{
				UserId: other, Kind: messagev1.MembershipChange_KIND_ROLE_CHANGED, Role: chatv1.MemberRole_MEMBER_ROLE_ADMIN,
				Version: 7,
			}},
		}}})
	again := member(other, 7)
	again.JoinedAt, again.Role = timestamppb.New(r.now), chatv1.MemberRole_MEMBER_ROLE_ADMIN
	r.answer(device.ListMembers, &chatv1.ListMembersResponse{Head: head(7, 3),
		Members: []*chatv1.Member{member(me, 1), again}})
	for _, m := range r.view("c").Present {
		if m.UserID == other && !m.JoinedAt.AsTime().Equal(r.now) {
			t.Errorf("the list shows %+v", m)
		}
	}
}

// A change of role of somebody who is not in the list yet comes while the list is read:
// the list is read again.
func TestRoleChangeWhileTheListIsRead(t *testing.T) {
	r := synced(t, overview("c", 4, 3))
	r.m.Open("c")
	r.take()
	r.answer(device.ListMessages, &messagev1.ListMessagesResponse{Messages: []*messagev1.Message{message(3, 4)},
		Head: head(4, 3)})
	first := r.call(device.ListMembers)
	r.frames(membershipFrame(4, 5, other, messagev1.MembershipChange_KIND_ROLE_CHANGED))
	r.forget(first.ID)
	r.m.Result(first.ID, &chatv1.ListMembersResponse{Head: head(4, 3),
		Members: []*chatv1.Member{member(me, 1), member(other, 1)}}, "", nil)
	r.take()
	admin := member(other, 5)
	admin.Role = chatv1.MemberRole_MEMBER_ROLE_ADMIN
	r.answer(device.ListMembers, &chatv1.ListMembersResponse{Head: head(5, 3),
		Members: []*chatv1.Member{member(me, 1), admin}})
	r.expect("members", len(r.view("c").Present), 2)
	r.expect("version", max(r.view("c").Present[0].Version, r.view("c").Present[1].Version), int64(5))
}

// The same of the user's own membership: it may be another one, which hides messages in
// between, so the chat is loaded again.
func TestOwnMembershipsMergedIntoARoleChange(t *testing.T) {
	r := loaded(t, 3)
	r.frames(headFrame(9, nil))
	r.answer(device.ListChanges, &messagev1.ListChangesResponse{Version: 9, Head: head(9, 5), Changes: []*messagev1.Change{
		{Version: 8, Body: &messagev1.Change_Message{Message: message(5, 8)}}, // 4 was sent in between
		{Version: 9, Body: &messagev1.Change_MembershipChange{MembershipChange: &messagev1.MembershipChange{
			UserId: me, Kind: messagev1.MembershipChange_KIND_ROLE_CHANGED, Role: chatv1.MemberRole_MEMBER_ROLE_ADMIN,
			Version: 9,
		}}},
	}})
	r.answer(device.ListMessages, &messagev1.ListMessagesResponse{Messages: []*messagev1.Message{message(5, 8)},
		Head: head(9, 5)})
	r.expect("messages", r.texts("c"), "5")
}

// An addition and a change of role in one answer: the time is that of the addition, so the
// chat is read for when it changed last.
func TestMergedChangesHaveTheChatRead(t *testing.T) {
	r := loaded(t, 3)
	r.frames(headFrame(6, nil))
	r.answer(device.ListChanges, &messagev1.ListChangesResponse{Version: 6, Head: head(6, 3),
		Changes: []*messagev1.Change{{
			Version: 6, Body: &messagev1.Change_MembershipChange{MembershipChange: &messagev1.MembershipChange{
				UserId: "carol", Kind: messagev1.MembershipChange_KIND_ADDED, Version: 6, MemberCount: 3,
				ChangedAt: timestamppb.New(r.now),
			}},
		}}})
	later := timestamppb.New(r.now.Add(time.Minute))
	ov := overview("c", 6, 3)
	ov.Chat.Version, ov.Chat.MemberCount, ov.Chat.UpdatedAt = 6, 3, later
	r.answer(device.GetChat, &chatv1.GetChatResponse{Overview: ov})
	r.expect("updated", r.view("c").Chat.GetUpdatedAt().AsTime(), later.AsTime())
	r.expect("members", len(r.view("c").Present), 3)
}

// A message of the user is not unread and marks nothing as read, in any order of the messages and the states that
// count it.
func TestOwnMessagesAreNotUnread(t *testing.T) {
	r := loaded(t, 3)
	shown := func(what string, unread, own, last int64) {
		t.Helper()
		v := r.view("c")
		r.expect(what, fmt.Sprint(v.Unread, v.State.GetOwnUnreadCount(), v.State.GetOwnSequence(), v.State.GetReadSequence()),
			fmt.Sprint(unread, own, last, 0))
	}
	own := func(sequence, version int64) *deliveryv1.Frame {
		f := messageFrame(version-1, version, sequence)
		f.GetMessage().SenderId = me
		return f
	}
	state := func(revision, own, last int64) *deliveryv1.Frame {
		return receiptFrame(&chatv1.MemberState{Revision: revision, OwnUnreadCount: own, OwnSequence: last})
	}
	shown("at first", 3, 0, 0)
	r.frames(own(4, 5))
	shown("an own message", 3, 1, 4)
	r.frames(state(5, 1, 4))
	shown("a state that counts it", 3, 1, 4)
	r.frames(own(5, 6), messageFrame(6, 7, 6), own(7, 8))
	shown("more of them", 4, 3, 7)
	r.frames(state(6, 2, 5))
	shown("a state that lacks the last", 4, 3, 7)
	r.frames(state(4, 0, 0))
	shown("an old state", 4, 3, 7)
	r.restart()
	shown("after a restart", 4, 3, 7)
	r.frames(receiptFrame(&chatv1.MemberState{Revision: 9, ReadSequence: 6, OwnUnreadCount: 1, OwnSequence: 7}))
	v := r.view("c")
	r.expect("after a mark", fmt.Sprint(v.Unread, v.State.GetOwnUnreadCount()), "0 1")
}

// A state with a lower read position than the device has does not count for it, and one that is newer than the head
// hides no message of others.
func TestOwnMessagesOfAnotherTime(t *testing.T) {
	r := loaded(t, 3)
	r.frames(receiptFrame(&chatv1.MemberState{Revision: 5, ReadSequence: 3}))
	r.frames(receiptFrame(&chatv1.MemberState{Revision: 6, OwnUnreadCount: 2, OwnSequence: 3}))
	r.frames(messageFrame(4, 5, 4), messageFrame(5, 6, 5))
	r.expect("unread after what was read", r.view("c").Unread, int64(2))

	r = loaded(t, 3)
	r.frames(receiptFrame(&chatv1.MemberState{Revision: 5, OwnUnreadCount: 3, OwnSequence: 6}))
	r.expect("unread before the messages have come", r.view("c").Unread, int64(3))
}

// How far the other person of a direct chat has read: only marks say so, messages do not. It never goes
// back, and groups have no other person.
func TestReadByTheOtherPerson(t *testing.T) {
	r := loaded(t, 3) // of somebody else, in a group
	r.expect("in a group", r.view("c").PeerRead, int64(0))
	ov := overview("c", 5, 4)
	ov.Chat.Type, ov.Chat.Version = chatv1.ChatType_CHAT_TYPE_DIRECT, 99
	ov.Head.LastMessage = &chatv1.MessagePreview{Sequence: 4, SenderId: me}
	ov.State = &chatv1.MemberState{Revision: 9, PeerReadSequence: 1}
	r.frames(headFrame(5, ov))
	r.expect("after a message of the other", r.view("c").PeerRead, int64(1))
	r.frames(ownMessage())
	r.expect("after an own message", r.view("c").PeerRead, int64(1))
	r.frames(receiptFrame(&chatv1.MemberState{Revision: 11, PeerReadSequence: 4}),
		receiptFrame(&chatv1.MemberState{Revision: 10, PeerReadSequence: 2}))
	r.expect("after marks", r.view("c").PeerRead, int64(4))
	r.restart()
	r.expect("after a restart", r.view("c").PeerRead, int64(4))
	r.frames(messageFrame(5, 6, 5))
	r.expect("after an answer", r.view("c").PeerRead, int64(4))
}
