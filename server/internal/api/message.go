package api

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/view"
)

// messageHandler serves MessageService.
type messageHandler struct {
	chat *chat.Service
	view *view.Reader
}

// SendMessage implements MessageService.
func (h *messageHandler) SendMessage(
	ctx context.Context, req *messagev1.SendMessageRequest,
) (*messagev1.SendMessageResponse, error) {
	if err := checkContent("content", req.GetContent()); err != nil {
		return nil, err
	}
	kind := req.GetContentType()
	if kind == messagev1.ContentType_CONTENT_TYPE_UNSPECIFIED {
		kind = messagev1.ContentType_CONTENT_TYPE_TEXT
	}
	sent, err := h.chat.Send(ctx, chat.Send{
		Caller: caller(ctx), ChatID: req.GetChatId(), ClientMessageID: req.GetClientMessageId(),
		Content: req.GetContent(), ContentType: int64(kind), SeenSequence: req.GetSeenSequence(),
		Cause: cause(ctx, req.GetClientMessageId()),
	})
	if err != nil {
		return nil, err
	}
	markReplayed(ctx, sent.Replayed)
	return &messagev1.SendMessageResponse{
		MessageId: sent.MessageID, Sequence: sent.Sequence, Version: sent.Version,
		CreatedAt: timestamppb.New(time.UnixMilli(sent.CreatedAt)), ClientMessageId: sent.ClientMessageID,
	}, nil
}

// ListMessages implements MessageService.
func (h *messageHandler) ListMessages(
	ctx context.Context, req *messagev1.ListMessagesRequest,
) (*messagev1.ListMessagesResponse, error) {
	return h.view.Messages(ctx, caller(ctx), req)
}

// ListChanges implements MessageService.
func (h *messageHandler) ListChanges(
	ctx context.Context, req *messagev1.ListChangesRequest,
) (*messagev1.ListChangesResponse, error) {
	return h.view.Changes(ctx, caller(ctx), req)
}

// MarkRead implements MessageService.
func (h *messageHandler) MarkRead(
	ctx context.Context, req *messagev1.MarkReadRequest,
) (*messagev1.MarkReadResponse, error) {
	out, err := h.chat.MarkRead(ctx,
		chat.MarkRead{Caller: caller(ctx), ChatID: req.GetChatId(), Sequence: req.GetSequence(),
			RequestID: req.GetRequestId()})
	if err != nil {
		return nil, err
	}
	markReplayed(ctx, out.Replayed)
	return &messagev1.MarkReadResponse{State: h.view.State(out.Head, out.Row)}, nil
}
