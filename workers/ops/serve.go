package ops

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/parley-chat/parley/server/infra/config"
	"github.com/parley-chat/parley/server/infra/edge"
	"github.com/parley-chat/parley/server/infra/lifecycle"
	"github.com/parley-chat/parley/server/infra/loopback"
)

// DefaultListen is the address at which the commands of operators expect the service.
const DefaultListen = config.DefaultOps

// stopTime is how long running calls may take to end when the server stops. A redrive or a
// replay ends between two of its steps, and continues when it is called again.
const stopTime = 2 * time.Second

// maxConnections bounds the connections of operators; the oldest without a token is closed
// for a new one.
const maxConnections = 64

// Server serves operators on a port of its own.
type Server struct {
	listener net.Listener
	srv      *http.Server
	cancel   context.CancelFunc // of running calls
}

// Listen opens the port. Without a TLS configuration it must be on loopback; with one
// clients must show certificates of its ClientCAs. If DefaultListen is in use, a free
// port is taken.
func Listen(ctx context.Context, s *Service, addr string, t *tls.Config) (*Server, error) {
	host, _, err := net.SplitHostPort(addr)
	if t == nil && (err != nil || !loopback.IsIP(host)) {
		return nil, fmt.Errorf("without certificates operators are served on loopback only, not on %.100q", addr)
	}
	l, err := loopback.Listen(ctx, addr, addr == DefaultListen)
	if err != nil {
		return nil, fmt.Errorf("listen for operators on %s: %w", addr, err)
	}
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(t != nil)
	protocols.SetUnencryptedHTTP2(t == nil)
	calls, cancel := context.WithCancel(context.Background())
	guard := edge.New(l, edge.Limits{Connections: maxConnections}, s.cfg.Logger)
	srv := &Server{listener: guard, cancel: cancel, srv: &http.Server{
		Handler:           s.Handler(),
		Protocols:         &protocols,
		BaseContext:       func(net.Listener) context.Context { return calls },
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       time.Minute, // no ReadTimeout: in HTTP/1 it would end calls that take longer
		MaxHeaderBytes:    16 << 10,
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 50, SendPingTimeout: 20 * time.Second,
			PingTimeout: 10 * time.Second, WriteByteTimeout: 20 * time.Second},
		ErrorLog: slog.NewLogLogger(s.cfg.Logger.Handler(), slog.LevelWarn),
	}}
	if t != nil {
		own := t.Clone()
		own.ClientAuth, own.MinVersion, own.NextProtos = tls.RequireAndVerifyClientCert, tls.VersionTLS13,
			[]string{"h2", "http/1.1"}
		srv.listener = tls.NewListener(guard, own)
	}
	guard.Install(srv.srv)
	return srv, nil
}

// Addr is the address that the server listens on.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Close closes the port of a server that does not run.
func (s *Server) Close() {
	if s != nil {
		s.cancel()
		_ = s.listener.Close()
	}
}

// Run serves until ctx ends; then it cancels the running calls.
func (s *Server) Run(ctx context.Context, ready func()) error {
	ready()
	_, err := lifecycle.ServeHTTP(ctx, s.srv, s.listener, stopTime, s.cancel)
	return err
}
