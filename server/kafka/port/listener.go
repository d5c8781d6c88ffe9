package port

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/infra/loopback"
)

const (
	// DefaultConnections bounds the connections by TCP if no setting does: three for each of 80 consumers.
	DefaultConnections = 256
	logEvery           = time.Minute // least time between two lines about refused connections
	acceptPause        = 50 * time.Millisecond
)

// Stats are the connections by TCP.
type Stats struct {
	Open    int
	Refused int64 // closed at once, because as many as allowed had shown the password
	Evicted int64 // closed without a password, to make room
}

// listener accepts a bounded number of connections by TCP, and those of this process, which do not count.
type listener struct {
	tcp   net.Listener
	limit int
	log   *slog.Logger
	serve func(ctx context.Context, c net.Conn, own bool) // until the connection ends

	life    context.Context
	end     context.CancelFunc
	running sync.WaitGroup // of all connections

	mu      sync.Mutex
	strange []*conn // by TCP, oldest first
	refused int64
	evicted int64
	logged  time.Time // when the last refused connection was logged
	closed  bool      // no connection begins any more
}

// conn is a connection by TCP.
type conn struct {
	net.Conn
	trusted bool // its client has shown the password; guarded by listener.mu
}

// listen listens on an address of loopback, host:port; port 0 is a free one, and with fallback so is one that is in
// use.
func listen(addr string, fallback bool) (net.Listener, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("kafka listen address must be host:port, not %q", addr)
	}
	if !loopback.IsIP(host) {
		return nil, fmt.Errorf("the embedded Kafka endpoint listens on loopback only, not on %q", host)
	}
	if _, err := strconv.Atoi(port); err != nil {
		return nil, fmt.Errorf("kafka listen port %q", port)
	}
	l, err := loopback.Listen(context.Background(), addr, fallback)
	if err != nil {
		return nil, fmt.Errorf("listen for Kafka on %s: %w", addr, err)
	}
	return l, nil
}

func (l *listener) start() {
	l.life, l.end = context.WithCancel(context.Background())
	l.running.Go(l.accept)
}

// close ends all connections and waits for them.
func (l *listener) close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	_ = l.tcp.Close()
	l.end()
	l.running.Wait()
}

func (l *listener) accept() {
	for {
		c, err := l.tcp.Accept()
		if errors.Is(err, net.ErrClosed) || l.life.Err() != nil {
			return
		}
		if err != nil { // out of descriptors, say
			select {
			case <-l.life.Done():
			case <-time.After(acceptPause):
			}
			continue
		}
		s := l.admit(c)
		if s == nil {
			continue
		}
		l.running.Go(func() {
			l.serve(l.life, s, false)
			l.forget(s)
		})
	}
}

// dial connects a client of this process.
func (l *listener) dial(context.Context, string, string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, net.ErrClosed
	}
	l.running.Go(func() { l.serve(l.life, local{theirs, l.tcp.Addr()}, true) })
	return ours, nil
}

// local is the server's end of a connection of this process. Pipes have no address that could be shown.
type local struct {
	net.Conn
	addr net.Addr
}

func (c local) RemoteAddr() net.Addr { return c.addr }

// admit takes a connection among those that there may be. Where there is no room, the
// oldest that has not shown a password goes; if all have, the new one does.
func (l *listener) admit(c net.Conn) *conn {
	s := &conn{Conn: c}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.strange) >= l.limit {
		i := slices.IndexFunc(l.strange, func(old *conn) bool { return !old.trusted })
		if i < 0 {
			l.refuse(c)
			return nil
		}
		l.evicted++
		_ = l.strange[i].Close()
		l.strange = slices.Delete(l.strange, i, i+1)
	}
	l.strange = append(l.strange, s)
	return s
}

// refuse closes a connection for which there is no room; mu is held.
func (l *listener) refuse(c net.Conn) {
	_ = c.Close()
	l.refused++
	if now := time.Now(); now.Sub(l.logged) >= logEvery {
		l.logged = now
		l.log.Warn("the Kafka port refuses connections of readers; raise kafka-connections or close some", "connections",
			l.limit, "refused", l.refused)
	}
}

// trust says that the client of a connection has shown the password.
func (l *listener) trust(c net.Conn) {
	if s, ok := c.(*conn); ok {
		l.mu.Lock()
		defer l.mu.Unlock()
		s.trusted = true
	}
}

// forget lets another connection in.
func (l *listener) forget(s *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.strange, s); i >= 0 {
		l.strange = slices.Delete(l.strange, i, i+1)
	}
}

func (l *listener) stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Stats{Open: len(l.strange), Refused: l.refused, Evicted: l.evicted}
}

func (l *listener) watched() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.strange, func(c *conn) bool { return c.trusted })
}
