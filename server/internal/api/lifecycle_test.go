package api_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/types/known/timestamppb"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// The life of a group over the RPCs: what each answers, what a repetition
// answers, and what the members see of it (L-064 to L-100, L-184, L-189).
func TestLifecycle(t *testing.T) {
	s := newServer(t)
	for _, u := range []string{"dan", "eve"} {
		s.must(s.chats.EnsureUser(t.Context(), u))
	}
	ctx, info := connect.NewClientContext(t.Context())
	replayed := func() string { return info.ResponseHeader().Get("Idempotency-Replayed") }
	ann, bob := s.ann().chat, s.clients(http.DefaultClient, "bob").chat
	id := s.group("bob")
	count := func() int32 {
		got, err := ann.GetChat(t.Context(), &chatv1.GetChatRequest{ChatId: id})
		s.must(err)
		return got.GetOverview().GetChat().GetMemberCount()
	}

	add := &chatv1.AddMemberRequest{ChatId: id, UserId: "cid", RequestId: "r1"}
	for i := range 2 {
		added, err := ann.AddMember(ctx, add)
		s.must(err)
		m := added.GetMember()
		testkit.Equal(t, "member", fmt.Sprint(m.GetUserId(), m.GetRole(), m.GetVersion(), m.GetJoinedAt() != nil),
			fmt.Sprint("cid", chatv1.MemberRole_MEMBER_ROLE_MEMBER, 3, true))
		testkit.Equal(t, "replayed", replayed(), []string{"", "true"}[i])
	}
	testkit.Equal(t, "count", count(), 3)
	add.UserId = "dan"
	_, err := ann.AddMember(ctx, add)
	wantCode(t, "other content", err, connect.CodeInvalidArgument, "IDEMPOTENCY_KEY_REUSED")
	// S-53: the key is the user's own, and the parent's.
	_, err = ann.AddMember(ctx, &chatv1.AddMemberRequest{ChatId: s.group("bob"), UserId: "dan", RequestId: "r1"})
	s.must(err)

	role := &chatv1.UpdateMemberRoleRequest{ChatId: id, UserId: "bob", Role: chatv1.MemberRole_MEMBER_ROLE_ADMIN,
		RequestId: "r2"}
	for i := range 2 {
		changed, err := ann.UpdateMemberRole(ctx, role)
		s.must(err)
		testkit.Equal(t, "role", changed.GetMember().GetRole(), chatv1.MemberRole_MEMBER_ROLE_ADMIN)
		testkit.Equal(t, "version", changed.GetMember().GetVersion(), 4)
		testkit.Equal(t, "replayed", replayed(), []string{"", "true"}[i])
		if changed.GetMember().GetJoinedAt() == nil {
			t.Error("a role without the time of joining")
		}
	}
	before := s.head(id)
	role.RequestId = "r3"
	same, err := ann.UpdateMemberRole(ctx, role) // L-100
	s.must(err)
	testkit.Equal(t, "same role",
		fmt.Sprint(same.GetMember().GetRole(), s.head(id) == before, same.GetMember().GetVersion()),
		fmt.Sprint(chatv1.MemberRole_MEMBER_ROLE_ADMIN, true, 4))

	name := "renamed"
	rename := &chatv1.UpdateChatRequest{ChatId: id, Name: &name, RequestId: "r4"}
	for i := range 2 {
		updated, err := bob.UpdateChat(ctx, rename)
		s.must(err)
		c := updated.GetChat()
		testkit.Equal(t, "chat", fmt.Sprint(c.GetName(), c.GetVersion(), c.GetMemberCount(), c.GetType()),
			fmt.Sprint(name, 5, 3, chatv1.ChatType_CHAT_TYPE_GROUP))
		testkit.Equal(t, "replayed", replayed(), []string{"", "true"}[i])
		if !c.GetUpdatedAt().AsTime().After(c.GetCreatedAt().AsTime().Add(-time.Millisecond)) {
			t.Errorf("times %v", c)
		}
	}
	nothing, err := bob.UpdateChat(ctx, &chatv1.UpdateChatRequest{ChatId: id})
	s.must(err)
	testkit.Equal(t, "nothing to change", fmt.Sprint(nothing.GetChat().GetName(), nothing.GetChat().GetVersion()),
		fmt.Sprint("renamed", 5))

	for i := range 2 {
		_, err = bob.RemoveMember(ctx, &chatv1.RemoveMemberRequest{ChatId: id, UserId: "cid", RequestId: "r5"})
		s.must(err)
		testkit.Equal(t, "replayed", replayed(), []string{"", "true"}[i])
	}
	testkit.Equal(t, "L-184 count", count(), 2)
	for i := range 2 {
		_, err = bob.LeaveChat(ctx, &chatv1.LeaveChatRequest{ChatId: id, RequestId: "r6"})
		s.must(err)
		testkit.Equal(t, "replayed", replayed(), []string{"", "true"}[i])
	}
	testkit.Equal(t, "count", count(), 1)
	// A repetition by somebody who has left is answered like the first, and tells
	// nothing that happened since.
	other := "other"
	_, err = ann.UpdateChat(ctx, &chatv1.UpdateChatRequest{ChatId: id, Name: &other})
	s.must(err)
	again, err := bob.UpdateChat(ctx, rename)
	s.must(err)
	testkit.Equal(t, "rename again",
		fmt.Sprint(again.GetChat().GetName(), again.GetChat().GetVersion(), again.GetChat().GetMemberCount()),
		fmt.Sprint(name, 5, 3))
	rename.RequestId = ""
	_, err = bob.UpdateChat(ctx, rename)
	wantCode(t, "rename again", err, connect.CodePermissionDenied, "NOT_A_MEMBER")

	// Every change is in the change log, in order.
	changes, err := s.ann().message.ListChanges(t.Context(), &messagev1.ListChangesRequest{ChatId: id})
	s.must(err)
	testkit.Equal(t, "version", changes.GetVersion(), 8)
}

// L-106, L-140: mute and archive touch the caller's row alone, and tell the
// caller's other streams.
func TestOwnState(t *testing.T) {
	s := newServer(t)
	id := s.group("bob")
	ctx, info := connect.NewClientContext(t.Context())
	ann := s.ann().chat
	before := s.head(id)
	until := timestamppb.New(time.Now().Add(time.Hour).Truncate(time.Millisecond))
	mute := &chatv1.MuteChatRequest{ChatId: id, MutedUntil: until, RequestId: "m1"}
	muted, err := ann.MuteChat(ctx, mute)
	s.must(err)
	testkit.Equal(t, "muted until", muted.GetState().GetMutedUntil().AsTime(), until.AsTime())
	open, err := ann.UnmuteChat(ctx, &chatv1.UnmuteChatRequest{ChatId: id})
	s.must(err)
	testkit.Equal(t, "unmuted", open.GetState().GetMutedUntil() == nil, true)
	again, err := ann.MuteChat(ctx, mute) // the repetition of an old request changes nothing
	s.must(err)
	testkit.Equal(t, "still unmuted",
		fmt.Sprint(again.GetState().GetMutedUntil() == nil, info.ResponseHeader().Get("Idempotency-Replayed")),
		fmt.Sprint(true, "true"))
	mute.MutedUntil = nil
	_, err = ann.MuteChat(ctx, mute)
	wantCode(t, "other content", err, connect.CodeInvalidArgument, "IDEMPOTENCY_KEY_REUSED")
	forever, err := ann.MuteChat(ctx, &chatv1.MuteChatRequest{ChatId: id})
	s.must(err)
	testkit.Equal(t, "for ever", forever.GetState().GetMutedUntil().AsTime().Year(), 9999)
	_, err = ann.MuteChat(ctx, &chatv1.MuteChatRequest{ChatId: id,
		MutedUntil: timestamppb.New(time.Now().Add(-time.Minute))})
	wantCode(t, "in the past", err, connect.CodeInvalidArgument, "INVALID_ARGUMENT")
	testkit.Equal(t, "violations", violations(t, err), "muted_until: a chat is muted until a time in the future")
	_, err = ann.CreateChat(ctx, &chatv1.CreateChatRequest{Type: chatv1.ChatType_CHAT_TYPE_GROUP, Name: "g",
		MemberIds: []string{"ann"}})
	wantCode(t, "L-027", err, connect.CodeInvalidArgument, "INVALID_ARGUMENT")
	testkit.Equal(t, "violations", violations(t, err), "member_ids: a group has 1 to 99 other members")
	_, err = ann.MuteChat(ctx, &chatv1.MuteChatRequest{ChatId: id, MutedUntil: &timestamppb.Timestamp{Seconds: 1 << 60}})
	wantCode(t, "no time", err, connect.CodeInvalidArgument, "INVALID_ARGUMENT")

	archived, err := ann.ArchiveChat(ctx, &chatv1.ArchiveChatRequest{ChatId: id, RequestId: "a1"})
	s.must(err)
	testkit.Equal(t, "archived, muted",
		fmt.Sprint(archived.GetState().GetArchived(), archived.GetState().GetMutedUntil() != nil),
		fmt.Sprint(true, true))
	sync, err := s.ann().delivery.Sync(t.Context(), &deliveryv1.SyncRequest{})
	s.must(err)
	testkit.Equal(t, "in Sync", sync.GetOverviews()[0].GetState().GetArchived(), true)
	shown, err := ann.UnarchiveChat(ctx, &chatv1.UnarchiveChatRequest{ChatId: id})
	s.must(err)
	testkit.Equal(t, "shown", shown.GetState().GetArchived(), false)
	again2, err := ann.ArchiveChat(ctx, &chatv1.ArchiveChatRequest{ChatId: id, RequestId: "a1"})
	s.must(err)
	testkit.Equal(t, "still shown", again2.GetState().GetArchived(), false)

	testkit.Equal(t, "head", s.head(id), before)
	got, err := s.clients(http.DefaultClient, "bob").chat.GetChat(t.Context(), &chatv1.GetChatRequest{ChatId: id})
	s.must(err)
	state := got.GetOverview().GetState()
	testkit.Equal(t, "bob's state", fmt.Sprint(state.GetMutedUntil() == nil, state.GetArchived()), "true false")
}

// violations are the fields that an error names.
func violations(t *testing.T, err error) string {
	t.Helper()
	var e *connect.Error
	if !errors.As(err, &e) {
		t.Fatal(err)
	}
	var all []string
	for _, d := range e.Details() {
		m, err := d.Value()
		if err != nil {
			t.Fatal(err)
		}
		if bad, ok := m.(*errdetails.BadRequest); ok {
			for _, v := range bad.GetFieldViolations() {
				all = append(all, v.GetField()+": "+v.GetDescription())
			}
		}
	}
	return strings.Join(all, "; ")
}

// What a user sets on one device, the user's other streams hear of; nobody else's
// do.
func TestOwnStateIsEchoed(t *testing.T) {
	s := newServer(t)
	id := s.group("bob")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	next := map[string]func() *deliveryv1.Frame{}
	for _, user := range []string{"ann", "bob"} {
		stream, err := s.clients(http.DefaultClient, user).delivery.Subscribe(ctx, &deliveryv1.SubscribeRequest{})
		s.must(err)
		next[user] = receiver(t, stream)
		for f := next[user](); f.GetHeartbeat() == nil; f = next[user]() {
		}
	}
	_, err := s.ann().chat.ArchiveChat(t.Context(), &chatv1.ArchiveChatRequest{ChatId: id})
	s.must(err)
	_, err = s.ann().chat.MuteChat(t.Context(), &chatv1.MuteChatRequest{ChatId: id})
	s.must(err)
	for _, want := range []string{fmt.Sprint(true, false), fmt.Sprint(true, true)} {
		f := next["ann"]()
		for f.GetMemberState() == nil {
			f = next["ann"]()
		}
		state := f.GetMemberState()
		testkit.Equal(t, "echo", fmt.Sprint(state.GetArchived(), state.GetMutedUntil() != nil), want)
		testkit.Equal(t, "chat", f.GetChatId(), id)
	}
	_, err = s.ann().message.SendMessage(t.Context(), &messagev1.SendMessageRequest{ChatId: id, Content: "marker"})
	s.must(err)
	for f := next["bob"](); f.GetMessage() == nil; f = next["bob"]() {
		if f.GetMemberState() != nil {
			t.Errorf("bob hears of ann's state: %v", f)
		}
	}
}

// L-123, L-131: a removed member's open stream gets a frame that says so, and
// nothing that was committed afterwards; the next send is refused.
func TestRemovedStream(t *testing.T) {
	for _, leave := range []bool{false, true} {
		t.Run(fmt.Sprintf("by itself=%v", leave), func(t *testing.T) {
			s := newServer(t)
			id, other := s.group("bob"), s.group("bob")
			bob := s.clients(http.DefaultClient, "bob")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			stream, err := bob.delivery.Subscribe(ctx, &deliveryv1.SubscribeRequest{})
			s.must(err)
			next := receiver(t, stream)
			for f := next(); f.GetHeartbeat() == nil; f = next() { // the stream is live from here
			}
			_, err = s.ann().message.SendMessage(t.Context(), &messagev1.SendMessageRequest{ChatId: id, Content: "before"})
			s.must(err)
			if leave {
				_, err = bob.chat.LeaveChat(t.Context(), &chatv1.LeaveChatRequest{ChatId: id})
			} else {
				_, err = s.ann().chat.RemoveMember(t.Context(), &chatv1.RemoveMemberRequest{ChatId: id, UserId: "bob"})
			}
			s.must(err)
			_, err = s.ann().message.SendMessage(t.Context(), &messagev1.SendMessageRequest{ChatId: id, Content: "secret"})
			s.must(err)
			name := "secret name"
			_, err = s.ann().chat.UpdateChat(t.Context(), &chatv1.UpdateChatRequest{ChatId: id, Name: &name})
			s.must(err)
			_, err = s.ann().message.SendMessage(t.Context(), &messagev1.SendMessageRequest{ChatId: other, Content: "marker"})
			s.must(err)
			var seen []string
			for {
				f := next()
				if f.GetMessage().GetContent() == "marker" {
					break
				}
				// that the user is gone may be said again
				if f.GetChatId() == id && (len(seen) < 2 || f.GetMembershipChange().GetUserId() != "bob") {
					seen = append(seen, fmt.Sprint(f.GetVersion(), f.GetMessage().GetContent(), f.GetMembershipChange().GetKind(),
						f.GetMembershipChange().GetUserId()))
				}
			}
			testkit.Equal(t, "frames of the chat", strings.Join(seen, "; "), fmt.Sprint(
				fmt.Sprint(3, "before", messagev1.MembershipChange_KIND_UNSPECIFIED, ""), "; ",
				fmt.Sprint(4, "", messagev1.MembershipChange_KIND_REMOVED, "bob")))
			_, err = bob.message.SendMessage(t.Context(), &messagev1.SendMessageRequest{ChatId: id, Content: "x"})
			wantCode(t, "send", err, connect.CodePermissionDenied, "NOT_A_MEMBER")
			_, err = bob.chat.GetChat(t.Context(), &chatv1.GetChatRequest{ChatId: id})
			wantCode(t, "read", err, connect.CodePermissionDenied, "NOT_A_MEMBER")
		})
	}
}

// receiver returns the frames of a stream one by one.
func receiver(
	t *testing.T, stream *connect.ServerStreamForClient[deliveryv1.SubscribeResponse],
) func() *deliveryv1.Frame {
	var frames []*deliveryv1.Frame
	return func() *deliveryv1.Frame {
		t.Helper()
		for len(frames) == 0 {
			if !stream.Receive() {
				t.Fatal(stream.Err())
			}
			frames = stream.Msg().GetFrames()
		}
		f := frames[0]
		frames = frames[1:]
		return f
	}
}

// L-017, L-020, L-162, L-176 to L-178: however many ask for the direct chat of two
// people at once, there is one, and one caller has made it.
func TestDirectRace(t *testing.T) {
	for _, n := range []int{2, 8, 64} {
		s := newServer(t)
		ids := make([]string, n)
		fresh := make([]bool, n)
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				user, other := "ann", "bob"
				if i%2 == 1 {
					user, other = other, user
				}
				body := fmt.Sprintf(`{"type":1,"memberIds":[%q]}`, other)
				if i%4 > 1 {
					body = fmt.Sprintf(`{"type":1,"memberIds":[%q],"requestId":"r%d"}`, other, i)
				}
				a := s.post(createChat, body, "X-User", user)
				_, rest, _ := strings.Cut(string(a.body), "chat_")
				ids[i] = fmt.Sprint(a.status, rest[:min(26, len(rest))])
				fresh[i] = a.header.Get("Idempotency-Replayed") == ""
			})
		}
		wg.Wait()
		made := 0
		for i := range n {
			testkit.Equal(t, "chat", ids[i], ids[0])
			if fresh[i] {
				made++
			}
		}
		testkit.Equal(t, fmt.Sprintf("made, of %d callers", n), made, 1)
	}
}

// L-005: no RPC archives a chat for all, brings it back or deletes it: nothing that
// a client sends holds a status.
func TestNoRPCChangesTheStatus(t *testing.T) {
	n := 0
	for _, f := range ownFiles {
		for i := range f.Services().Len() {
			for j := range f.Services().Get(i).Methods().Len() {
				n++
				in := f.Services().Get(i).Methods().Get(j).Input()
				for k := range in.Fields().Len() {
					if field := in.Fields().Get(k); strings.Contains(string(field.Name()), "status") ||
						(field.Enum() != nil && field.Enum().Name() == "ChatStatus") {
						t.Errorf("%s", field.FullName())
					}
				}
			}
		}
	}
	testkit.Equal(t, "RPCs", n, 21)
}

// L-069, L-148 to L-154, L-182: the hundredth member is the last; and the codes
// that are not in the matrix.
func TestFullChat(t *testing.T) {
	s := newServer(t)
	var others []string
	for i := range 100 {
		others = append(others, fmt.Sprintf("u%d", i))
		s.must(s.chats.EnsureUser(t.Context(), others[i]))
	}
	id := s.group(others[:99]...)
	add := &chatv1.AddMemberRequest{ChatId: id, UserId: others[99]}
	_, err := s.ann().chat.AddMember(t.Context(), add)
	wantCode(t, "L-149", err, connect.CodeFailedPrecondition, "CHAT_FULL")
	_, err = s.ann().chat.LeaveChat(t.Context(), &chatv1.LeaveChatRequest{ChatId: id})
	wantCode(t, "L-148", err, connect.CodeFailedPrecondition, "INVALID_OPERATION")
	_, err = s.ann().chat.AddMember(t.Context(), &chatv1.AddMemberRequest{ChatId: id, UserId: others[0]})
	wantCode(t, "L-152", err, connect.CodeAlreadyExists, "ALREADY_MEMBER")
	_, err = s.ann().chat.RemoveMember(t.Context(), &chatv1.RemoveMemberRequest{ChatId: id, UserId: others[99]})
	wantCode(t, "L-153", err, connect.CodeNotFound, "MEMBER_NOT_FOUND")
	u0 := s.clients(http.DefaultClient, "u0").chat
	_, err = u0.AddMember(t.Context(), add)
	wantCode(t, "L-150", err, connect.CodePermissionDenied, "FORBIDDEN")
	_, err = s.clients(http.DefaultClient, others[99]).chat.AddMember(t.Context(), add)
	wantCode(t, "L-151", err, connect.CodePermissionDenied, "NOT_A_MEMBER")
	_, err = u0.LeaveChat(t.Context(), &chatv1.LeaveChatRequest{ChatId: id})
	s.must(err)
	_, err = s.ann().chat.AddMember(t.Context(), add)
	s.must(err)
	got, err := s.ann().chat.GetChat(t.Context(), &chatv1.GetChatRequest{ChatId: id})
	s.must(err)
	testkit.Equal(t, "members", got.GetOverview().GetChat().GetMemberCount(), 100)
}

// L-044, L-045: a new group is in its creator's list at once, and in the others'
// when they are in.
func TestListDuringCreation(t *testing.T) {
	s := newServer(t)
	dying, err := chat.New(t.Context(),
		chat.Config{Store: &brief{Store: s.store.Store, plans: 1}, Clock: time.Now, Generation: "gen", Producer: "dying"})
	s.must(err)
	c, err := dying.CreateGroup(t.Context(), chat.CreateGroup{Caller: "ann", Name: "g", Members: []string{"bob"}})
	s.must(err)
	if c.Incomplete == nil {
		t.Fatal("nothing is pending")
	}
	listed := func(user string) int {
		list, err := s.clients(http.DefaultClient, user).chat.ListChats(t.Context(), &chatv1.ListChatsRequest{})
		s.must(err)
		return len(list.GetOverviews())
	}
	testkit.Equal(t, "listed", fmt.Sprint(listed("ann"), listed("bob")), fmt.Sprint(1, 0))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := s.clients(http.DefaultClient, "bob").delivery.Subscribe(ctx, &deliveryv1.SubscribeRequest{})
	s.must(err)
	next := receiver(t, stream)
	for f := next(); f.GetHeartbeat() == nil; f = next() {
	}
	s.must(s.chats.FinishPending(t.Context(), c.ChatID))
	testkit.Equal(t, "listed", fmt.Sprint(listed("ann"), listed("bob")), fmt.Sprint(1, 1))
	// L-049: from then on the stream that is open gets what happens in the chat.
	_, err = s.ann().message.SendMessage(t.Context(), &messagev1.SendMessageRequest{ChatId: c.ChatID, Content: "hello"})
	s.must(err)
	f := next()
	for ; f.GetMessage() == nil; f = next() {
		if f.GetHeartbeat() == nil {
			testkit.Equal(t, "a frame of the chat", f.GetChatId(), c.ChatID)
		}
	}
	testkit.Equal(t, "message", f.GetMessage().GetContent(), "hello")
}
