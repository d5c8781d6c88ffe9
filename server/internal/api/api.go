// Package api serves the RPCs of Parley: Connect, gRPC and gRPC-Web on the same
// paths, in protobuf and JSON.
//
// It owns what is between the wire and the use cases: handlers, one file per service; what the
// chain around them asks (callers, validity, durability); the table of errors; limits. It does
// not own the chain's order (package rpc), rules of chats (package chat), what a user may see
// (package view), streams (package delivery), authentication (package auth wraps it), or the
// listener.
//
// # Concurrency
//
// Everything here is safe for use by many goroutines and has no state of its own. No
// answer is sent before what was read for it is on stable storage.
package api

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/parley-chat/parley/gen/parley/chat/v1/chatv1connect"
	"github.com/parley-chat/parley/gen/parley/delivery/v1/deliveryv1connect"
	"github.com/parley-chat/parley/gen/parley/message/v1/messagev1connect"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/infra/rpc"
	"github.com/parley-chat/parley/server/internal/codec"
	"github.com/parley-chat/parley/server/internal/streamwriter"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/view"
)

// Limits of requests and responses. maxRequest also bounds what a compressed request
// inflates to. The largest response is a page of 100 messages of 16 KiB; in JSON the
// quotes in it double.
const (
	maxRequest   = 128 << 10
	maxResponse  = 8 << 20
	compressFrom = 1 << 10
	unaryTimeout = 30 * time.Second // more than store.CallTimeout
	heartbeat    = 15 * time.Second // of streams without anything else to send
)

// Names that package rest needs: the codec of its calls, the codec of its streams, and the path and
// procedure of that of chats.
const (
	RESTCodec       = codec.REST
	EventsCodec     = codec.Events
	EventsPath      = "/api/v1/stream"
	EventsProcedure = deliveryv1connect.DeliveryServiceSubscribeProcedure
)

// Config is what the handlers work with; all of it is required but what says otherwise.
type Config struct {
	Chat   *chat.Service // nil: the chats' services are not served, and View and Hub are not needed
	View   *view.Reader
	Hub    *delivery.Hub
	Store  store.Store // asked for durability only
	Logger *slog.Logger
	// Route, if given, registers that a user has a stream in this process, before the
	// stream reads anything; release removes the registration.
	Route func(ctx context.Context, user string) (release func(), err error)
	// PeerStreams, if given, handles calls for streams of other processes.
	PeerStreams PeerStreams
	// Observe counts an RPC; code is "ok" or the name of connect's code.
	Observe func(procedure, code string, took time.Duration)
	// First, if given, counts a stream when its first response is sent, or when it ends without one.
	First func(procedure, code string, took time.Duration)
	// Enter, if given, lets callers in, in place of the principals of package auth.
	Enter func(ctx context.Context) error
	// Permit says whether a principal may call a procedure. Without it users may call all, and
	// service accounts none.
	Permit func(p auth.Principal, procedure string) error
	// Admit, if given, lets calls in by what they ask for; see [rpc.Chain].
	Admit func(ctx context.Context, procedure string, m any) (leave func(), err error)
	// More are services beside those of the chats.
	More []Service
}

// Service is a service that is made elsewhere and answers in the same way.
type Service struct {
	Name string // full name
	// Handler is what the generated code makes of the service and the options.
	Handler func(options ...connect.HandlerOption) (path string, handler http.Handler)
	// Explain, if given, says what clients see of the service's own errors; nil for others.
	Explain func(err error) *rpc.Refusal
}

// PeerStreams forwards calls to streams of other processes. Errors are those of package
// delivery and ErrPeersUnavailable.
type PeerStreams interface {
	Ack(ctx context.Context, user, streamID string, position int64) error
	Extend(ctx context.Context, user, session, streamID string, until time.Time) error
}

// ErrPeersUnavailable says that other processes, or the routing table, do not answer.
var ErrPeersUnavailable = errors.New("api: other processes do not answer")

// API is the set of handlers.
type API struct {
	reporter   reporter
	admit      func(ctx context.Context, procedure string, m any) (leave func(), err error)
	errors     *connect.ErrorWriter
	history    *history
	handlers   map[string]http.Handler
	procedures map[string]kind
	names      []string
}

// New makes the handlers.
func New(c Config) (*API, error) {
	if c.Store == nil || c.Logger == nil || c.Observe == nil || c.Chat != nil && (c.View == nil || c.Hub == nil) {
		return nil, errors.New("api: store, logger and observer are required, and view and hub with chats")
	}
	edge, err := newInterceptor(c)
	if err != nil {
		return nil, err
	}
	options := append(codec.Options(),
		connect.WithInterceptors(edge.chain(c.Store)),
		connect.WithReadMaxBytes(maxRequest),
		connect.WithSendMaxBytes(maxResponse),
		connect.WithCompressMinBytes(compressFrom),
		connect.WithConditionalHandlerOptions(func(s connect.Spec) []connect.HandlerOption {
			if s.StreamType == connect.StreamTypeUnary {
				return nil
			}
			// Frames are encoded once for all streams; compressing them would be work
			// for each. Compressed requests are still understood. A response holds no
			// more than a stream's queue, which doubles in JSON.
			return []connect.HandlerOption{connect.WithCompressMinBytes(math.MaxInt), connect.WithSendMaxBytes(2 * maxResponse)}
		}),
	)
	services := slices.Concat(c.chats(), c.More)
	a := &API{reporter: edge.reporter, admit: c.Admit, errors: connect.NewErrorWriter(),
		history:  edge.history,
		handlers: map[string]http.Handler{}}
	for _, s := range services {
		a.names = append(a.names, s.Name)
	}
	if a.procedures, err = proceduresOf(a.names); err != nil {
		return nil, err
	}
	streams := func(procedure string) bool { return a.procedures[procedure].streams }
	for _, s := range services {
		path, h := s.Handler(options...)
		a.handlers[path] = a.permitted(c.Permit, &errorNormalizer{next: streamwriter.Collect(h, streams),
			procedures: a.procedures, errors: a.errors, report: edge.record})
	}
	return a, nil
}

// chats are the services of chats, by name.
func (c Config) chats() []Service {
	if c.Chat == nil {
		return nil
	}
	return []Service{
		{Name: chatv1connect.ChatServiceName, Handler: func(o ...connect.HandlerOption) (string, http.Handler) {
			return chatv1connect.NewChatServiceHandler(&chatHandler{chat: c.Chat, view: c.View, log: c.Logger}, o...)
		}},
		{Name: deliveryv1connect.DeliveryServiceName, Handler: func(o ...connect.HandlerOption) (string, http.Handler) {
			return deliveryv1connect.NewDeliveryServiceHandler(&deliveryHandler{chat: c.Chat, view: c.View, hub: c.Hub,
				route: c.Route, peers: c.PeerStreams}, o...)
		}},
		{Name: messagev1connect.MessageServiceName, Handler: func(o ...connect.HandlerOption) (string, http.Handler) {
			return messagev1connect.NewMessageServiceHandler(&messageHandler{chat: c.Chat, view: c.View}, o...)
		}},
	}
}

// Handlers returns the handlers of all services by the path below which each
// serves.
func (a *API) Handlers() map[string]http.Handler { return a.handlers }

// Procedures returns the paths of all procedures, by the path below which their service
// serves.
func (a *API) Procedures() map[string][]string {
	all := map[string][]string{}
	for procedure := range a.procedures {
		service := procedure[:strings.LastIndexByte(procedure, '/')+1]
		all[service] = append(all[service], procedure)
	}
	return all
}

// Names returns the names of the services.
func (a *API) Names() []string { return slices.Clone(a.names) }

// Refuse answers a request that failed before it reached the handlers, in the request's
// own protocol.
func (a *API) Refuse(w http.ResponseWriter, r *http.Request, err error) {
	if a.admit != nil && isStranger(err) {
		if leave, over := a.admit(r.Context(), r.URL.Path, nil); over != nil {
			err = over
		} else {
			leave()
		}
	}
	out := a.reporter.public(r.Context(), r.URL.Path, err)
	if out.Code() == connect.CodeUnauthenticated {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	writeError(a.errors, w, r, out)
}

// isStranger reports whether a request carried no credential that the installation issued. A
// caller with an expired token must get that answer, regardless of other callers from the same
// address.
func isStranger(err error) bool {
	return errors.Is(err, auth.ErrMissingToken) || errors.Is(err, auth.ErrInvalidToken) && !errors.Is(err, auth.ErrRevoked)
}

// permitted refuses principals what they may not call, before its body is read.
func (a *API) permitted(permit func(auth.Principal, string) error, next http.Handler) http.Handler {
	next = a.requireVersionOfGet(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, ok := auth.PrincipalFrom(r.Context())
		var err error
		switch {
		case !ok: // whom Enter refuses, or lets in by rules of its own
		case permit != nil:
			err = permit(p, r.URL.Path)
		case p.Kind != auth.KindUser:
			err = auth.ErrScope
		}
		if err != nil {
			a.Refuse(w, r, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// requireVersionOfGet requires the parameter connect=v1 of GET requests, so that a link,
// image or form on another site cannot be a call by accident.
func (a *API) requireVersionOfGet(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && r.URL.Query().Get("connect") != "v1" {
			a.Refuse(w, r, invalidField("connect", "a GET request needs the query parameter connect=v1"))
			return
		}
		next.ServeHTTP(w, r)
	})
}
