package topicrpc

import (
	"context"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/gen/parley/topic/v1/topicv1connect"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/internal/api"
)

// topics serves TopicService.
type topics struct{ *Server }

var _ topicv1connect.TopicServiceHandler = (*topics)(nil)

// ConfigureTopic implements TopicService.
func (s *topics) ConfigureTopic(
	ctx context.Context, req *topicv1.ConfigureTopicRequest,
) (*topicv1.ConfigureTopicResponse, error) {
	c, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	return s.topics(ctx).Configure(ctx, c, req)
}

// GetTopic implements TopicService.
func (s *topics) GetTopic(ctx context.Context, req *topicv1.GetTopicRequest) (*topicv1.GetTopicResponse, error) {
	c, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	t, err := s.topics(ctx).Topic(ctx, c, req.GetTopic())
	if err != nil {
		return nil, err
	}
	return &topicv1.GetTopicResponse{Topic: t}, nil
}

// ListTopics implements TopicService.
func (s *topics) ListTopics(
	ctx context.Context, req *topicv1.ListTopicsRequest,
) (*topicv1.ListTopicsResponse, error) {
	c, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	return s.topics(ctx).Topics(ctx, c, req)
}

// DeleteTopic implements TopicService.
func (s *topics) DeleteTopic(
	ctx context.Context, req *topicv1.DeleteTopicRequest,
) (*topicv1.DeleteTopicResponse, error) {
	c, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	return &topicv1.DeleteTopicResponse{}, s.topics(ctx).Delete(ctx, c, req.GetTopic())
}

// RecommendMode implements TopicService.
func (s *topics) RecommendMode(
	ctx context.Context, req *topicv1.RecommendModeRequest,
) (*topicv1.RecommendModeResponse, error) {
	if _, err := s.caller(ctx); err != nil {
		return nil, err
	}
	return s.topics(ctx).Recommend(req), nil
}

// Publish implements TopicService.
func (s *topics) Publish(ctx context.Context, req *topicv1.PublishRequest) (*topicv1.PublishResponse, error) {
	c, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	return s.topics(ctx).Publish(ctx, c, req)
}

// GetProducer implements TopicService.
func (s *topics) GetProducer(
	ctx context.Context, req *topicv1.GetProducerRequest,
) (*topicv1.GetProducerResponse, error) {
	c, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	return s.topics(ctx).Producer(ctx, c, req)
}

// GetMessageStatus implements TopicService.
func (s *topics) GetMessageStatus(
	ctx context.Context, req *topicv1.GetMessageStatusRequest,
) (*topicv1.GetMessageStatusResponse, error) {
	c, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	return s.topics(ctx).MessageStatus(ctx, c, req)
}

// GetMessage implements TopicService.
func (s *topics) GetMessage(
	ctx context.Context, req *topicv1.GetMessageRequest,
) (*topicv1.GetMessageResponse, error) {
	c, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	m, err := s.topics(ctx).Message(ctx, c, req.GetTopic(), req.GetMessageId())
	if err != nil {
		return nil, err
	}
	return &topicv1.GetMessageResponse{Message: m}, nil
}

// BrowseMessages implements TopicService.
func (s *topics) BrowseMessages(
	ctx context.Context, req *topicv1.BrowseMessagesRequest,
) (*topicv1.BrowseMessagesResponse, error) {
	c, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	return s.topics(ctx).Browse(ctx, c, req)
}

// PurgeMessages implements TopicService.
func (s *topics) PurgeMessages(
	ctx context.Context, req *topicv1.PurgeMessagesRequest,
) (*topicv1.PurgeMessagesResponse, error) {
	c, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	return s.topics(ctx).Purge(ctx, c, req)
}

// ListBindings implements TopicService.
func (s *topics) ListBindings(
	ctx context.Context, req *topicv1.ListBindingsRequest,
) (*topicv1.ListBindingsResponse, error) {
	c, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	bindings, err := s.topics(ctx).Bindings(ctx, c, req.GetTopic())
	if err != nil {
		return nil, err
	}
	return &topicv1.ListBindingsResponse{Bindings: bindings}, nil
}

// SetBinding implements TopicService.
func (s *topics) SetBinding(
	ctx context.Context, req *topicv1.SetBindingRequest,
) (*topicv1.SetBindingResponse, error) {
	c, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := auth.CheckUserID(req.GetPrincipal()); err != nil {
		return nil, api.Invalid("principal", err.Error())
	}
	return &topicv1.SetBindingResponse{}, s.topics(ctx).SetBinding(ctx, c, req)
}

// RemoveBinding implements TopicService.
func (s *topics) RemoveBinding(
	ctx context.Context, req *topicv1.RemoveBindingRequest,
) (*topicv1.RemoveBindingResponse, error) {
	c, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	return &topicv1.RemoveBindingResponse{}, s.topics(ctx).RemoveBinding(ctx, c, req)
}
