// Package api answers RPCs: it validates requests, calls the packages that know,
// and turns their errors into codes.
//
// It owns the handlers (one file per service), the interceptors, the one table of
// errors, and the form of streams on the wire. It does not own who is calling
// (package auth, in front of it), the rules of chats (package chat), or what a
// user may see (package view).
//
// # Durability
//
// Reads see what is not on disk yet. One place waits: the interceptor calls
// Store.Durable before any unary answer leaves, errors included, because an error
// tells of what was read too. Streams get from the hub only what is durable.
//
// Concurrency: handlers have no state and are safe for use by many goroutines.
package api

import (
	"errors"
	"log/slog"
	"net/http"
	"time"

	"buf.build/go/protovalidate"
	"connectrpc.com/connect"

	"github.com/parley-chat/parley/gen/parley/chat/v1/chatv1connect"
	"github.com/parley-chat/parley/gen/parley/delivery/v1/deliveryv1connect"
	"github.com/parley-chat/parley/gen/parley/message/v1/messagev1connect"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/view"
)

// Limits of messages on the wire.
const (
	maxRequest  = 128 << 10 // also when inflated
	maxResponse = 4 << 20
	compressMin = 1 << 10
	heartbeat   = 15 * time.Second
)

// Config names what the API stands on. All of it is required.
type Config struct {
	Chat    *chat.Service
	View    *view.Reader
	Hub     *delivery.Hub
	Store   store.Store
	Logger  *slog.Logger
	Observe func(procedure, code string, took time.Duration)
}

// API serves the services.
type API struct {
	handlers map[string]http.Handler
	refuse   *connect.ErrorWriter
	errors   *errorMapper
}

// New makes the handlers.
func New(cfg Config) (*API, error) {
	if cfg.Chat == nil || cfg.View == nil || cfg.Hub == nil || cfg.Store == nil || cfg.Logger == nil || cfg.Observe == nil {
		return nil, errors.New("api: incomplete configuration")
	}
	validator, err := protovalidate.New()
	if err != nil {
		return nil, err
	}
	mapper := &errorMapper{log: cfg.Logger}
	opts := append(codecs(),
		connect.WithInterceptors(&interceptor{store: cfg.Store, validator: validator, errors: mapper, observe: cfg.Observe}),
		connect.WithReadMaxBytes(maxRequest),
		connect.WithSendMaxBytes(maxResponse),
	)
	unary := append(opts[:len(opts):len(opts)], connect.WithCompressMinBytes(compressMin))
	a := &API{handlers: map[string]http.Handler{}, refuse: connect.NewErrorWriter(opts...), errors: mapper}
	add := func(path string, h http.Handler) { a.handlers[path] = h }
	add(chatv1connect.NewChatServiceHandler(&chatHandler{chats: cfg.Chat, view: cfg.View}, unary...))
	add(messagev1connect.NewMessageServiceHandler(&messageHandler{chats: cfg.Chat, view: cfg.View}, unary...))
	path, h := deliveryv1connect.NewDeliveryServiceHandler(&deliveryHandler{view: cfg.View, hub: cfg.Hub}, unary...)
	add(path, withWriteDeadlines(h))
	// Compression would hold frames back, and costs memory per stream.
	plain := append(opts, connect.WithCompression("gzip", nil, nil))
	_, h = deliveryv1connect.NewDeliveryServiceHandler(&deliveryHandler{view: cfg.View, hub: cfg.Hub}, plain...)
	add(deliveryv1connect.DeliveryServiceSubscribeProcedure, withWriteDeadlines(h))
	return a, nil
}

// Handlers returns the handlers by path.
func (a *API) Handlers() map[string]http.Handler { return a.handlers }

// Names returns the names of the services.
func (a *API) Names() []string {
	return []string{chatv1connect.ChatServiceName, messagev1connect.MessageServiceName, deliveryv1connect.DeliveryServiceName}
}

// Refuse answers a request that was stopped before it reached a handler, in the
// protocol of the request.
func (a *API) Refuse(w http.ResponseWriter, r *http.Request, err error) {
	mapped := a.errors.connect(r.Context(), r.URL.Path, err)
	if a.refuse.IsSupported(r) {
		_ = a.refuse.Write(w, r, mapped)
		return
	}
	http.Error(w, mapped.Message(), http.StatusUnauthorized)
}
