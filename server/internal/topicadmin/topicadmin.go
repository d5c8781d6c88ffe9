// Package topicadmin serves operators of topics: the RPCs of parley.topic.v1's
// TopicAdminService over package operate.
//
// It owns what is between the wire and the use cases, and which records of the audit are
// about topics. It does not own who is let in: its caller serves it to operators only, in
// the chain of package api, whose table of errors is that of package topicapi.
//
// Concurrency: a Server may be used by many goroutines.
package topicadmin

import (
	"context"
	"net/http"

	"connectrpc.com/connect"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/gen/parley/topic/v1/topicv1connect"
	"github.com/parley-chat/parley/server/internal/api"
	"github.com/parley-chat/parley/server/internal/topicapi"
	"github.com/parley-chat/parley/server/topic/operate"
	"github.com/parley-chat/parley/workers/audit"
)

// Config is what a Server works with.
type Config struct {
	Topics *operate.Admin // nil: this mode has none, and calls answer so, or Route finds them
	// Route, if given, finds the service of each call, see topicapi.With, or passes it on.
	Route connect.Interceptor
	Audit *audit.Log
	// Operator names who calls.
	Operator func(ctx context.Context) string
}

// Server has the handlers.
type Server struct{ cfg Config }

var _ topicv1connect.TopicAdminServiceHandler = (*Server)(nil)

// New makes a Server.
func New(c Config) *Server { return &Server{c} }

// Service is the service, for package api.
func (s *Server) Service() api.Service {
	return topicapi.Routed(api.Service{Name: topicv1connect.TopicAdminServiceName,
		Handler: func(o ...connect.HandlerOption) (string, http.Handler) {
			return topicv1connect.NewTopicAdminServiceHandler(s, o...)
		}}, s.cfg.Route)
}

// topics is what a call is made on. The error says that there are no topics.
func (s *Server) topics(ctx context.Context) (*operate.Admin, error) {
	if of := topicapi.ServiceOf(ctx); of != nil {
		return of.Admin(), nil
	}
	if s.cfg.Topics == nil {
		return nil, topicapi.ErrMode
	}
	return s.cfg.Topics, nil
}

// ListGroups implements TopicAdminService.
func (s *Server) ListGroups(
	ctx context.Context, req *topicv1.ListGroupsRequest,
) (*topicv1.ListGroupsResponse, error) {
	t, err := s.topics(ctx)
	if err != nil {
		return nil, err
	}
	return t.Groups(ctx, req)
}

// GetGroupMetrics implements TopicAdminService.
func (s *Server) GetGroupMetrics(
	ctx context.Context, req *topicv1.GetGroupMetricsRequest,
) (*topicv1.GetGroupMetricsResponse, error) {
	t, err := s.topics(ctx)
	if err != nil {
		return nil, err
	}
	return t.Metrics(ctx, req.GetTopic(), req.GetGroup())
}

// RemoveGroup implements TopicAdminService.
func (s *Server) RemoveGroup(
	ctx context.Context, req *topicv1.RemoveGroupRequest,
) (*topicv1.RemoveGroupResponse, error) {
	t, err := s.topics(ctx)
	if err != nil {
		return nil, err
	}
	return t.Remove(ctx, s.cfg.Operator(ctx), req)
}

// Resurrect implements TopicAdminService.
func (s *Server) Resurrect(ctx context.Context, req *topicv1.ResurrectRequest) (*topicv1.ResurrectResponse, error) {
	t, err := s.topics(ctx)
	if err != nil {
		return nil, err
	}
	return t.Resurrect(ctx, s.cfg.Operator(ctx), req)
}

// ForceComplete implements TopicAdminService.
func (s *Server) ForceComplete(
	ctx context.Context, req *topicv1.ForceCompleteRequest,
) (*topicv1.ForceCompleteResponse, error) {
	t, err := s.topics(ctx)
	if err != nil {
		return nil, err
	}
	return t.ForceComplete(ctx, s.cfg.Operator(ctx), req)
}

// ListMonitors implements TopicAdminService.
func (s *Server) ListMonitors(
	ctx context.Context, req *topicv1.ListMonitorsRequest,
) (*topicv1.ListMonitorsResponse, error) {
	t, err := s.topics(ctx)
	if err != nil {
		return nil, err
	}
	return t.Monitors(ctx, req)
}

// RunJob implements TopicAdminService.
func (s *Server) RunJob(ctx context.Context, req *topicv1.RunJobRequest) (*topicv1.RunJobResponse, error) {
	t, err := s.topics(ctx)
	if err != nil {
		return nil, err
	}
	return t.RunJob(ctx, s.cfg.Operator(ctx), req)
}

// GetJobs implements TopicAdminService.
func (s *Server) GetJobs(ctx context.Context, _ *topicv1.GetJobsRequest) (*topicv1.GetJobsResponse, error) {
	t, err := s.topics(ctx)
	if err != nil {
		return nil, err
	}
	return t.Jobs(), nil
}
