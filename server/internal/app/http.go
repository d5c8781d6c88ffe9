package app

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	connectcors "connectrpc.com/cors"
	"github.com/rs/cors"

	"github.com/parley-chat/parley/server/backend"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/edge"
	"github.com/parley-chat/parley/server/lifecycle"
)

// Limits of the HTTP server.
const (
	drainTime   = 8 * time.Second
	drainSpread = 5 * time.Second // over which drained streams reconnect
)

// web is the HTTP server.
type web struct {
	srv       *http.Server
	hub       *delivery.Hub
	log       *slog.Logger
	drainOpen func()
	ready     atomic.Bool
}

// server makes the HTTP server; address is where this machine finds it.
func (p *program) server(address string) *web {
	w := &web{hub: p.hub, log: p.log}
	mux := http.NewServeMux()
	for path, handler := range p.api.Handlers() {
		mux.Handle(path, p.gate.Wrap(handler))
	}
	mux.Handle("/api/v1/", p.rest)
	pages := edge.NewPages(maxPages, pageTime)
	mux.Handle("/docs", pages.Wrap(p.rest))
	mux.Handle("/{$}", pages.Wrap(p.welcomePage(address)))
	w.drainOpen = handleTokenless(mux, p.api.Names(), !p.cfg.exposed(), p.operatorsOnly)
	if p.servesMetrics() {
		mux.Handle("GET /metrics", p.operatorsOnly(edge.NewPages(maxScrapes, pageTime).Wrap(p.metrics.Handler())))
	}
	p.handleHealth(mux, w)
	mux.HandleFunc("/", p.notFound)

	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	w.srv = &http.Server{
		// What is refused must not wait for its body either, and pages must be able to read why.
		Handler:           defaultBounds.wrap(withCORS(p.bounded(mux), p.cfg.WebOrigins)),
		Protocols:         &protocols,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       3 * time.Minute,
		MaxHeaderBytes:    edge.MaxHeader,
		// No WriteTimeout: it would end streams. The time of each write of a stream is bounded.
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: 250, SendPingTimeout: 20 * time.Second, PingTimeout: 10 * time.Second, WriteByteTimeout: 20 * time.Second,
		},
		ErrorLog: slog.NewLogLogger(p.log.Handler(), slog.LevelWarn),
	}
	return w
}

// handleHealth serves what probes ask for.
func (p *program) handleHealth(mux *http.ServeMux, w *web) {
	mux.HandleFunc("GET /healthz", func(rw http.ResponseWriter, _ *http.Request) { _, _ = rw.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /readyz", func(rw http.ResponseWriter, r *http.Request) {
		if !w.ready.Load() {
			http.Error(rw, "draining", http.StatusServiceUnavailable)
			return
		}
		switch err := p.backend.Ready(r.Context()); {
		case errors.Is(err, backend.ErrSkew):
			http.Error(rw, "the clock differs from the store's, or was set", http.StatusServiceUnavailable)
			return
		case errors.Is(err, backend.ErrReplaced):
			http.Error(rw, "the store was replaced", http.StatusServiceUnavailable)
			return
		case err != nil:
			http.Error(rw, "store is not available", http.StatusServiceUnavailable)
			return
		}
		_, _ = rw.Write([]byte("ready\n"))
	})
}

// notFound answers what nothing is served for. A path of two segments, the first of
// which has a dot, is an RPC's.
func (p *program) notFound(w http.ResponseWriter, r *http.Request) {
	service, method, ok := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if ok && strings.Contains(service, ".") && !strings.Contains(method, "/") {
		p.api.NotFound(w, r)
		return
	}
	http.Error(w, "no such path; / shows what there is, /docs describes the API", http.StatusNotFound)
}

// withCORS lets web pages of some origins call the API.
func withCORS(next http.Handler, origins []string) http.Handler {
	if len(origins) == 0 { // which the library would take for all
		return next
	}
	return cors.New(cors.Options{
		AllowedOrigins: origins,
		AllowedMethods: append(connectcors.AllowedMethods(), http.MethodPatch, http.MethodDelete),
		AllowedHeaders: append(connectcors.AllowedHeaders(), "Authorization", "Idempotency-Key", "If-None-Match", "Last-Event-ID"),
		ExposedHeaders: append(connectcors.ExposedHeaders(), "ETag", "Retry-After", "Idempotency-Replayed", "X-Idempotent-Replay"),
		MaxAge:         7200,
	}).Handler(next)
}

// run serves until ctx ends. Then it drains: it is no longer ready, streams are asked to
// reconnect elsewhere, requests under way finish, and the rest is cut off.
func (w *web) run(listener net.Listener) func(context.Context, func()) error {
	return func(ctx context.Context, ready func()) error {
		w.ready.Store(true)
		ready()
		cut, err := lifecycle.ServeHTTP(ctx, w.srv, listener, drainTime, func() {
			w.log.Info("draining", "at_most", drainTime)
			w.ready.Store(false)
			w.drainOpen()
			w.hub.Drain(drainSpread)
		})
		if cut {
			w.log.Warn("not all requests ended in time; cut off", "after", drainTime)
		}
		return err
	}
}
