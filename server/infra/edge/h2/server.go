// Package h2 serves HTTP/2 without TLS to clients that hold streams open for hours.
//
// It owns connections and streams of HTTP/2: their states, flow control, and the way of a
// response to the wire. It does not own the form of frames and of header blocks, which are
// x/net's (http2.Framer, hpack), nor the handlers, nor the limit of connections (package
// edge).
//
// It exists because net/http's own server takes two goroutines and 30 KB for a connection
// besides the handler's, and passes each write through both: a frame of a stream costs it
// three switches. Here one goroutine reads a connection, and a goroutine that has frames
// writes them itself; the next write sends the frames that others queue meanwhile.
//
// # Concurrency
//
// A connection has one lock, which is not held while the network is written to or a handler
// runs. A response belongs to its handler's goroutine; deadlines may be set from others.
// Handlers run in workers that the server's connections share; their lock comes after a
// connection's.
package h2

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// Preface is what a client sends first.
const Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// Limits of connections.
const (
	maxStreams   = 250            // open at a time
	maxHandlers  = 4 * maxStreams // at work, those of streams that were reset included
	maxFrameSize = 16 << 10       // that is read
	streamWindow = 64<<10 - 1     // bytes of a body that may come before they are read
	connWindow   = 1 << 20        // and of all bodies of a connection
	maxOut       = 64 << 10       // bytes that wait to be written before handlers wait
	tableSize    = 4 << 10        // of compressed headers

	maxAnswers = 1 << 20 // bytes that wait for a client that does not take them, before it is cut

	settingsTime = 10 * time.Second // for the client's settings
	pingAfter    = 20 * time.Second // without a frame
	pingTime     = 10 * time.Second // for the answer
	idleTime     = 3 * time.Minute  // without a stream
	lastWords    = time.Second      // between the last frame and the end
)

// Server serves connections of HTTP/2.
type Server struct {
	Handler   http.Handler
	MaxHeader int // bytes of a request's headers
	Log       *slog.Logger
	// State, if given, is called when a connection gets its first stream, and loses its last.
	State func(net.Conn, http.ConnState)

	workers  workers
	mu       sync.Mutex
	conns    map[*conn]struct{}
	draining bool
	empty    chan struct{} // closed when a draining server has no connection left
}

// Serve serves a connection whose client's preface was read, until it ends. The context is
// that of its requests.
func (s *Server) Serve(ctx context.Context, nc net.Conn) {
	c := newConn(ctx, s, nc)
	s.mu.Lock()
	if s.draining {
		s.mu.Unlock()
		_ = nc.Close()
		return
	}
	if s.conns == nil {
		s.conns = map[*conn]struct{}{}
	}
	s.conns[c] = struct{}{}
	s.mu.Unlock()
	c.serve()
	s.mu.Lock()
	defer s.mu.Unlock()
	if delete(s.conns, c); s.draining && len(s.conns) == 0 {
		close(s.empty)
	}
}

// Shutdown lets requests under way end, takes no others, and waits until all connections
// have ended.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	if !s.draining {
		s.draining, s.empty = true, make(chan struct{})
		if len(s.conns) == 0 {
			close(s.empty)
		}
	}
	all, empty := s.list(), s.empty
	s.mu.Unlock()
	s.workers.end()
	for _, c := range all {
		c.drain()
	}
	select {
	case <-empty:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close cuts all connections.
func (s *Server) Close() {
	s.workers.end()
	s.mu.Lock()
	all := s.list()
	s.mu.Unlock()
	for _, c := range all {
		_ = c.nc.Close()
	}
}

// list is all connections. The caller holds mu.
func (s *Server) list() []*conn {
	all := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		all = append(all, c)
	}
	return all
}
