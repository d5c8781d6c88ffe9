package topicrpc

import (
	"context"
	"time"

	"connectrpc.com/connect"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/gen/parley/topic/v1/topicv1connect"
)

// watchEvery is how often a watched backfill is shown by default.
const watchEvery = time.Second

// backfills serves BackfillService.
type backfills struct{ *Server }

var _ topicv1connect.BackfillServiceHandler = (*backfills)(nil)

// StartBackfill implements BackfillService.
func (s *backfills) StartBackfill(
	ctx context.Context, req *topicv1.StartBackfillRequest,
) (*topicv1.StartBackfillResponse, error) {
	c, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	return s.topics(ctx).StartBackfill(ctx, c, req)
}

// CancelBackfill implements BackfillService.
func (s *backfills) CancelBackfill(
	ctx context.Context, req *topicv1.CancelBackfillRequest,
) (*topicv1.CancelBackfillResponse, error) {
	c, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	return s.topics(ctx).CancelBackfill(ctx, c, req)
}

// GetBackfill implements BackfillService.
func (s *backfills) GetBackfill(
	ctx context.Context, req *topicv1.GetBackfillRequest,
) (*topicv1.GetBackfillResponse, error) {
	c, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	b, err := s.topics(ctx).Backfill(ctx, c, req.GetTopic(), req.GetGroup())
	if err != nil {
		return nil, err
	}
	return &topicv1.GetBackfillResponse{Backfill: b}, nil
}

// WatchBackfill implements BackfillService.
func (s *backfills) WatchBackfill(
	ctx context.Context, req *topicv1.WatchBackfillRequest, stream *connect.ServerStream[topicv1.WatchBackfillResponse],
) error {
	c, err := s.caller(ctx)
	if err != nil {
		return err
	}
	every := watchEvery
	if d := req.GetInterval(); d != nil {
		every = d.AsDuration()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	leave, err := s.streams.Enter(s.identify(ctx), func(reason string) { cancel(goneWith(reason)) })
	if err != nil {
		return err
	}
	defer leave()
	return s.topics(ctx).WatchBackfill(ctx, c, req.GetTopic(), req.GetGroup(), every, func(b *topicv1.Backfill) error {
		return stream.Send(&topicv1.WatchBackfillResponse{Backfill: b})
	})
}
