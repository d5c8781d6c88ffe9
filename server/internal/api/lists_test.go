package api_test

import (
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Who is in 10,000 chats gets that error; of others it says no more than who it is.
func TestTooManyChats(t *testing.T) {
	s := newServer(t)
	ann, bob := s.ann(), s.clients(http.DefaultClient, "bob")
	id := s.group("cid")
	full := table.User{CreatedAt: time.Now().UnixMilli(), Status: table.Active, Chats: 10_000, Counted: true}
	s.must(s.store.Store.BatchWrite(t.Context(),
		[]store.Write{{Op: store.OpPut, Key: table.UserKey("bob"), Item: full.Item()}}))
	check := func(what string, err error, text, limit string) {
		t.Helper()
		wantCode(t, what, err, connect.CodeFailedPrecondition, "TOO_MANY_CHATS")
		var e *connect.Error
		errors.As(err, &e)
		m, err := e.Details()[0].Value()
		s.must(err)
		info, _ := m.(*errdetails.ErrorInfo)
		testkit.Equal(t, what, fmt.Sprint(e.Message(), info.GetMetadata()["user_id"], info.GetMetadata()["limit"]),
			text+"bob"+limit)
	}
	ctx := t.Context()
	_, err := ann.chat.CreateChat(ctx,
		&chatv1.CreateChatRequest{Type: chatv1.ChatType_CHAT_TYPE_GROUP, Name: "g", MemberIds: []string{"cid", "bob"}})
	check("group", err, "bob cannot be in any more chats", "")
	_, err = ann.chat.CreateChat(ctx,
		&chatv1.CreateChatRequest{Type: chatv1.ChatType_CHAT_TYPE_DIRECT, MemberIds: []string{"bob"}})
	check("direct chat", err, "bob cannot be in any more chats", "")
	_, err = ann.chat.AddMember(ctx, &chatv1.AddMemberRequest{ChatId: id, UserId: "bob"})
	check("addition", err, "bob cannot be in any more chats", "")
	_, err = bob.chat.CreateChat(ctx,
		&chatv1.CreateChatRequest{Type: chatv1.ChatType_CHAT_TYPE_GROUP, Name: "g", MemberIds: []string{"cid"}})
	check("own", err, "you are in 10000 chats, which is as many as can be: leave one first", "10000")
}

// Filters, order and role come through the API.
func TestListChatsOfTheAPI(t *testing.T) {
	s := newServer(t)
	ctx, ann := t.Context(), s.ann()
	var ids []string
	for range 3 {
		ids = append(ids, s.group("bob"))
		time.Sleep(2 * time.Millisecond) // the server's clock is the machine's: another millisecond, another place
	}
	_, err := s.clients(http.DefaultClient, "bob").message.SendMessage(ctx,
		&messagev1.SendMessageRequest{ChatId: ids[0], Content: "x"})
	s.must(err)
	_, err = ann.chat.ArchiveChat(ctx, &chatv1.ArchiveChatRequest{ChatId: ids[1]})
	s.must(err)
	list := func(req *chatv1.ListChatsRequest) (got []string) {
		res, err := ann.chat.ListChats(ctx, req)
		s.must(err)
		for _, c := range res.GetOverviews() {
			got = append(got, c.GetChat().GetChatId())
			testkit.Equal(t, "role", c.GetState().GetRole(), chatv1.MemberRole_MEMBER_ROLE_OWNER)
		}
		return got
	}
	testkit.Equal(t, "all", list(&chatv1.ListChatsRequest{PageSize: 1000}), []string{ids[0], ids[2], ids[1]})
	testkit.Equal(t, "archived", list(&chatv1.ListChatsRequest{Archived: proto.Bool(true)}), []string{ids[1]})
	testkit.Equal(t, "not archived", list(&chatv1.ListChatsRequest{Archived: proto.Bool(false)}), []string{ids[0], ids[2]})
	testkit.Equal(t, "unread", list(&chatv1.ListChatsRequest{Unread: proto.Bool(true)}), []string{ids[0]})
	_, err = ann.chat.ListChats(ctx, &chatv1.ListChatsRequest{PageSize: -1})
	wantCode(t, "negative", err, connect.CodeInvalidArgument, "INVALID_ARGUMENT")
}
