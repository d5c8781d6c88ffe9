package blackbox

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parley-chat/parley/server/infra/wait"
)

// listener accepts the client's connections. It refuses them, cuts them after a number of bytes, and stops their
// traffic without closing them. It is safe for concurrent use.
type listener struct {
	net.Listener

	mu     sync.Mutex
	down   bool
	budget func() int // bytes that the next connection may send to the client; nil: any number
	conns  map[*conn]bool
}

// Accept returns the next connection that is not refused.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		l.mu.Lock()
		if l.down {
			l.mu.Unlock()
			_ = c.Close()
			continue
		}
		own := &conn{Conn: c, from: l, left: -1}
		if l.budget != nil {
			own.left = l.budget()
		}
		l.conns[own] = true
		l.mu.Unlock()
		return own, nil
	}
}

// setDown refuses new connections and cuts all present ones, or accepts them again.
func (l *listener) setDown(down bool) {
	l.mu.Lock()
	l.down = down
	l.mu.Unlock()
	if down {
		l.cut()
	}
}

// setBudget limits connections that are accepted from now on, and cuts the present ones.
func (l *listener) setBudget(budget func() int) {
	l.mu.Lock()
	l.budget = budget
	l.mu.Unlock()
	l.cut()
}

// cut closes all connections.
func (l *listener) cut() {
	for _, c := range l.present() {
		_ = c.Close()
	}
}

// darken stops all traffic of the present connections, which stay open.
func (l *listener) darken() {
	for _, c := range l.present() {
		c.dark.Store(true)
	}
}

func (l *listener) present() (list []*conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		list = append(list, c)
	}
	return list
}

// conn is one connection of the client.
type conn struct {
	net.Conn
	from *listener
	dark atomic.Bool // the traffic has stopped

	mu   sync.Mutex
	left int // bytes that may still be sent; negative: any number
}

// darkness is how often a connection without traffic looks whether it is closed.
const darkness = 100 * time.Millisecond

// Read returns nothing more once the traffic has stopped.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	for err == nil && c.dark.Load() && c.open() {
		_ = wait.For(context.Background(), darkness)
	}
	return n, err
}

// Write sends what the budget allows, and cuts the connection at its end.
func (c *conn) Write(b []byte) (int, error) {
	if c.dark.Load() {
		return len(b), nil
	}
	c.mu.Lock()
	part, cut := b, false
	if c.left >= 0 {
		part, cut = b[:min(len(b), c.left)], len(b) >= c.left
		c.left -= len(part)
	}
	c.mu.Unlock()
	n, err := c.Conn.Write(part)
	if cut {
		_ = c.Close()
		return n, net.ErrClosed
	}
	return n, err
}

func (c *conn) open() bool {
	c.from.mu.Lock()
	defer c.from.mu.Unlock()
	return c.from.conns[c]
}

// Close closes the connection.
func (c *conn) Close() error {
	c.from.mu.Lock()
	delete(c.from.conns, c)
	c.from.mu.Unlock()
	return c.Conn.Close()
}
