package blackbox

import (
	"context"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/google/uuid"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	"github.com/parley-chat/parley/gen/parley/chat/v1/chatv1connect"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/gen/parley/message/v1/messagev1connect"
	"github.com/parley-chat/parley/server/client/bearer"
	"github.com/parley-chat/parley/server/infra/wait"
)

// user calls the server directly, without the proxy. Methods that return no error end the scenario instead.
type user struct {
	w        *world
	id       string
	chats    chatv1connect.ChatServiceClient
	messages messagev1connect.MessageServiceClient
}

// tokenTime is how long the tokens of the test are valid.
const tokenTime = 12 * time.Hour

// user returns a user who exists in the store.
func (w *world) user(id string) *user {
	token, err := w.key.Issue(id, time.Now(), tokenTime)
	w.must(err)
	option := connect.WithInterceptors(bearer.New(func(context.Context, bool) (string, error) { return token, nil }))
	base := "http://" + w.server.addr
	u := &user{w: w, id: id, chats: chatv1connect.NewChatServiceClient(http.DefaultClient, base, option),
		messages: messagev1connect.NewMessageServiceClient(http.DefaultClient, base, option)}
	_, err = u.chats.ListChats(w.ctx, &chatv1.ListChatsRequest{})
	w.must(err)
	return u
}

// group creates a group with other members.
func (u *user) group(name string, others ...*user) string {
	req := &chatv1.CreateChatRequest{Type: chatv1.ChatType_CHAT_TYPE_GROUP, Name: name}
	for _, o := range others {
		req.MemberIds = append(req.MemberIds, o.id)
	}
	return u.create(req)
}

// direct creates the direct chat with another user.
func (u *user) direct(other *user) string {
	return u.create(&chatv1.CreateChatRequest{Type: chatv1.ChatType_CHAT_TYPE_DIRECT, MemberIds: []string{other.id}})
}

func (u *user) create(req *chatv1.CreateChatRequest) string {
	res, err := u.chats.CreateChat(u.w.ctx, req)
	u.w.must(err)
	return res.GetOverview().GetChat().GetChatId()
}

// send stores n messages in a chat, each with a text of its own, and returns the last sequence.
func (u *user) send(chat string, n int) (sequence int64) {
	for range n {
		var err error
		sequence, err = u.trySend(chat)
		u.w.must(err)
	}
	return sequence
}

// trySend stores a message. While the server does not run, it repeats the call.
func (u *user) trySend(chat string) (int64, error) {
	req := &messagev1.SendMessageRequest{ChatId: chat, ClientMessageId: uuid.NewString(), Content: u.w.text(u.id)}
	ctx, cancel := context.WithTimeout(u.w.ctx, u.w.cfg.Timeout)
	defer cancel()
	for {
		res, err := u.messages.SendMessage(ctx, req)
		repeat := !connect.IsWireError(err) || connect.CodeOf(err) == connect.CodeUnavailable
		if err == nil || !repeat || ctx.Err() != nil {
			return res.GetSequence(), err
		}
		if err := wait.For(ctx, 50*time.Millisecond); err != nil {
			return 0, err
		}
	}
}

func (u *user) read(chat string, sequence int64) {
	_, err := u.messages.MarkRead(u.w.ctx, &messagev1.MarkReadRequest{ChatId: chat, Sequence: sequence})
	u.w.must(err)
}

func (u *user) rename(chat, name string) {
	_, err := u.chats.UpdateChat(u.w.ctx, &chatv1.UpdateChatRequest{ChatId: chat, Name: &name})
	u.w.must(err)
}

func (u *user) add(chat string, other *user) {
	_, err := u.chats.AddMember(u.w.ctx, &chatv1.AddMemberRequest{ChatId: chat, UserId: other.id})
	u.w.must(err)
}

func (u *user) remove(chat string, other *user) {
	_, err := u.chats.RemoveMember(u.w.ctx, &chatv1.RemoveMemberRequest{ChatId: chat, UserId: other.id})
	u.w.must(err)
}

func (u *user) leave(chat string) {
	_, err := u.chats.LeaveChat(u.w.ctx, &chatv1.LeaveChatRequest{ChatId: chat})
	u.w.must(err)
}

func (u *user) setRole(chat string, other *user, role chatv1.MemberRole) {
	_, err := u.chats.UpdateMemberRole(u.w.ctx,
		&chatv1.UpdateMemberRoleRequest{ChatId: chat, UserId: other.id, Role: role})
	u.w.must(err)
}

// state returns the user's own state in a chat.
func (u *user) state(chat string) *chatv1.MemberState {
	res, err := u.chats.GetChat(u.w.ctx, &chatv1.GetChatRequest{ChatId: chat})
	u.w.must(err)
	return res.GetOverview().GetState()
}

// stored reads what a client of the user must show, with the content of the chats that are open.
func (u *user) stored(open map[string]bool) (s Shown, err error) {
	for token := ""; ; {
		res, err := u.chats.ListChats(u.w.ctx, &chatv1.ListChatsRequest{PageSize: 100, PageToken: token})
		if err != nil {
			return s, err
		}
		for _, o := range res.GetOverviews() {
			c := ShownChat{Chat: o.GetChat().GetChatId(), Title: o.GetChat().GetName(), Unread: o.GetState().GetUnreadCount(),
				Read: o.GetState().GetReadSequence(), PeerRead: o.GetState().GetPeerReadSequence(),
				Head: o.GetHead().GetSequence()}
			if open[c.Chat] {
				if c.Members, err = u.members(c.Chat); err != nil {
					return s, err
				}
				if c.Messages, err = u.history(c.Chat); err != nil {
					return s, err
				}
			}
			s.Chats = append(s.Chats, c)
		}
		if token = res.GetNextPageToken(); token == "" {
			return s, nil
		}
	}
}

func (u *user) members(chat string) (list []ShownMember, err error) {
	for token := ""; ; {
		res, err := u.chats.ListMembers(u.w.ctx, &chatv1.ListMembersRequest{ChatId: chat, PageSize: 100, PageToken: token})
		if err != nil {
			return nil, err
		}
		for _, m := range res.GetMembers() {
			list = append(list, ShownMember{m.GetUserId(), roleName(m.GetRole())})
		}
		if token = res.GetNextPageToken(); token == "" {
			return list, nil
		}
	}
}

// roleName is a role as the protocol has it.
func roleName(r chatv1.MemberRole) string {
	return strings.ToLower(strings.TrimPrefix(r.String(), "MEMBER_ROLE_"))
}

// history returns all messages of a chat that the user may read, oldest first.
func (u *user) history(chat string) (list []ShownMessage, err error) {
	for after := int64(0); ; {
		res, err := u.messages.ListMessages(u.w.ctx,
			&messagev1.ListMessagesRequest{ChatId: chat, PageSize: 100, AfterSequence: &after})
		if err != nil {
			return nil, err
		}
		for _, m := range res.GetMessages() {
			list, after = append(list, ShownMessage{m.GetSequence(), m.GetSenderId(), m.GetContent()}), m.GetSequence()
		}
		if !res.GetHasMore() {
			return list, nil
		}
	}
}
