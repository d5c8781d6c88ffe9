package api

import (
	"context"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/view"
)

// deliveryHandler serves DeliveryService.
type deliveryHandler struct {
	view *view.Reader
	hub  *delivery.Hub
}

func (h *deliveryHandler) Sync(ctx context.Context, req *deliveryv1.SyncRequest) (*deliveryv1.SyncResponse, error) {
	return h.view.Sync(ctx, caller(ctx), req)
}

func (h *deliveryHandler) Subscribe(ctx context.Context, req *deliveryv1.SubscribeRequest, stream *connect.ServerStream[deliveryv1.SubscribeResponse]) error {
	p, _ := auth.PrincipalFrom(ctx)
	s, err := h.hub.Open(delivery.OpenParams{
		UserID: p.UserID, SessionID: p.SessionID, ExpiresAt: p.ExpiresAt, Token: req.GetToken(), Known: req.GetKnown(),
	})
	if err != nil {
		return err
	}
	defer h.hub.Close(s)
	return pump(ctx, s, heartbeat, stream.Conn())
}

func (h *deliveryHandler) Ack(ctx context.Context, req *deliveryv1.AckRequest) (*deliveryv1.AckResponse, error) {
	s, err := h.hub.Stream(caller(ctx), req.GetStreamId())
	if err != nil {
		return nil, err
	}
	return &deliveryv1.AckResponse{}, s.Ack(req.GetPosition())
}

func (h *deliveryHandler) Extend(ctx context.Context, req *deliveryv1.ExtendRequest) (*deliveryv1.ExtendResponse, error) {
	p, _ := auth.PrincipalFrom(ctx)
	if err := h.hub.Extend(p.UserID, p.SessionID, req.GetStreamId(), p.ExpiresAt); err != nil {
		return nil, err
	}
	return &deliveryv1.ExtendResponse{ExpiresAt: timestamppb.New(p.ExpiresAt)}, nil
}
