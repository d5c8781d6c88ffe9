package topicrpc

import (
	"context"
	"math"
	"net/http"
	"time"

	"connectrpc.com/connect"

	"github.com/parley-chat/parley/gen/parley/topic/v1/topicv1connect"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/internal/api"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/topic"
)

// Limits of requests, in bytes.
const (
	// MaxPublishRequest bounds a request of Publish. Package topic bounds the messages in it, whose
	// payloads are a third larger in JSON.
	MaxPublishRequest = 6 << 20

	maxAcknowledge = 1 << 20 // positions come with bitmaps
)

// BidiProcedure is the procedure whose requests are a stream.
const BidiProcedure = topicv1connect.ConsumerServiceConsumeBidiProcedure

// ConsumeProcedure is the procedure of consumers without requests on their stream.
const ConsumeProcedure = topicv1connect.ConsumerServiceConsumeProcedure

// PageSize is how many topics are on a page of a wanted size.
func PageSize(wanted int32) int { return topic.PageSize(wanted) }

// PublishProcedure is the procedure that takes MaxPublishRequest.
const PublishProcedure = topicv1connect.TopicServicePublishProcedure

// heartbeat is how often something comes on a stream at least.
const heartbeat = 15 * time.Second

// Identity is the caller, and the end of its access.
type Identity struct {
	topic.Caller
	// Token is the content of the caller's token. Of an operator only the expiry is known, of a call
	// that another process passes on only the user, the session and the expiry.
	Token   auth.Principal
	Carried bool // another process admitted the caller, and watches revocations
}

// Config is what a Server works with.
type Config struct {
	Topics *topic.Service // nil: this mode has none, and calls answer so, or Route finds them
	// Route, if given, finds the service of each call, see With, or passes the call on.
	Route connect.Interceptor
	// Identify returns the caller, which the chain around the handlers has admitted.
	Identify func(ctx context.Context) Identity
	// Streams knows the open streams. Servers that stop together share it.
	Streams *Streams
	// History is what streams show; nil: they do not say.
	History store.History
}

// Server has the handlers.
type Server struct {
	service  *topic.Service
	route    connect.Interceptor
	identify func(context.Context) Identity
	streams  *Streams
	history  store.History
}

// New makes a Server.
func New(c Config) *Server {
	return &Server{service: c.Topics, route: c.Route, identify: c.Identify, streams: c.Streams, history: c.History}
}

type serviceKey struct{}

// With makes a call one of a service.
func With(ctx context.Context, s *topic.Service) context.Context {
	return context.WithValue(ctx, serviceKey{}, s)
}

// ServiceOf is the service that With has given a call; nil if it has none.
func ServiceOf(ctx context.Context) *topic.Service {
	of, _ := ctx.Value(serviceKey{}).(*topic.Service)
	return of
}

// topics is the service of a call; nil if there is none.
func (s *Server) topics(ctx context.Context) *topic.Service {
	if of := ServiceOf(ctx); of != nil {
		return of
	}
	return s.service
}

// caller is the caller of a call. The error says that there are no topics.
func (s *Server) caller(ctx context.Context) (topic.Caller, error) {
	if s.topics(ctx) == nil {
		return topic.Caller{}, ErrMode
	}
	return s.identify(ctx).Caller, nil
}

// Services are the services, for package api.
func (s *Server) Services() []api.Service {
	all := s.services()
	for i, of := range all {
		all[i] = Routed(of, s.route)
	}
	return all
}

// Routed is a service whose calls go through a route, see Config; it may be nil.
func Routed(of api.Service, route connect.Interceptor) api.Service {
	handler := of.Handler
	of.Handler = func(o ...connect.HandlerOption) (string, http.Handler) {
		if route != nil {
			o = append(o, connect.WithInterceptors(route))
		}
		return handler(o...)
	}
	return of
}

func (s *Server) services() []api.Service {
	return []api.Service{
		{Name: topicv1connect.BackfillServiceName,
			Handler: func(o ...connect.HandlerOption) (string, http.Handler) {
				return topicv1connect.NewBackfillServiceHandler(&backfills{s}, o...)
			}},
		{Name: topicv1connect.ConsumerServiceName, Explain: explain,
			Handler: func(o ...connect.HandlerOption) (string, http.Handler) {
				o = append(o, connect.WithReadMaxBytes(maxAcknowledge))
				return topicv1connect.NewConsumerServiceHandler(&consumers{s}, o...)
			}},
		{Name: topicv1connect.SubscriptionServiceName,
			Handler: func(o ...connect.HandlerOption) (string, http.Handler) {
				return topicv1connect.NewSubscriptionServiceHandler(&subscriptions{s}, o...)
			}},
		{Name: topicv1connect.TopicServiceName,
			Handler: func(o ...connect.HandlerOption) (string, http.Handler) {
				o = append(o, connect.WithConditionalHandlerOptions(publishing))
				return topicv1connect.NewTopicServiceHandler(&topics{s}, o...)
			}},
	}
}

// publishing lets publishes be larger than other requests. Their answers are not compressed,
// which would take more CPU than all the rest of a publish: publishers are programs near by.
func publishing(s connect.Spec) []connect.HandlerOption {
	if s.Procedure != PublishProcedure {
		return nil
	}
	return []connect.HandlerOption{connect.WithReadMaxBytes(MaxPublishRequest), connect.WithCompressMinBytes(math.MaxInt)}
}
