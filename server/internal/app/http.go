package app

import (
	"context"
	"errors"
	"fmt"
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
	"github.com/parley-chat/parley/server/history"
	"github.com/parley-chat/parley/server/infra/edge"
	"github.com/parley-chat/parley/server/infra/lifecycle"
	"github.com/parley-chat/parley/server/internal/authapi"
	"github.com/parley-chat/parley/server/internal/docsite"
	"github.com/parley-chat/parley/server/internal/topicrpc"
	"github.com/parley-chat/parley/server/internal/webclient"
)

// Limits of the HTTP server.
const (
	drainTime   = 8 * time.Second
	drainSpread = 5 * time.Second // over which drained streams reconnect
)

// web is the HTTP server.
type web struct {
	srv       *edge.Server
	hub       *delivery.Hub
	topics    *topicrpc.Streams
	log       *slog.Logger
	drainOpen func()
	ready     atomic.Bool
}

// server makes the HTTP server; address is where this machine finds it.
func (p *program) server(address string) *web {
	w := &web{hub: p.hub, topics: p.topics.Streams(), log: p.log}
	mux := http.NewServeMux()
	front := procedures{next: mux, handlers: map[string]http.Handler{}}
	for path, handler := range p.api.Handlers() {
		gated := p.gate.Wrap(handler)
		mux.Handle(path, gated)
		for _, procedure := range p.api.Procedures()[path] {
			front.handlers[procedure] = gated
			if _, ok := authapi.Tokenless[procedure]; ok {
				front.handlers[procedure] = p.identity.Tokenless.Wrap(handler)
			}
		}
	}
	mux.Handle("/api/v1/", p.rest)
	pages := edge.NewPages(maxPages, pageTime)
	documents := pages.Wrap(docsite.New())
	mux.Handle("/docs", documents)
	mux.Handle("/docs/", documents)
	mux.Handle("/try", pages.Wrap(p.welcome().Page(address)))
	client := pages.Wrap(p.webClient())
	mux.Handle("/{$}", client)
	mux.Handle(webclient.Prefix, client)
	mux.Handle("GET /.well-known/jwks.json", pages.Wrap(http.HandlerFunc(p.identity.PublicKeys)))
	w.drainOpen = handleTokenless(mux, p.api.Names(), p.cfg.developing())
	if p.servesMetrics() {
		mux.Handle("GET /metrics", edge.NewPages(maxScrapes, pageTime).Wrap(p.metrics.Handler()))
	}
	p.handleHealth(mux, w, p.servesMetrics())
	mux.HandleFunc("/", p.notFound)

	// A refused request must not wait for its body either, and pages must be able to read
	// why.
	w.srv = edge.NewServer(defaultBounds.wrap(withCORS(p.bounded(front), p.cfg.WebOrigins)), p.log.Handler())
	return w
}

// procedures serves calls by their whole path, without the multiplexer, which takes each path
// apart. Everything else goes to next.
type procedures struct {
	handlers map[string]http.Handler
	next     http.Handler
}

// ServeHTTP implements http.Handler.
func (p procedures) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h, ok := p.handlers[r.URL.Path]; ok {
		h.ServeHTTP(w, r)
		return
	}
	p.next.ServeHTTP(w, r)
}

// handleHealth serves what probes ask for. Paths on this machine are named only where operators
// ask, as metrics are.
func (p *program) handleHealth(mux *http.ServeMux, w *web, operators bool) {
	mux.HandleFunc("GET /healthz", func(rw http.ResponseWriter, _ *http.Request) { _, _ = rw.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /readyz", func(rw http.ResponseWriter, r *http.Request) {
		if !w.ready.Load() {
			http.Error(rw, "draining", http.StatusServiceUnavailable)
			return
		}
		if err := p.backend.Ready(r.Context()); err != nil {
			http.Error(rw, notReady(err, operators), http.StatusServiceUnavailable)
			return
		}
		_, _ = rw.Write([]byte("ready\n" + diskNotice(p.backend.Disk(), operators)))
		if p.backend.Damaged() { // the rest of the data can be served
			_, _ = rw.Write([]byte("a file of the store is damaged: stop the server and run the command check --repair\n"))
		}
	})
}

// notReady is why a process is not ready.
func notReady(err error, operators bool) string {
	disk := (*backend.DiskError)(nil)
	switch {
	case errors.Is(err, backend.ErrSkew):
		return "the clock differs from the store's, or was set"
	case errors.Is(err, backend.ErrReplaced) && operators:
		return err.Error()
	case errors.Is(err, backend.ErrReplaced):
		return "the store was replaced"
	case errors.As(err, &disk) && operators:
		return disk.Error()
	case errors.As(err, &disk):
		return "the disk does not answer"
	}
	return "store is not available"
}

// noticeHours is from when on a process says that its disk will be full.
const noticeHours = 24

// diskNotice is what a process that is ready says of its disk; it stays ready on a full one,
// because reads work, and no other process could do more.
func diskNotice(d backend.Disk, operators bool) string {
	name := "the disk"
	if operators {
		name += " of " + d.Dir
	}
	switch {
	case d.Full:
		return name + " is nearly full: writes are refused\n"
	case d.HoursLeft < noticeHours:
		return fmt.Sprintf("%s will be full in %.1f hours: writes are then refused\n", name, d.HoursLeft)
	}
	return ""
}

// notFound answers what nothing is served for. A path of two segments, the first of
// which has a dot, is an RPC's.
func (p *program) notFound(w http.ResponseWriter, r *http.Request) {
	service, method, ok := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if ok && strings.Contains(service, ".") && !strings.Contains(method, "/") {
		p.api.NotFound(w, r)
		return
	}
	http.Error(w, "no such path; / is the chat, /try shows what there is, /docs has the documents", http.StatusNotFound)
}

// withCORS lets web pages of some origins call the API.
func withCORS(next http.Handler, origins []string) http.Handler {
	if len(origins) == 0 { // which the library would take for all
		return next
	}
	policy := cors.New(cors.Options{
		AllowedOrigins: origins,
		AllowedMethods: append(connectcors.AllowedMethods(), http.MethodPut, http.MethodPatch, http.MethodDelete),
		AllowedHeaders: append(connectcors.AllowedHeaders(), "Authorization", "Idempotency-Key", "If-None-Match",
			"Last-Event-ID", history.Header),
		ExposedHeaders: append(connectcors.ExposedHeaders(), "ETag", "Retry-After", "Idempotency-Replayed", history.Header,
			"X-Idempotent-Replay"),
		MaxAge: 7200,
	}).Handler(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Only browsers say where a page comes from. Requests other than POST go by the policy
		// in any case, which shows caches that the answer depends on it.
		if r.Method == http.MethodPost && len(r.Header["Origin"]) == 0 {
			next.ServeHTTP(w, r)
			return
		}
		policy.ServeHTTP(w, r)
	})
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
			w.topics.Drain()
			w.hub.Drain(drainSpread)
		})
		if cut {
			w.log.Warn("not all requests ended in time; cut off", "after", drainTime)
		}
		return err
	}
}
