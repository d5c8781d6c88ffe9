package topicrpc

import (
	"context"
	"net/http"

	"connectrpc.com/connect"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/gen/parley/topic/v1/topicv1connect"
	"github.com/parley-chat/parley/server/audit"
	"github.com/parley-chat/parley/server/internal/api"
	"github.com/parley-chat/parley/server/topic"
)

// AdminConfig is what an AdminServer works with.
type AdminConfig struct {
	Topics *topic.Admin // nil: this mode has none, and calls answer so, or Route finds them
	// Route, if given, finds the service of each call, see With, or passes it on.
	Route connect.Interceptor
	Audit *audit.Log
	// Operator returns the name of the caller.
	Operator func(ctx context.Context) string
}

// AdminServer has the handlers.
type AdminServer struct{ cfg AdminConfig }

var _ topicv1connect.TopicAdminServiceHandler = (*AdminServer)(nil)

// NewAdminServer makes an AdminServer.
func NewAdminServer(c AdminConfig) *AdminServer { return &AdminServer{c} }

// Service is the service, for package api.
func (s *AdminServer) Service() api.Service {
	return Routed(api.Service{Name: topicv1connect.TopicAdminServiceName,
		Handler: func(o ...connect.HandlerOption) (string, http.Handler) {
			return topicv1connect.NewTopicAdminServiceHandler(s, o...)
		}}, s.cfg.Route)
}

// topics is what a call is made on. The error says that there are no topics.
func (s *AdminServer) topics(ctx context.Context) (*topic.Admin, error) {
	if of := ServiceOf(ctx); of != nil {
		return of.Admin(), nil
	}
	if s.cfg.Topics == nil {
		return nil, ErrMode
	}
	return s.cfg.Topics, nil
}

// ListGroups implements TopicAdminService.
func (s *AdminServer) ListGroups(
	ctx context.Context, req *topicv1.ListGroupsRequest,
) (*topicv1.ListGroupsResponse, error) {
	t, err := s.topics(ctx)
	if err != nil {
		return nil, err
	}
	return t.Groups(ctx, req)
}

// GetGroupMetrics implements TopicAdminService.
func (s *AdminServer) GetGroupMetrics(
	ctx context.Context, req *topicv1.GetGroupMetricsRequest,
) (*topicv1.GetGroupMetricsResponse, error) {
	t, err := s.topics(ctx)
	if err != nil {
		return nil, err
	}
	return t.Metrics(ctx, req.GetTopic(), req.GetGroup())
}

// RemoveGroup implements TopicAdminService.
func (s *AdminServer) RemoveGroup(
	ctx context.Context, req *topicv1.RemoveGroupRequest,
) (*topicv1.RemoveGroupResponse, error) {
	t, err := s.topics(ctx)
	if err != nil {
		return nil, err
	}
	return t.Remove(ctx, s.cfg.Operator(ctx), req)
}

// Resurrect implements TopicAdminService.
func (s *AdminServer) Resurrect(
	ctx context.Context, req *topicv1.ResurrectRequest) (*topicv1.ResurrectResponse, error,
) {
	t, err := s.topics(ctx)
	if err != nil {
		return nil, err
	}
	return t.Resurrect(ctx, s.cfg.Operator(ctx), req)
}

// ForceComplete implements TopicAdminService.
func (s *AdminServer) ForceComplete(
	ctx context.Context, req *topicv1.ForceCompleteRequest,
) (*topicv1.ForceCompleteResponse, error) {
	t, err := s.topics(ctx)
	if err != nil {
		return nil, err
	}
	return t.ForceComplete(ctx, s.cfg.Operator(ctx), req)
}

// ListMonitors implements TopicAdminService.
func (s *AdminServer) ListMonitors(
	ctx context.Context, req *topicv1.ListMonitorsRequest,
) (*topicv1.ListMonitorsResponse, error) {
	t, err := s.topics(ctx)
	if err != nil {
		return nil, err
	}
	return t.Monitors(ctx, req)
}

// RunJob implements TopicAdminService.
func (s *AdminServer) RunJob(ctx context.Context, req *topicv1.RunJobRequest) (*topicv1.RunJobResponse, error) {
	t, err := s.topics(ctx)
	if err != nil {
		return nil, err
	}
	return t.RunJob(ctx, s.cfg.Operator(ctx), req)
}

// GetJobs implements TopicAdminService.
func (s *AdminServer) GetJobs(ctx context.Context, _ *topicv1.GetJobsRequest) (*topicv1.GetJobsResponse, error) {
	t, err := s.topics(ctx)
	if err != nil {
		return nil, err
	}
	return t.Jobs(), nil
}
