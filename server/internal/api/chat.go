package api

import (
	"context"
	"log/slog"
	"slices"

	"connectrpc.com/connect"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	"github.com/parley-chat/parley/gen/parley/chat/v1/chatv1connect"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/view"
)

// replayedHeader marks the answer to an earlier request that was repeated.
const replayedHeader = "Idempotency-Replayed"

// chatHandler serves ChatService.
type chatHandler struct {
	chat *chat.Service
	view *view.Reader
	log  *slog.Logger
}

var _ chatv1connect.ChatServiceHandler = (*chatHandler)(nil)

// caller is the user of a request; the interceptor has checked that there is one.
func caller(ctx context.Context) string {
	p, _ := auth.PrincipalFrom(ctx)
	return p.UserID
}

// markReplayed sets the header of replayed answers.
func markReplayed(ctx context.Context, replayed bool) {
	if info, ok := connect.CallInfoForHandlerContext(ctx); ok && replayed {
		info.ResponseHeader().Set(replayedHeader, "true")
	}
}

// cause is the origin of the events of a request.
func cause(ctx context.Context, requestID string) event.Cause {
	p, _ := auth.PrincipalFrom(ctx)
	c := event.Cause{Causation: requestID, Service: p.ByService()}
	if info, ok := connect.CallInfoForHandlerContext(ctx); ok {
		c.Trace = traceID(info.RequestHeader().Get("Traceparent"))
	}
	return c
}

// traceID returns the trace-id of a W3C traceparent, "" if it is none.
func traceID(traceparent string) string {
	const begin, end, size = 3, 35, 55 // version "-" trace-id "-" parent-id "-" flags
	if len(traceparent) < size || traceparent[begin-1] != '-' || traceparent[end] != '-' {
		return ""
	}
	id := traceparent[begin:end]
	zero := true
	for _, c := range []byte(id) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return ""
		}
		zero = zero && c == '0'
	}
	if zero {
		return ""
	}
	return id
}

// CreateChat implements ChatService.
func (h *chatHandler) CreateChat(
	ctx context.Context, req *chatv1.CreateChatRequest,
) (*chatv1.CreateChatResponse, error) {
	history := table.All
	if req.GetHistory() == chatv1.HistoryMode_HISTORY_MODE_SINCE_JOINED {
		history = table.SinceJoined
	}
	var created chat.Created
	var err error
	if req.GetType() == chatv1.ChatType_CHAT_TYPE_DIRECT {
		var other string
		if other, err = otherOf(caller(ctx), req.GetMemberIds()); err != nil {
			return nil, err
		}
		created, err = h.chat.CreateDirect(ctx, chat.CreateDirect{
			Caller: caller(ctx), Other: other, History: history,
			RequestID: req.GetRequestId(), Cause: cause(ctx, req.GetRequestId()),
		})
	} else {
		if err := checkName("name", req.GetName()); err != nil {
			return nil, err
		}
		created, err = h.chat.CreateGroup(ctx, chat.CreateGroup{
			Caller: caller(ctx), Name: req.GetName(), Members: req.GetMemberIds(), History: history,
			RequestID: req.GetRequestId(), Cause: cause(ctx, req.GetRequestId()),
		})
	}
	if err != nil {
		return nil, fieldOf(err, "member_ids") // the rest was validated
	}
	if created.Incomplete != nil { // the chat exists; its other members follow
		h.log.WarnContext(ctx, "chat_creation_incomplete", slog.String("chat_id", created.ChatID),
			slog.Any("error", created.Incomplete))
	}
	overview, err := h.view.Overview(ctx, caller(ctx), created.ChatID)
	if err != nil {
		return nil, err
	}
	markReplayed(ctx, created.Replayed)
	return &chatv1.CreateChatResponse{Overview: overview}, nil
}

// otherOf returns the other person of a direct chat. The list may name the caller, too:
// clients send either form.
func otherOf(user string, members []string) (string, error) {
	members = slices.Clone(members)
	slices.Sort(members)
	members = slices.Compact(members)
	if len(members) == 2 {
		members = slices.DeleteFunc(members, func(m string) bool { return m == user })
	}
	if len(members) != 1 {
		return "", invalidField("member_ids",
			"must name one other user for a direct chat, which is always one of the caller's own")
	}
	return members[0], nil
}

// GetChat implements ChatService.
func (h *chatHandler) GetChat(ctx context.Context, req *chatv1.GetChatRequest) (*chatv1.GetChatResponse, error) {
	overview, err := h.view.Overview(ctx, caller(ctx), req.GetChatId())
	if err != nil {
		return nil, err
	}
	return &chatv1.GetChatResponse{Overview: overview}, nil
}

// ListChats implements ChatService.
func (h *chatHandler) ListChats(ctx context.Context, req *chatv1.ListChatsRequest) (*chatv1.ListChatsResponse, error) {
	return h.view.ListChats(ctx, caller(ctx), req)
}

// ListMembers implements ChatService.
func (h *chatHandler) ListMembers(
	ctx context.Context, req *chatv1.ListMembersRequest,
) (*chatv1.ListMembersResponse, error) {
	return h.view.Members(ctx, caller(ctx), req.GetChatId(), int(req.GetPageSize()), req.GetPageToken())
}
