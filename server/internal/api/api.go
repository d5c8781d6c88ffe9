// Package api serves the RPCs of Parley: Connect, gRPC and gRPC-Web on the same
// paths, in protobuf and JSON.
//
// It owns what is between the wire and the use cases: handlers, one file per service;
// one interceptor that authenticates, validates, waits for durability and maps errors;
// the table of errors; limits. It does not own rules of chats (package chat), what a user
// may see (package view), streams (package delivery), authentication (package auth wraps
// it), or the listener.
// It is one package because all services share the interceptor, the table of errors and
// the limits; a service more is a file more.
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
	"time"

	"connectrpc.com/connect"

	"github.com/parley-chat/parley/gen/parley/chat/v1/chatv1connect"
	"github.com/parley-chat/parley/gen/parley/delivery/v1/deliveryv1connect"
	"github.com/parley-chat/parley/gen/parley/message/v1/messagev1connect"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/internal/codec"
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

// Names that package rest needs: the codec of its calls, and the codec and procedure of its
// stream.
const (
	RESTCodec       = codec.REST
	EventsCodec     = codec.Events
	EventsProcedure = deliveryv1connect.DeliveryServiceSubscribeProcedure
)

// Config is what the handlers work with; all of it is required.
type Config struct {
	Chat   *chat.Service
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
	reporter reporter
	errors   *connect.ErrorWriter
	handlers map[string]http.Handler
}

// New makes the handlers.
func New(c Config) (*API, error) {
	if c.Chat == nil || c.View == nil || c.Hub == nil || c.Store == nil || c.Logger == nil || c.Observe == nil {
		return nil, errors.New("api: chat, view, hub, store, logger and observer are required")
	}
	edge, err := newInterceptor(c)
	if err != nil {
		return nil, err
	}
	options := append(codec.Options(),
		connect.WithInterceptors(edge),
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
	a := &API{reporter: reporter{c.Logger}, errors: connect.NewErrorWriter(), handlers: map[string]http.Handler{}}
	procedures, err := proceduresOf(a.Names())
	if err != nil {
		return nil, err
	}
	add := func(path string, h http.Handler) {
		a.handlers[path] = a.requireVersionOfGet(&errorNormalizer{next: h, procedures: procedures, errors: a.errors, report: edge.record})
	}
	add(chatv1connect.NewChatServiceHandler(&chatHandler{chat: c.Chat, view: c.View, log: c.Logger}, options...))
	add(messagev1connect.NewMessageServiceHandler(&messageHandler{chat: c.Chat, view: c.View}, options...))
	path, h := deliveryv1connect.NewDeliveryServiceHandler(&deliveryHandler{view: c.View, hub: c.Hub, route: c.Route, peers: c.PeerStreams}, options...)
	add(path, withWriteDeadlines(h))
	return a, nil
}

// Handlers returns the handlers of all services by the path below which each
// serves.
func (a *API) Handlers() map[string]http.Handler { return a.handlers }

// Names returns the names of the services.
func (a *API) Names() []string {
	return []string{chatv1connect.ChatServiceName, deliveryv1connect.DeliveryServiceName, messagev1connect.MessageServiceName}
}

// Refuse answers a request that failed before it reached the handlers, in the request's
// own protocol.
func (a *API) Refuse(w http.ResponseWriter, r *http.Request, err error) {
	out := a.reporter.public(r.Context(), r.URL.Path, err)
	if out.Code() == connect.CodeUnauthenticated {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	writeError(a.errors, w, r, out)
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
