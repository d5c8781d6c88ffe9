package adminapi

import (
	"cmp"
	"context"

	adminv1 "github.com/parley-chat/parley/gen/parley/admin/v1"
	"github.com/parley-chat/parley/gen/parley/admin/v1/adminv1connect"
	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	"github.com/parley-chat/parley/server/identity/admin"
	"github.com/parley-chat/parley/server/store/table"
)

type chatService struct{ chats *admin.Chats }

var _ adminv1connect.ChatAdminServiceHandler = (*chatService)(nil)

var chatTypes = map[table.Type]chatv1.ChatType{
	table.Direct: chatv1.ChatType_CHAT_TYPE_DIRECT, table.Group: chatv1.ChatType_CHAT_TYPE_GROUP,
}

var memberRoles = map[table.Role]chatv1.MemberRole{
	table.Owner: chatv1.MemberRole_MEMBER_ROLE_OWNER, table.Admin: chatv1.MemberRole_MEMBER_ROLE_ADMIN,
	table.Member: chatv1.MemberRole_MEMBER_ROLE_MEMBER,
}

// defaultMessages is how many messages are shown if no number is asked for.
const defaultMessages = 50

// GetChat implements adminv1connect.ChatAdminServiceHandler.
func (s *chatService) GetChat(ctx context.Context, req *adminv1.GetChatRequest) (*adminv1.GetChatResponse, error) {
	c, head, err := s.chats.Get(ctx, req.GetChatId())
	if err != nil {
		return nil, err
	}
	return &adminv1.GetChatResponse{Chat: &adminv1.InspectedChat{
		ChatId: c.ChatID, Type: chatTypes[c.Type], CreatedBy: c.CreatedBy, CreatedAt: millis(c.CreatedAt),
		UpdatedAt: millis(c.UpdatedAt), Members: c.MemberCount, Sequence: head.Sequence, Version: head.Version,
		LastMessageAt: millis(head.LastAt),
	}}, nil
}

// ListChatMembers implements adminv1connect.ChatAdminServiceHandler.
func (s *chatService) ListChatMembers(
	ctx context.Context, req *adminv1.ListChatMembersRequest,
) (*adminv1.ListChatMembersResponse, error) {
	members, pending, err := s.chats.Members(ctx, req.GetChatId())
	if err != nil {
		return nil, err
	}
	out := &adminv1.ListChatMembersResponse{}
	for _, m := range members {
		out.Members = append(out.Members, &adminv1.InspectedMember{UserId: m.UserID, Role: memberRoles[m.Role],
			JoinedAt: millis(m.JoinedAt), JoinedSequence: m.JoinedSequence})
	}
	for _, user := range pending {
		out.Members = append(out.Members, &adminv1.InspectedMember{UserId: user, Pending: true,
			Role: chatv1.MemberRole_MEMBER_ROLE_MEMBER})
	}
	return out, nil
}

// ReadMessages implements adminv1connect.ChatAdminServiceHandler.
func (s *chatService) ReadMessages(
	ctx context.Context, req *adminv1.ReadMessagesRequest,
) (*adminv1.ReadMessagesResponse, error) {
	list, err := s.chats.Messages(ctx, req.GetChatId(), req.GetFromSequence(),
		cmp.Or(int(req.GetLimit()), defaultMessages))
	if err != nil {
		return nil, err
	}
	out := &adminv1.ReadMessagesResponse{}
	for _, m := range list {
		out.Messages = append(out.Messages, &adminv1.InspectedMessage{MessageId: m.MessageID, Sequence: m.Sequence,
			SenderId: m.SenderID, CreatedAt: millis(m.CreatedAt), Content: m.Content})
	}
	return out, nil
}
