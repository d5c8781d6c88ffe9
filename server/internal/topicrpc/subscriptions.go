package topicrpc

import (
	"context"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/gen/parley/topic/v1/topicv1connect"
)

// subscriptions serves SubscriptionService.
type subscriptions struct{ *Server }

var _ topicv1connect.SubscriptionServiceHandler = (*subscriptions)(nil)

// CreateSubscription implements SubscriptionService.
func (s *subscriptions) CreateSubscription(
	ctx context.Context, req *topicv1.CreateSubscriptionRequest,
) (*topicv1.CreateSubscriptionResponse, error) {
	c, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	return s.topics(ctx).CreateSubscription(ctx, c, req)
}

// UpdateSubscription implements SubscriptionService.
func (s *subscriptions) UpdateSubscription(
	ctx context.Context, req *topicv1.UpdateSubscriptionRequest,
) (*topicv1.UpdateSubscriptionResponse, error) {
	c, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	return s.topics(ctx).UpdateSubscription(ctx, c, req)
}

// GetSubscription implements SubscriptionService.
func (s *subscriptions) GetSubscription(
	ctx context.Context, req *topicv1.GetSubscriptionRequest,
) (*topicv1.GetSubscriptionResponse, error) {
	c, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	sub, err := s.topics(ctx).Subscription(ctx, c, req.GetTopic(), req.GetGroup())
	if err != nil {
		return nil, err
	}
	return &topicv1.GetSubscriptionResponse{Subscription: sub}, nil
}

// ListSubscriptions implements SubscriptionService.
func (s *subscriptions) ListSubscriptions(
	ctx context.Context, req *topicv1.ListSubscriptionsRequest,
) (*topicv1.ListSubscriptionsResponse, error) {
	c, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	return s.topics(ctx).Subscriptions(ctx, c, req)
}

// PauseSubscription implements SubscriptionService.
func (s *subscriptions) PauseSubscription(
	ctx context.Context, req *topicv1.PauseSubscriptionRequest,
) (*topicv1.PauseSubscriptionResponse, error) {
	c, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	sub, err := s.topics(ctx).Pause(ctx, c, req.GetTopic(), req.GetGroup())
	if err != nil {
		return nil, err
	}
	return &topicv1.PauseSubscriptionResponse{Subscription: sub}, nil
}

// ResumeSubscription implements SubscriptionService.
func (s *subscriptions) ResumeSubscription(
	ctx context.Context, req *topicv1.ResumeSubscriptionRequest,
) (*topicv1.ResumeSubscriptionResponse, error) {
	c, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	sub, err := s.topics(ctx).Resume(ctx, c, req.GetTopic(), req.GetGroup())
	if err != nil {
		return nil, err
	}
	return &topicv1.ResumeSubscriptionResponse{Subscription: sub}, nil
}

// CancelSubscription implements SubscriptionService.
func (s *subscriptions) CancelSubscription(
	ctx context.Context, req *topicv1.CancelSubscriptionRequest,
) (*topicv1.CancelSubscriptionResponse, error) {
	c, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	sub, err := s.topics(ctx).Cancel(ctx, c, req.GetTopic(), req.GetGroup())
	if err != nil {
		return nil, err
	}
	return &topicv1.CancelSubscriptionResponse{Subscription: sub}, nil
}

// SeekSubscription implements SubscriptionService.
func (s *subscriptions) SeekSubscription(
	ctx context.Context, req *topicv1.SeekSubscriptionRequest,
) (*topicv1.SeekSubscriptionResponse, error) {
	c, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	return s.topics(ctx).Seek(ctx, c, req)
}

// UnparkKeys implements SubscriptionService.
func (s *subscriptions) UnparkKeys(
	ctx context.Context, req *topicv1.UnparkKeysRequest,
) (*topicv1.UnparkKeysResponse, error) {
	c, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	n, err := s.topics(ctx).Unpark(ctx, c, req.GetTopic(), req.GetGroup(), req.GetKeys())
	if err != nil {
		return nil, err
	}
	return &topicv1.UnparkKeysResponse{Messages: n}, nil
}

// Heartbeat implements SubscriptionService.
func (s *subscriptions) Heartbeat(
	ctx context.Context, req *topicv1.HeartbeatRequest,
) (*topicv1.HeartbeatResponse, error) {
	c, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	return s.topics(ctx).Heartbeat(ctx, c, req.GetTopic(), req.GetGroup())
}
