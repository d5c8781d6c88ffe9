package api

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/parley-chat/parley/server/infra/edge"
	"github.com/parley-chat/parley/server/infra/lifecycle"
	"github.com/parley-chat/parley/server/infra/loopback"
	"github.com/parley-chat/parley/server/registry"
)

// DefaultListen is where clients expect a schema registry.
const DefaultListen = "127.0.0.1:8081"

// Connections that there may be, of this machine and of all; the oldest makes room.
const (
	localConnections = 64
	maxConnections   = 256
)

// Config sets a Server up.
type Config struct {
	Registry *registry.Registry
	// Listen is host:port; port 0 is a free one.
	Listen string
	// Password lets clients read that give it by HTTP's basic authentication, with any user
	// name. Without one the server listens on loopback only.
	Password string
	// WritePassword lets clients read and change something, in the same way.
	WritePassword string
	// Operator returns the operator of a request by its headers. Operators may also change
	// something. Without it and without WritePassword no caller may.
	Operator func(http.Header) (name string, err error)
	// TLS serves HTTPS. Without it passwords cross the network as they are.
	TLS    *tls.Config
	Logger *slog.Logger
}

// Server serves a registry on a port of its own, for readers of the event log.
type Server struct {
	listener net.Listener
	srv      *http.Server
}

// Listen opens the port. If DefaultListen is in use, another port is.
func Listen(ctx context.Context, cfg Config) (*Server, error) {
	host, _, err := net.SplitHostPort(cfg.Listen)
	if cfg.Password == "" && (err != nil || !loopback.IsIP(host)) {
		return nil, fmt.Errorf("a schema registry without a password listens on loopback only, not on %q", cfg.Listen)
	}
	l, err := loopback.Listen(ctx, cfg.Listen, cfg.Listen == DefaultListen)
	if err != nil {
		return nil, fmt.Errorf("listen for the schema registry on %s: %w", cfg.Listen, err)
	}
	handler := authorized(cfg, Handler(cfg.Registry, cfg.Logger))
	if cfg.Password == "" {
		handler = localOnly(handler)
	}
	connections := localConnections
	if cfg.Password != "" {
		connections = maxConnections
	}
	guard := edge.New(l, edge.Limits{Connections: connections}, cfg.Logger)
	srv := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      time.Minute,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(cfg.Logger.Handler(), slog.LevelWarn),
	}
	guard.Install(srv)
	served := &Server{listener: guard, srv: srv}
	if cfg.TLS != nil {
		served.listener = tls.NewListener(guard, cfg.TLS)
	}
	return served, nil
}

// localOnly refuses what a web page makes a browser on this machine send: requests
// from another origin, and those to a name that only resolves to this machine.
func localOnly(next http.Handler) http.Handler {
	var origins http.CrossOriginProtection
	next = origins.Handler(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !loopback.Is(r.Host) {
			http.Error(w, "the registry answers to addresses of this machine only", http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// authorized lets readers read and writers change something. They give the password of
// basic authentication; an operator's token may also be a bearer token.
func authorized(cfg Config, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, writes := writer(cfg, r)
		trusted := writes || cfg.Password != "" && hasPassword(r, cfg.Password)
		if trusted { // its connection is not the one that makes room for strangers
			edge.Trust(r.Context())
		}
		switch {
		case reads(r) && (trusted || cfg.Password == ""):
		case reads(r):
			unauthorized(cfg.Logger, w, r, "A password is needed")
			return
		case !writes:
			unauthorized(cfg.Logger, w, r, writeHint(cfg))
			return
		default:
			cfg.Logger.Info("schema registry is changed", "by", name, "method", r.Method, "path", r.URL.Path)
		}
		next.ServeHTTP(w, r)
	})
}

// writer returns the author of a request, if it may change something.
func writer(cfg Config, r *http.Request) (name string, ok bool) {
	user, password, basic := r.BasicAuth()
	if cfg.WritePassword != "" && hasPassword(r, cfg.WritePassword) {
		return "writer " + shortened(user), true
	}
	if cfg.Operator == nil {
		return "", false
	}
	header := r.Header
	if basic {
		header = http.Header{"Authorization": {"Bearer " + password}}
	}
	name, err := cfg.Operator(header)
	return name, err == nil
}

// writeHint says what a change needs.
func writeHint(cfg Config) string {
	switch {
	case cfg.Operator != nil:
		return "Changes need an operator's token, as a bearer's or as a password: `server operators token NAME` prints one"
	case cfg.WritePassword != "":
		return "Changes need the writers' password, PARLEY_REGISTRY_WRITE_PASSWORD"
	}
	return "This registry takes no changes: it has no password for writers, PARLEY_REGISTRY_WRITE_PASSWORD"
}

// shortened bounds a user's name in the log.
func shortened(s string) string { return s[:min(len(s), 64)] }

func unauthorized(log *slog.Logger, w http.ResponseWriter, r *http.Request, text string) {
	w.Header().Set("WWW-Authenticate", `Basic realm="schema registry"`)
	write(log, w, r, nil, &registry.Error{Code: codeUnauthorized, Message: text})
}

const codeUnauthorized = 40101

// reads says whether a request changes nothing. Unknown requests count as changes.
func reads(r *http.Request) bool {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return true
	case http.MethodPost: // a question about compatibility, or for a schema's version
		path := strings.TrimSuffix(r.URL.Path, "/")
		return strings.HasPrefix(path, "/compatibility/") ||
			(strings.HasPrefix(path, "/subjects/") && !strings.HasSuffix(path, "/versions"))
	}
	return false
}

// hasPassword compares in a time that does not depend on how much is right.
func hasPassword(r *http.Request, password string) bool {
	_, given, _ := r.BasicAuth()
	want, got := sha256.Sum256([]byte(password)), sha256.Sum256([]byte(given))
	return subtle.ConstantTimeCompare(got[:], want[:]) == 1
}

// Addr is the address that the server listens on.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Close closes the port of a server that was not run.
func (s *Server) Close() {
	if s != nil {
		_ = s.listener.Close()
	}
}

// stopTime is how long requests under way may take when the server ends.
const stopTime = 2 * time.Second

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context, ready func()) error {
	ready()
	_, err := lifecycle.ServeHTTP(ctx, s.srv, s.listener, stopTime, nil)
	return err
}
