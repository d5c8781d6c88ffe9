package api

import (
	"context"
	"errors"
	"strconv"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/internal/codec"
	"github.com/parley-chat/parley/server/view"
)

// deliveryHandler serves DeliveryService.
type deliveryHandler struct {
	chat  *chat.Service
	view  *view.Reader
	hub   *delivery.Hub
	route func(context.Context, string) (func(), error)
	peers PeerStreams
}

func (h *deliveryHandler) Sync(ctx context.Context, req *deliveryv1.SyncRequest) (*deliveryv1.SyncResponse, error) {
	return h.view.Sync(ctx, caller(ctx), req)
}

func (h *deliveryHandler) Subscribe(
	ctx context.Context, req *deliveryv1.SubscribeRequest, stream *connect.ServerStream[deliveryv1.SubscribeResponse],
) error {
	p, _ := auth.PrincipalFrom(ctx)
	var at *codec.Cursor
	if header := stream.Conn().RequestHeader(); header.Get("Content-Type") == "application/connect+"+codec.Events {
		var err error
		if at, err = codec.NewCursor(p.UserID, h.hub.History(), header.Get("Last-Event-ID"), req); err != nil {
			return invalidField("Last-Event-ID", "is not the id of an event of this stream, nor a token of Sync")
		}
	}
	if h.route != nil {
		// Acknowledged before the stream reads: either its reads find a change, or the
		// process that commits it afterwards finds the stream.
		release, err := h.route(ctx, p.UserID)
		if err != nil {
			return err
		}
		defer release()
	}
	s, err := h.hub.Open(ctx, delivery.OpenParams{
		Principal: p, Token: req.GetToken(), Known: req.GetKnownChats(),
	})
	if err != nil {
		return err
	}
	defer h.hub.Close(s)
	return pump(ctx, s, h.hub.History(), stream.Conn(), at, req.GetCatchUpOnly())
}

// EventsRequest is the request of Subscribe for server-sent events, and its parameters.
func EventsRequest(func(name string) string) (proto.Message, map[string]func(value string) error) {
	req := &deliveryv1.SubscribeRequest{}
	return req, map[string]func(value string) error{"catchUpOnly": func(v string) (err error) {
		if req.CatchUpOnly, err = strconv.ParseBool(v); err != nil {
			return errNoBool
		}
		return nil
	}}
}

var errNoBool = errors.New("is neither true nor false")

func (h *deliveryHandler) Ack(ctx context.Context, req *deliveryv1.AckRequest) (*deliveryv1.AckResponse, error) {
	outcomes, err := h.recordMarks(ctx, req.GetReadMarks())
	if err != nil {
		return nil, err
	}
	if err := h.acknowledge(ctx, req); err != nil {
		return nil, err
	}
	return &deliveryv1.AckResponse{ReadOutcomes: outcomes}, nil
}

// acknowledge takes the position of an Ack, here or at the stream's server.
func (h *deliveryHandler) acknowledge(ctx context.Context, req *deliveryv1.AckRequest) error {
	s, err := h.hub.Stream(caller(ctx), req.GetStreamId())
	if errors.Is(err, delivery.ErrStreamGone) && h.peers != nil {
		return h.peers.Ack(ctx, caller(ctx), req.GetStreamId(), req.GetPosition())
	}
	if err != nil {
		return err
	}
	return s.Ack(req.GetPosition())
}

func (h *deliveryHandler) Extend(
	ctx context.Context, req *deliveryv1.ExtendRequest,
) (*deliveryv1.ExtendResponse, error) {
	p, _ := auth.PrincipalFrom(ctx)
	err := h.hub.Extend(p.UserID, p.SessionID, req.GetStreamId(), p.ExpiresAt)
	if errors.Is(err, delivery.ErrStreamGone) && h.peers != nil {
		err = h.peers.Extend(ctx, p.UserID, p.SessionID, req.GetStreamId(), p.ExpiresAt)
	}
	if err != nil {
		return nil, err
	}
	return &deliveryv1.ExtendResponse{ExpiresAt: timestamppb.New(p.ExpiresAt),
		ExpiresIn: durationpb.New(max(time.Until(p.ExpiresAt), 0))}, nil
}
