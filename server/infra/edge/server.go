package edge

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/infra/edge/h2"
)

// headerTime is the time for the headers of a request, and for the first bytes of a connection.
const headerTime = 10 * time.Second

// Server is the HTTP server of clients: HTTP/1.1, and HTTP/2 without TLS, which a server of
// its own serves (package h2).
type Server struct {
	*http.Server
	framed *h2.Server
}

// NewServer makes the HTTP server of clients. Its own errors go to a log.
func NewServer(handler http.Handler, log slog.Handler) *Server {
	return &Server{
		Server: &http.Server{
			Handler:           handler,
			ReadHeaderTimeout: headerTime,
			IdleTimeout:       3 * time.Minute,
			MaxHeaderBytes:    MaxHeader,
			// No WriteTimeout: it would end streams. The time of each write of a stream is bounded.
			ErrorLog: slog.NewLogLogger(log, slog.LevelWarn),
		},
		framed: &h2.Server{Handler: handler, MaxHeader: MaxHeader, Log: slog.New(log)},
	}
}

// Serve implements lifecycle.HTTPServer.
func (s *Server) Serve(l net.Listener) error {
	s.framed.State = s.ConnState
	plain := &chanListener{Listener: l, conns: make(chan net.Conn), failed: make(chan error, 1), done: make(chan struct{})}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				plain.failed <- err
				return
			}
			go s.greet(c, plain)
		}
	}()
	return s.Server.Serve(plain)
}

// greet has a connection of HTTP/2 served, and passes others on.
func (s *Server) greet(c net.Conn, plain *chanListener) {
	b := make([]byte, 0, len(h2.Preface))
	_ = c.SetReadDeadline(time.Now().Add(headerTime))
	for len(b) < len(h2.Preface) {
		n, err := c.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		if string(b) != h2.Preface[:len(b)] {
			break
		}
		if err != nil {
			sayHTTPS(err)
			_ = c.Close()
			return
		}
	}
	_ = c.SetReadDeadline(time.Time{})
	if string(b) != h2.Preface {
		plain.pass(&replayed{Conn: c, first: b})
		return
	}
	ctx := context.WithValue(context.Background(), http.ServerContextKey, s.Server)
	ctx = context.WithValue(ctx, http.LocalAddrContextKey, c.LocalAddr())
	if s.ConnContext != nil {
		ctx = s.ConnContext(ctx, c)
	}
	// By a goroutine of its own: the stack of this one has grown in the handshake of TLS, and
	// would be held for as long as the connection.
	go s.framed.Serve(ctx, c)
}

// sayHTTPS answers a client that speaks HTTP where TLS is spoken.
func sayHTTPS(err error) {
	var other tls.RecordHeaderError
	if !errors.As(err, &other) || other.Conn == nil {
		return
	}
	_ = other.Conn.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = io.WriteString(other.Conn, "HTTP/1.0 400 Bad Request\r\nConnection: close\r\n\r\nThis server speaks HTTPS.\n")
}

// Shutdown implements lifecycle.HTTPServer.
func (s *Server) Shutdown(ctx context.Context) error {
	var framed error
	var wg sync.WaitGroup
	wg.Go(func() { framed = s.framed.Shutdown(ctx) })
	err := s.Server.Shutdown(ctx)
	wg.Wait()
	return errors.Join(err, framed)
}

// Close implements lifecycle.HTTPServer.
func (s *Server) Close() error {
	err := s.Server.Close()
	s.framed.Close()
	return err
}

// chanListener is a listener of connections that were accepted elsewhere.
type chanListener struct {
	net.Listener
	conns  chan net.Conn
	failed chan error
	once   sync.Once
	done   chan struct{}
}

func (h *chanListener) pass(c net.Conn) {
	select {
	case h.conns <- c:
	case <-h.done:
		_ = c.Close()
	}
}

// Accept implements net.Listener.
func (h *chanListener) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case err := <-h.failed:
		return nil, err
	}
}

// Close implements net.Listener.
func (h *chanListener) Close() error {
	h.once.Do(func() { close(h.done) })
	return h.Listener.Close()
}

// replayed is a connection of which the first bytes were read.
type replayed struct {
	net.Conn
	first []byte
}

// Read implements net.Conn.
func (r *replayed) Read(b []byte) (int, error) {
	if len(r.first) == 0 {
		return r.Conn.Read(b)
	}
	n := copy(b, r.first)
	if r.first = r.first[n:]; len(r.first) == 0 {
		r.first = nil
	}
	return n, nil
}

// NetConn is the connection itself.
func (r *replayed) NetConn() net.Conn { return r.Conn }

// CloseWrite ends one direction, as net/http does before it closes a connection.
func (r *replayed) CloseWrite() error {
	if half, ok := r.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
