package api

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/parley-chat/parley/server/edge"
	"github.com/parley-chat/parley/server/lifecycle"
	"github.com/parley-chat/parley/server/registry"
)

// DefaultListen is where schema registries are looked for.
const DefaultListen = "127.0.0.1:8081"

// Connections that there may be, of this machine and of all; the oldest makes room.
const (
	localConnections = 64
	maxConnections   = 1_024
)

// Config sets a Server up.
type Config struct {
	Registry *registry.Registry
	// Listen is host:port; port 0 takes a free one.
	Listen string
	// Password lets clients in that give it by HTTP's basic authentication, whatever
	// the user's name. Without one the server listens on loopback only.
	Password string
	// Operator says who may change something, by a request's headers; others read. Nil
	// lets everybody who is let in.
	Operator func(http.Header) (name string, err error)
	Logger   *slog.Logger
}

// Server serves a registry on a port of its own, for those who read the event log.
type Server struct {
	listener net.Listener
	srv      *http.Server
}

// Listen opens the port. If DefaultListen is in use, a free port is taken.
func Listen(ctx context.Context, cfg Config) (*Server, error) {
	host, _, err := net.SplitHostPort(cfg.Listen)
	if ip := net.ParseIP(host); cfg.Password == "" && (err != nil || ip == nil || !ip.IsLoopback()) {
		return nil, fmt.Errorf("a schema registry without a password listens on loopback only, not on %q", cfg.Listen)
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", cfg.Listen)
	if errors.Is(err, syscall.EADDRINUSE) && cfg.Listen == DefaultListen {
		l, err = lc.Listen(ctx, "tcp", net.JoinHostPort(host, "0"))
	}
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) {
			err = op.Err
		}
		return nil, fmt.Errorf("listen for the schema registry on %s: %w", cfg.Listen, err)
	}
	handler := Handler(cfg.Registry)
	if cfg.Operator != nil {
		handler = operatorsWrite(cfg.Operator, cfg.Logger, handler)
	}
	if cfg.Password == "" {
		handler = fromHere(handler)
	} else {
		handler = withPassword(cfg.Password, handler)
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
	return &Server{listener: guard, srv: srv}, nil
}

// fromHere refuses what a web page makes a browser on this machine send: requests
// from another origin, and those to a name that only resolves to this machine.
func fromHere(next http.Handler) http.Handler {
	var origins http.CrossOriginProtection
	next = origins.Handler(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = r.Host
		}
		if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			http.Error(w, "the registry answers to addresses of this machine only", http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// operatorsWrite lets only operators change something. Their token is a bearer's, or
// the password of basic authentication, which is what clients of registries have.
func operatorsWrite(operator func(http.Header) (string, error), log *slog.Logger, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if reads(r) {
			next.ServeHTTP(w, r)
			return
		}
		header := r.Header
		if _, password, ok := r.BasicAuth(); ok {
			header = http.Header{"Authorization": {"Bearer " + password}}
		}
		name, err := operator(header)
		if err != nil {
			w.Header().Set("WWW-Authenticate", `Bearer realm="schema registry"`)
			write(w, nil, &registry.Error{Code: codeUnauthorized, Message: "Changes need an operator's token, as a bearer's or as a password: `server operators token NAME` prints one"})
			return
		}
		log.Info("schema registry is changed", "by", name, "method", r.Method, "path", r.URL.Path)
		next.ServeHTTP(w, r)
	})
}

const codeUnauthorized = 40101

// reads says whether a request changes nothing. What it does not know does.
func reads(r *http.Request) bool {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return true
	case http.MethodPost: // a question about compatibility, or for a schema's version
		path := strings.TrimSuffix(r.URL.Path, "/")
		return strings.HasPrefix(path, "/compatibility/") || (strings.HasPrefix(path, "/subjects/") && !strings.HasSuffix(path, "/versions"))
	}
	return false
}

func withPassword(password string, next http.Handler) http.Handler {
	want := sha256.Sum256([]byte(password))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, given, _ := r.BasicAuth()
		got := sha256.Sum256([]byte(given))
		if subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
			w.Header().Set("WWW-Authenticate", `Basic realm="schema registry"`)
			http.Error(w, "a password is needed", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// Addr is the address that was taken.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Close closes the port of a server that was not run.
func (s *Server) Close() {
	if s != nil {
		_ = s.listener.Close()
	}
}

// stopTime is what requests under way have left when the server ends.
const stopTime = 2 * time.Second

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context, ready func()) error {
	ready()
	_, err := lifecycle.ServeHTTP(ctx, s.srv, s.listener, stopTime, nil)
	return err
}
