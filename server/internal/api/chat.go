package api

import (
	"context"

	"connectrpc.com/connect"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	"github.com/parley-chat/parley/gen/parley/chat/v1/chatv1connect"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/view"
)

// replayHeader marks an answer to a request that was carried out before.
const replayHeader = "Idempotency-Replayed"

// caller is the user who is calling; the interceptor has made sure that there is
// one.
func caller(ctx context.Context) string {
	p, _ := auth.PrincipalFrom(ctx)
	return p.UserID
}

func markReplay(ctx context.Context, replayed bool) {
	if !replayed {
		return
	}
	if info, ok := connect.CallInfoForHandlerContext(ctx); ok {
		info.ResponseHeader().Set(replayHeader, "true")
	}
}

// chatHandler serves ChatService. The RPCs that change an existing chat are not
// offered yet and answer unimplemented.
type chatHandler struct {
	chatv1connect.UnimplementedChatServiceHandler
	chats *chat.Service
	view  *view.Reader
}

func (h *chatHandler) CreateChat(ctx context.Context, req *chatv1.CreateChatRequest) (*chatv1.CreateChatResponse, error) {
	if err := checkName(req.GetName()); err != nil {
		return nil, err
	}
	user, history := caller(ctx), table.All
	if req.GetHistory() == chatv1.HistoryMode_HISTORY_MODE_SINCE_JOINED {
		history = table.SinceJoined
	}
	var created chat.Created
	var err error
	if req.GetType() == chatv1.ChatType_CHAT_TYPE_DIRECT {
		other, err := otherOf(user, req.GetMemberIds())
		if err != nil {
			return nil, err
		}
		created, err = h.chats.CreateDirect(ctx, chat.CreateDirect{Caller: user, Other: other, History: history, RequestID: req.GetRequestId()})
		if err != nil {
			return nil, err
		}
	} else {
		created, err = h.chats.CreateGroup(ctx, chat.CreateGroup{
			Caller: user, Name: req.GetName(), Members: req.GetMemberIds(), History: history, RequestID: req.GetRequestId(),
		})
		if err != nil {
			return nil, err
		}
	}
	ov, err := h.view.Overview(ctx, user, created.ChatID)
	if err != nil {
		return nil, err
	}
	markReplay(ctx, created.Replayed)
	return &chatv1.CreateChatResponse{Chat: ov}, nil
}

// otherOf finds the other person of a direct chat: [B], or [A, B] where the caller
// is one of them (L-022).
func otherOf(user string, members []string) (string, error) {
	switch {
	case len(members) == 1:
		return members[0], nil
	case len(members) == 2 && members[0] == user:
		return members[1], nil
	case len(members) == 2 && members[1] == user:
		return members[0], nil
	case len(members) == 2:
		return "", chat.ErrForbidden
	}
	return "", chat.ErrInvalidOperation
}

func (h *chatHandler) GetChat(ctx context.Context, req *chatv1.GetChatRequest) (*chatv1.GetChatResponse, error) {
	ov, err := h.view.Overview(ctx, caller(ctx), req.GetChatId())
	if err != nil {
		return nil, err
	}
	return &chatv1.GetChatResponse{Chat: ov}, nil
}

func (h *chatHandler) ListChats(ctx context.Context, req *chatv1.ListChatsRequest) (*chatv1.ListChatsResponse, error) {
	chats, next, err := h.view.ListChats(ctx, caller(ctx), int(req.GetPageSize()), req.GetPageToken())
	if err != nil {
		return nil, err
	}
	return &chatv1.ListChatsResponse{Chats: chats, NextPageToken: next}, nil
}

func (h *chatHandler) ListMembers(ctx context.Context, req *chatv1.ListMembersRequest) (*chatv1.ListMembersResponse, error) {
	return h.view.Members(ctx, caller(ctx), req.GetChatId(), int(req.GetPageSize()), req.GetPageToken())
}
