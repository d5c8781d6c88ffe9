package conformance_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/client/conformance"
	"github.com/parley-chat/parley/server/client/device"
)

type recorder = conformance.Recorder

// scripts bring about what the explorer's worlds do not have. Each is a scenario.
func scripts(t *testing.T) []*conformance.Scenario {
	t.Helper()
	var out []*conformance.Scenario
	for _, part := range []map[string]func(*script){
		ends(), histories(), refusals(), chats(), members(), sends(), polls(), clocks(),
	} {
		for _, name := range slices.Sorted(maps.Keys(part)) {
			run := part[name]
			cfg := device.Config{SubscribeFirst: strings.HasPrefix(name, "streams-first")}
			if strings.HasPrefix(name, "pages") {
				cfg.PageSize = 2
			}
			x := newScript(t, name, cfg)
			run(x)
			out = append(out, x.scenario)
		}
	}
	return out
}

// ends are ends of streams, and their renewal.
func ends() map[string]func(*script) {
	all := map[string]func(*script){}
	for code := range deliveryv1.EndCode_name {
		code := deliveryv1.EndCode(code)
		name := strings.ToLower(strings.TrimPrefix(code.String(), "END_CODE_"))
		all["end-"+name] = func(x *script) {
			x.loaded().endsWith(code, 700*time.Millisecond)
			if code == deliveryv1.EndCode_END_CODE_TOKEN_EXPIRED {
				x.answer(device.Refresh, nil)
			}
			if code == deliveryv1.EndCode_END_CODE_SESSION_REVOKED || code == deliveryv1.EndCode_END_CODE_REPLACED {
				x.do(func(m *recorder) { m.Send("c", "later") }).pass(time.Hour).do((*recorder).Resume).answer(device.Refresh, nil)
				x.frames(hello(), heartbeat("t3"))
				return
			}
			x.pass(100*time.Millisecond).pass(600*time.Millisecond).frames(hello(), heartbeat("t3"))
		}
		all["end-"+name+"-at-once"] = func(x *script) { // before the stream is complete, and again
			x.answer(device.Sync, &deliveryv1.SyncResponse{Token: "t1", Full: true, Generation: "g1"})
			for n := range 3 {
				x.frames(hello()).endsWith(code, 0)
				switch code {
				case deliveryv1.EndCode_END_CODE_TOKEN_EXPIRED:
					x.answer(device.Refresh, nil)
				case deliveryv1.EndCode_END_CODE_SESSION_REVOKED, deliveryv1.EndCode_END_CODE_REPLACED:
					x.do((*recorder).Resume).answer(device.Refresh, nil)
				}
				x.pass(250 * time.Millisecond << n)
			}
		}
	}
	all["end-without-a-word"] = func(x *script) { x.loaded().end(nil).pass(time.Second).frames(hello(), heartbeat("t3")) }
	all["backoff"] = func(x *script) {
		x.answer(device.Sync, &deliveryv1.SyncResponse{Token: "t1", Full: true, Generation: "g1"})
		for n := range 8 {
			x.end(&device.Failure{Code: connect.CodeUnavailable})
			x.pass(min(250*time.Millisecond<<n, 15*time.Second) - time.Millisecond).pass(time.Millisecond)
		}
	}
	all["backoff-begins-anew"] = func(x *script) {
		x.answer(device.Sync, &deliveryv1.SyncResponse{Token: "t1", Full: true, Generation: "g1"})
		x.end(&device.Failure{Code: connect.CodeUnavailable}).pass(250*time.Millisecond).frames(hello(), heartbeat("t2"))
		x.end(&device.Failure{Code: connect.CodeUnavailable}).pass(249 * time.Millisecond).pass(time.Millisecond)
	}
	all["retry-after"] = func(x *script) {
		x.loaded().end(&device.Failure{Code: connect.CodeResourceExhausted, RetryAfter: 12 * time.Second})
		x.pass(11 * time.Second).pass(time.Second)
	}
	all["silence"] = func(x *script) {
		x.loaded().pass(49 * time.Second).frames(heartbeat("t3")).pass(49 * time.Second).pass(time.Second).pass(time.Minute)
	}
	all["hole-in-positions"] = func(x *script) {
		x.loaded()
		x.position++
		x.frames(messageFrame(4, 5, 4)).pass(time.Second).frames(hello(), heartbeat("t3"))
	}
	all["frames-of-an-old-stream"] = func(x *script) {
		x.loaded()
		old := x.call(device.Subscribe)
		x.pass(time.Minute)
		x.m.Frames(old.ID, &deliveryv1.SubscribeResponse{FirstPosition: 3,
			Frames: []*deliveryv1.Frame{messageFrame(4, 5, 4)}})
		x.m.StreamEnded(old.ID, nil)
		x.take()
	}
	all["extend"] = func(x *script) {
		h := hello()
		h.GetHello().ExpiresAt = timestamppb.New(x.now.Add(3 * time.Minute))
		x.answer(device.Sync, &deliveryv1.SyncResponse{Token: "t1", Full: true, Generation: "g1"}).frames(h, heartbeat("t2"))
		x.pass(40 * time.Second).frames(heartbeat("t2")).pass(40 * time.Second).frames(heartbeat("t2")).pass(39 * time.Second)
		x.pass(time.Second).answer(device.Extend,
			&deliveryv1.ExtendResponse{ExpiresAt: timestamppb.New(x.now.Add(95 * time.Second))})
		x.frames(heartbeat("t3")).pass(35*time.Second).fail(device.Extend, connect.CodeUnavailable, "")
		x.frames(heartbeat("t3")).pass(30*time.Second).fail(device.Extend, connect.CodeUnauthenticated, "").answer(device.Refresh, nil)
	}
	return all
}

// refusals are failures of calls.
func refusals() map[string]func(*script) {
	return map[string]func(*script){
		"refresh-fails": func(x *script) {
			x.fail(device.Sync, connect.CodeUnauthenticated, "").fail(device.Refresh, connect.CodeUnavailable, "")
			x.pass(249*time.Millisecond).pass(time.Millisecond).fail(device.Refresh, connect.CodeUnavailable, "")
			x.pass(500*time.Millisecond).answer(device.Refresh, nil).pass(time.Second).synced()
		},
		"refresh-is-refused": func(x *script) {
			x.loaded().do(func(m *recorder) { m.Send("c", "hi") }).fail(device.SendMessage, connect.CodeUnauthenticated, "")
			x.fail(device.Refresh, connect.CodeUnauthenticated, "").pass(time.Hour)
			x.do((*recorder).Resume).answer(device.Refresh, nil).frames(hello())
		},
		"session-revoked": func(x *script) {
			x.loaded().do(func(m *recorder) { m.Send("c", "hi") })
			x.fail(device.SendMessage, connect.CodeUnauthenticated, "SESSION_REVOKED").pass(time.Hour)
		},
		"invalid-token": func(x *script) {
			x.loaded().restart().end(&device.Failure{Code: connect.CodeInvalidArgument, Reason: "INVALID_TOKEN"})
			x.answer(device.Sync, &deliveryv1.SyncResponse{Overviews: []*chatv1.ChatOverview{overview("d", 4, 3)}, Token: "t5",
				Full: true, Generation: "g1"}).pass(time.Second).frames(hello(), heartbeat("t6"))
		},
		"pages-of-sync": func(x *script) {
			x.answer(device.Sync, &deliveryv1.SyncResponse{Overviews: []*chatv1.ChatOverview{overview("c", 4, 3)},
				NextPageToken: "p2", Full: true, Generation: "g1"})
			x.fail(device.Sync, connect.CodeUnavailable, "").pass(250 * time.Millisecond)
			x.fail(device.Sync, connect.CodeInvalidArgument, "").pass(500*time.Millisecond).answer(device.Sync,
				&deliveryv1.SyncResponse{Overviews: []*chatv1.ChatOverview{overview("c", 4, 3)}, NextPageToken: "p2", Full: true,
					Generation: "g1"})
			x.answer(device.Sync, &deliveryv1.SyncResponse{Overviews: []*chatv1.ChatOverview{overview("d", 2, 1)}, Token: "t1",
				Full: true, Generation: "g1", LeftChats: []*deliveryv1.LeftChat{{ChatId: "c", Version: 9}}})
			x.frames(hello(), heartbeat("t2"))
		},
		"read-fails": func(x *script) {
			x.synced().do(func(m *recorder) { m.Open("c") })
			for n := range 4 {
				x.fail(device.ListMessages, connect.CodeInternal, "").pass(250 * time.Millisecond << n)
			}
			x.result(device.ListMessages, nil, &device.Failure{Code: connect.CodeUnavailable, RetryAfter: 7 * time.Second})
			x.pass(6 * time.Second).pass(time.Second)
		},
		"not-a-member": func(x *script) {
			x.loaded().frames(headFrame(6)).fail(device.ListChanges, connect.CodePermissionDenied, "NOT_A_MEMBER")
		},
		"not-a-member-is-old-news": func(x *script) {
			x.loaded().frames(headFrame(6)).frames(headFrame(8))
			x.fail(device.ListChanges, connect.CodePermissionDenied, "NOT_A_MEMBER")
		},
	}
}

// chats are changes of chats.
func chats() map[string]func(*script) {
	listed := func(c ...*messagev1.Change) *messagev1.ListChangesResponse {
		return &messagev1.ListChangesResponse{Head: head(6, 5), Version: 6, Changes: c}
	}
	change := func(s, v int64) *messagev1.Change {
		return &messagev1.Change{Version: v, Body: &messagev1.Change_Message{Message: message(s, v)}}
	}
	return map[string]func(*script){
		"gap": func(x *script) {
			x.loaded().frames(messageFrame(5, 6, 5)).answer(device.ListChanges, listed(change(4, 5), change(5, 6)))
			x.frames(messageFrame(6, 7, 6), messageFrame(4, 5, 4))
		},
		"gap-and-frames-meanwhile": func(x *script) {
			x.loaded().frames(messageFrame(5, 6, 5)).frames(messageFrame(6, 7, 6))
			x.answer(device.ListChanges, listed(change(4, 5), change(5, 6)))
			x.answer(device.ListChanges, &messagev1.ListChangesResponse{Head: head(7, 6), Version: 7,
				Changes: []*messagev1.Change{change(6, 7)}})
		},
		"changes-are-a-reset": func(x *script) {
			x.loaded().frames(messageFrame(2000, 2001, 1900)).answer(device.ListChanges, &messagev1.ListChangesResponse{
				Reset_: true, Head: head(2001, 1900), Version: 2001, Messages: []*messagev1.Message{message(1899, 2000),
					message(1900, 2001)}})
			x.answer(device.ListMembers, &chatv1.ListMembersResponse{Head: head(2001, 1900),
				Members: []*chatv1.Member{member("ann", 1)}}).restart()
		},
		"changes-are-not-newer": func(x *script) {
			x.loaded().frames(headFrame(6)).answer(device.ListChanges,
				&messagev1.ListChangesResponse{Head: head(4, 3), Version: 4}).pass(250 * time.Millisecond)
			x.answer(device.ListChanges, listed(change(4, 5), change(5, 6)))
		},
		"merged-memberships": func(x *script) {
			kind := messagev1.MembershipChange_KIND_ROLE_CHANGED
			x.loaded().frames(headFrame(6)).answer(device.ListChanges, listed(&messagev1.Change{Version: 6,
				Body: &messagev1.Change_MembershipChange{MembershipChange: &messagev1.MembershipChange{UserId: "bob",
					Kind: kind, Version: 6, MemberCount: 2, Role: chatv1.MemberRole_MEMBER_ROLE_ADMIN}}}))
			x.answer(device.GetChat, &chatv1.GetChatResponse{Overview: overview("c", 6, 3)})
			x.answer(device.ListMembers, &chatv1.ListMembersResponse{Head: head(6, 3), Members: []*chatv1.Member{
				member("ann", 1)}, NextPageToken: "p"}).answer(device.ListMembers, &chatv1.ListMembersResponse{
				Head: head(6, 3), Members: []*chatv1.Member{member("bob", 6)}})
		},
		"unknown-body-counts": func(x *script) {
			x.loaded().frames(&deliveryv1.Frame{ChatId: "c", AfterVersion: 4, Version: 5}, messageFrame(5, 6, 4))
		},
		"frames-repeat": func(x *script) {
			x.loaded().frames(messageFrame(4, 5, 4), messageFrame(4, 5, 4), messageFrame(5, 6, 5), messageFrame(2, 5, 4))
		},
		"reset-of-a-chat": func(x *script) {
			x.loaded().frames(resetFrame("c", 9)).answer(device.ListMessages, &messagev1.ListMessagesResponse{
				Messages: []*messagev1.Message{message(8, 9)}, Head: head(9, 8), HasMore: true})
			x.do(func(m *recorder) { m.LoadOlder("c") }).answer(device.ListMessages, &messagev1.ListMessagesResponse{
				Messages: []*messagev1.Message{message(6, 7), message(7, 8)}, Head: head(9, 8), HasMore: true}).restart()
		},
		"older-page-fails": func(x *script) {
			x.loaded().frames(resetFrame("c", 9)).answer(device.ListMessages, &messagev1.ListMessagesResponse{
				Messages: []*messagev1.Message{message(8, 9)}, Head: head(9, 8), HasMore: true})
			x.do(func(m *recorder) { m.LoadOlder("c") }).fail(device.ListMessages, connect.CodeUnavailable, "")
			x.pass(10*time.Second).answer(device.ListMessages, &messagev1.ListMessagesResponse{
				Messages: []*messagev1.Message{message(6, 7), message(7, 8)}, Head: head(9, 8), HasMore: true})
		},
		"reset-of-all": func(x *script) {
			x.loaded().frames(resetFrame("", 0)).answer(device.Sync, &deliveryv1.SyncResponse{Token: "t7", Full: true,
				Generation: "g1", Overviews: []*chatv1.ChatOverview{overview("c", 1, 0)}})
			x.answer(device.ListMessages, &messagev1.ListMessagesResponse{Head: head(1, 0)})
		},
		"other-generation": func(x *script) {
			h := hello()
			h.GetHello().Generation, h.GetHello().Full = "g2", true
			x.loaded().end(nil).pass(time.Second).frames(h, &deliveryv1.Frame{ChatId: "c",
				Body: &deliveryv1.Frame_Head{Head: &deliveryv1.Head{Version: 2, Overview: overview("c", 2, 1)}}}, heartbeat("u1"))
			x.answer(device.ListMessages, &messagev1.ListMessagesResponse{Messages: []*messagev1.Message{message(1, 2)},
				Head: head(2, 1)})
		},
		"full-list": func(x *script) {
			h := hello()
			h.GetHello().Full = true
			x.loaded().end(nil).pass(time.Second).frames(h, &deliveryv1.Frame{ChatId: "d",
				Body: &deliveryv1.Frame_Head{Head: &deliveryv1.Head{Version: 2, Overview: overview("d", 2, 1)}}}, heartbeat("u1"))
		},
		"removed": func(x *script) {
			x.loaded().frames(membershipFrame(5, "ann", messagev1.MembershipChange_KIND_REMOVED, 1), messageFrame(3, 4, 3))
			x.frames(membershipFrame(6, "ann", messagev1.MembershipChange_KIND_ADDED, 2)).answer(device.GetChat,
				&chatv1.GetChatResponse{Overview: overview("c", 6, 3)}).restart()
		},
		"removed-for-good": func(x *script) {
			x.loaded().frames(membershipFrame(5, "ann", messagev1.MembershipChange_KIND_REMOVED, 1)).restart()
		},
		"members-come-and-go": func(x *script) {
			x.loaded().frames(membershipFrame(5, "cyd", messagev1.MembershipChange_KIND_ADDED, 3),
				membershipFrame(6, "bob", messagev1.MembershipChange_KIND_REMOVED, 2)).restart()
		},
		"was-removed-meanwhile": func(x *script) {
			gone := membershipFrame(1, "ann", messagev1.MembershipChange_KIND_REMOVED, 0)
			gone.AfterVersion, gone.Version = 0, 0
			x.loaded().end(nil).pass(time.Second).frames(hello(), gone, heartbeat("t3"))
		},
		"receipts": func(x *script) {
			x.loaded().frames(receiptFrame(&chatv1.MemberState{Revision: 5, ReadSequence: 2, Archived: true}),
				receiptFrame(&chatv1.MemberState{Revision: 4, ReadSequence: 3}),
				receiptFrame(&chatv1.MemberState{Revision: 6, ReadSequence: 1, MutedUntil: timestamppb.New(x.now)}))
		},
		"read-by-the-other": func(x *script) { // by the server's word, whatever its order, and by what the other sends
			own := func(m *messagev1.Message) *messagev1.Message { m.SenderId = "ann"; return m }
			ov := directOverview("ann", 3)
			x.answer(device.Sync, &deliveryv1.SyncResponse{Overviews: []*chatv1.ChatOverview{ov}, Token: "t1", Full: true,
				Generation: "g1"}).frames(hello(), heartbeat("t2"))
			x.do(func(m *recorder) { m.Open("c") }).answer(device.ListMessages, &messagev1.ListMessagesResponse{
				Messages: []*messagev1.Message{message(1, 2), own(message(2, 3)), own(message(3, 4))}, Head: ov.GetHead()})
			x.frames(receiptFrame(&chatv1.MemberState{Revision: 3, PeerReadSequence: 2}),
				receiptFrame(&chatv1.MemberState{Revision: 2, PeerReadSequence: 1})).restart().frames(hello(), heartbeat("t2"))
			x.frames(receiptFrame(&chatv1.MemberState{Revision: 2, PeerReadSequence: 3}))
			sent := messageFrame(4, 5, 4)
			own(sent.GetMessage())
			x.frames(sent).frames(messageFrame(5, 6, 5)).restart()
		},
		"answered-by-the-other": func(x *script) { // as the list says, without messages
			x.answer(device.Sync, &deliveryv1.SyncResponse{Overviews: []*chatv1.ChatOverview{directOverview("bob", 3)},
				Token: "t1", Full: true, Generation: "g1"}).frames(hello(), heartbeat("t2"))
		},
		"evict": func(x *script) {
			x.loaded().do(func(m *recorder) { m.Evict("c") }).frames(messageFrame(4, 5, 4)).restart()
			x.do(func(m *recorder) { m.Open("c") })
		},
		"many-chats": func(x *script) { // more than are read at a time, or named in a request
			var list []*chatv1.ChatOverview
			for n := range 104 {
				ov := overview(fmt.Sprintf("c%03d", n), 2, 1)
				ov.Head.ChangedAt = timestamppb.New(x.now.Add(time.Duration(n*7%104) * time.Second))
				list = append(list, ov)
			}
			x.answer(device.Sync, &deliveryv1.SyncResponse{Overviews: list, Token: "t1", Full: true, Generation: "g1"})
			for _, ov := range list {
				x.m.Open(ov.GetChat().GetChatId())
			}
			x.take()
			for range 2 * len(list) {
				if i := slices.IndexFunc(x.open, func(c device.Call) bool { return c.Kind == device.ListMembers }); i >= 0 {
					x.answer(device.ListMembers, &chatv1.ListMembersResponse{Head: head(2, 1),
						Members: []*chatv1.Member{member("ann", 1)}})
					continue
				}
				id := x.call(device.ListMessages).Request.(*messagev1.ListMessagesRequest).GetChatId()
				x.answer(device.ListMessages, &messagev1.ListMessagesResponse{Head: head(2, 1),
					Messages: []*messagev1.Message{{ChatId: id, Sequence: 1, Version: 2, Content: "x"}}})
			}
			x.frames(hello(), heartbeat("t2")).answer(device.Ack, &deliveryv1.AckResponse{})
			for _, ov := range list {
				x.m.MarkRead(ov.GetChat().GetChatId(), 1)
			}
			x.take()
			x.pass(time.Second).end(nil).pass(time.Second)
		},
	}
}

// members are changes of members, and what is older than what is there.
func members() map[string]func(*script) {
	const added, changed = messagev1.MembershipChange_KIND_ADDED, messagev1.MembershipChange_KIND_ROLE_CHANGED
	admin := func(version int64) *chatv1.Member {
		m := member("bob", version)
		m.Role = chatv1.MemberRole_MEMBER_ROLE_ADMIN
		return m
	}
	opened := func(x *script) *script {
		return x.synced().do(func(m *recorder) { m.Open("c") }).answer(device.ListMessages,
			&messagev1.ListMessagesResponse{Messages: []*messagev1.Message{message(3, 4)}, Head: head(4, 3)})
	}
	list := func(h *chatv1.ChatHead, token string, list ...*chatv1.Member) *chatv1.ListMembersResponse {
		return &chatv1.ListMembersResponse{Head: h, Members: list, NextPageToken: token}
	}
	edited := func(after, version int64) *deliveryv1.Frame {
		f := messageFrame(after, version, 3)
		f.GetMessage().Content = fmt.Sprint("edited in ", version)
		return f
	}
	return map[string]func(*script){
		"receipt-before-the-membership": func(x *script) {
			x.loaded().frames(membershipFrame(5, "ann", messagev1.MembershipChange_KIND_REMOVED, 1))
			x.frames(receiptFrame(&chatv1.MemberState{Revision: 9, ReadSequence: 2, Archived: true}),
				receiptFrame(&chatv1.MemberState{Revision: 8, ReadSequence: 1}), membershipFrame(6, "ann", added, 2))
			x.answer(device.GetChat, &chatv1.GetChatResponse{Overview: overview("c", 6, 3)})
		},
		"own-role": func(x *script) {
			x.loaded().frames(membershipFrame(5, "ann", changed, 2))
			x.answer(device.GetChat, &chatv1.GetChatResponse{Overview: overview("c", 5, 3)})
		},
		"own-role-in-the-list": func(x *script) {
			x.synced().frames(membershipFrame(5, "ann", changed, 2))
			x.answer(device.GetChat, &chatv1.GetChatResponse{Overview: overview("c", 5, 3)})
		},
		"old-member-list": func(x *script) {
			opened(x).answer(device.ListMembers, list(head(3, 2), "", member("ann", 1), member("bob", 1)))
			x.pass(250*time.Millisecond).answer(device.ListMembers, list(head(4, 3), "", member("ann", 1)))
		},
		"member-list-is-newer-than-changes": func(x *script) {
			opened(x).answer(device.ListMembers, list(head(6, 3), "", member("ann", 1), admin(6)))
			x.frames(membershipFrame(5, "bob", changed, 2), membershipFrame(6, "bob", changed, 2))
		},
		"changes-are-newer-than-member-list": func(x *script) {
			opened(x).frames(membershipFrame(5, "cyd", added, 3))
			x.answer(device.ListMembers, list(head(4, 3), "", member("ann", 1), member("cyd", 2)))
		},
		"page-of-members-fails": func(x *script) {
			opened(x).answer(device.ListMembers, list(head(4, 3), "p", member("ann", 1)))
			x.fail(device.ListMembers, connect.CodeUnavailable, "").pass(250 * time.Millisecond)
			x.answer(device.ListMembers, list(head(4, 3), "q", member("ann", 1)))
			x.answer(device.ListMembers, list(head(4, 3), "", member("bob", 1)))
		},
		"changes-are-newer-than-their-head": func(x *script) {
			x.loaded().frames(headFrame(6)).answer(device.ListChanges, &messagev1.ListChangesResponse{Head: head(5, 4),
				Version: 6, Changes: []*messagev1.Change{
					{Version: 5, Body: &messagev1.Change_Message{Message: message(4, 5)}},
					{Version: 6, Body: &messagev1.Change_Message{Message: message(5, 6)}}}})
			x.frames(messageFrame(6, 7, 6))
		},
		"old-state-of-a-message": func(x *script) {
			x.loaded().frames(headFrame(6)).frames(edited(4, 5), edited(5, 6))
			x.answer(device.ListChanges, &messagev1.ListChangesResponse{Head: head(6, 3), Version: 6,
				Changes: []*messagev1.Change{{Version: 6, Body: &messagev1.Change_Message{Message: edited(4, 5).GetMessage()}}}})
		},
	}
}

// sends are messages and read marks on their way.
func sends() map[string]func(*script) {
	stored := func(x *script, sequence int64) *messagev1.SendMessageResponse {
		req := x.call(device.SendMessage).Request.(*messagev1.SendMessageRequest)
		return &messagev1.SendMessageResponse{MessageId: fmt.Sprint("m", sequence), Sequence: sequence, Version: sequence + 1,
			CreatedAt: timestamppb.New(x.now), ClientMessageId: req.GetClientMessageId()}
	}
	say := func(words ...string) func(*recorder) {
		return func(m *recorder) {
			for _, word := range words {
				m.Send("c", word)
			}
		}
	}
	marked := func(s *chatv1.MemberState, reason string) *deliveryv1.AckResponse {
		return &deliveryv1.AckResponse{ReadOutcomes: []*deliveryv1.ReadOutcome{{State: s, Reason: reason}}}
	}
	read := func(n int64) func(*recorder) { return func(m *recorder) { m.MarkRead("c", n) } }
	return map[string]func(*script){
		"send-in-order": func(x *script) {
			x.loaded().do(say("one", "two", "three"))
			for n := range int64(3) {
				x.answer(device.SendMessage, stored(x, 4+n))
			}
			x.restart()
		},
		"send-again": func(x *script) {
			x.loaded().do(say("one", "two")).fail(device.SendMessage, connect.CodeUnavailable, "").pass(250 * time.Millisecond)
			x.fail(device.SendMessage, connect.CodeDeadlineExceeded, "").pass(500 * time.Millisecond)
			x.result(device.SendMessage, nil, &device.Failure{Code: connect.CodeResourceExhausted, RetryAfter: 3 * time.Second})
			x.pass(2 * time.Second).restart()
			x.answer(device.SendMessage, stored(x, 4)).answer(device.SendMessage, stored(x, 5))
		},
		"send-is-refused": func(x *script) {
			x.loaded().do(say("one", "two")).fail(device.SendMessage, connect.CodeInvalidArgument, "TOO_LONG")
			x.fail(device.SendMessage, connect.CodePermissionDenied, "NOT_A_MEMBER")
			x.fail(device.GetChat, connect.CodePermissionDenied, "NOT_A_MEMBER")
		},
		"send-too-old": func(x *script) {
			x.loaded().do(say("one")).fail(device.SendMessage, connect.CodeUnavailable, "")
			x.now = x.now.Add(7*24*time.Hour - time.Hour)
			x.take()
		},
		"sent-before-the-frame": func(x *script) {
			x.loaded().do(say("one")).answer(device.SendMessage, stored(x, 6)).pass(999 * time.Millisecond)
			x.pass(time.Millisecond)
		},
		"sent-and-then-the-frame": func(x *script) {
			x.loaded().do(say("one")).answer(device.SendMessage, stored(x, 6)).frames(messageFrame(4, 5, 4))
		},
		"sent-to-an-unknown-chat": func(x *script) {
			x.synced().do(func(m *recorder) { m.Send("d", "hi") }).answer(device.SendMessage, stored(x, 1))
			x.answer(device.GetChat, &chatv1.GetChatResponse{Overview: overview("d", 2, 1)})
		},
		"answer-is-older-than-what-was-seen": func(x *script) {
			x.synced().do(func(m *recorder) { m.Send("d", "hi") }).answer(device.SendMessage, stored(x, 1))
			x.answer(device.GetChat, &chatv1.GetChatResponse{Overview: overview("d", 1, 0)}).pass(250 * time.Millisecond)
			x.answer(device.GetChat, &chatv1.GetChatResponse{Overview: overview("d", 2, 1)})
		},
		"learned": func(x *script) {
			x.synced().do(func(m *recorder) { m.Learn(overview("d", 1, 0), "") }).do(func(m *recorder) { m.Open("d") })
			x.answer(device.ListMessages, &messagev1.ListMessagesResponse{Head: head(1, 0)})
		},
		"marks-with-acks": func(x *script) {
			x.loaded().do(read(1)).do(read(2)).answer(device.Ack, &deliveryv1.AckResponse{})
			x.pass(100*time.Millisecond).do(read(3)).answer(device.Ack, marked(&chatv1.MemberState{Revision: 2,
				ReadSequence: 2}, "")).pass(100 * time.Millisecond)
			x.answer(device.Ack, marked(nil, "FORBIDDEN")).pass(time.Second)
		},
		"marks-whose-ack-is-lost": func(x *script) {
			x.loaded().answer(device.Ack, &deliveryv1.AckResponse{}).do(read(2)).fail(device.Ack, connect.CodeUnavailable, "")
			x.pass(100 * time.Millisecond).pass(150 * time.Millisecond)
			x.answer(device.Ack, marked(&chatv1.MemberState{Revision: 2, ReadSequence: 2}, ""))
		},
		"marks-of-an-earlier-release": func(x *script) {
			x.loaded().answer(device.Ack, &deliveryv1.AckResponse{}).do(read(2)).answer(device.Ack, &deliveryv1.AckResponse{})
			x.answer(device.MarkRead, &messagev1.MarkReadResponse{State: &chatv1.MemberState{Revision: 2, ReadSequence: 2}})
		},
		"marks-without-a-stream": func(x *script) {
			x.loaded().end(nil).do(read(2)).fail(device.MarkRead, connect.CodeUnavailable, "").restart()
			x.answer(device.MarkRead, &messagev1.MarkReadResponse{State: &chatv1.MemberState{Revision: 2, ReadSequence: 2}})
		},
		"mark-by-one-who-left": func(x *script) {
			x.loaded().answer(device.Ack, &deliveryv1.AckResponse{}).do(read(2)).answer(device.Ack, marked(nil, "NOT_A_MEMBER"))
		},
		"stream-of-the-server-is-gone": func(x *script) {
			x.loaded().fail(device.Ack, connect.CodeNotFound, "STREAM_GONE").frames(messageFrame(4, 5, 4)).pass(time.Second)
		},
		"end-has-wait-and-token": func(x *script) {
			x.loaded().frames(&deliveryv1.Frame{Body: &deliveryv1.Frame_End{End: &deliveryv1.End{
				Code: deliveryv1.EndCode_END_CODE_DRAIN, ReconnectAfter: durationpb.New(3 * time.Second), Token: "t9"}}})
			x.end(nil).pass(2 * time.Second).restart()
		},
	}
}
