// Package edge stands between a listener and what it serves, and bounds what
// neighbours and strangers can take: connections, HTTP/2 frames that carry nothing,
// requests under other names, large headers, and calls that need no token.
//
// It owns limits and the choice of the connection that ends when one is reached. It does
// not own the services, authentication (package auth identifies the caller, and the owner
// of the listener passes it on with [Trust]), or the form of an answer to a refused
// request.
//
// # Concurrency
//
// Everything here is safe for use by many goroutines. A Guard has one lock, which is
// held for a few list operations; no call is made under it.
package edge

import (
	"container/list"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Limits bound the connections of a listener.
type Limits struct {
	// Connections is how many there may be in all; at least 1.
	Connections int
	// PerAddress is how many there may be of one client address, for IPv6 of one /64;
	// 0: as many as in all. Those of this machine have no address to tell them apart
	// by, and are bounded by Connections only.
	PerAddress int
}

// Stats are counters since the start, and a gauge.
type Stats struct {
	Open    int64 // gauge: connections
	Refused int64 // connections that were closed at once, for want of room
	Evicted int64 // connections that were closed to make room
	Flooded int64 // connections that were cut for their frames
}

// Guard is a listener with limits. Where there is no room for a connection, the oldest
// that has not shown a token goes, then the one that has been idle for longest; if all
// are at work, the new one goes.
type Guard struct {
	net.Listener
	limits Limits
	log    *slog.Logger
	tls    *tls.Config // nil: none

	mu        sync.Mutex
	open      int
	addresses map[netip.Prefix]int // of those that are counted
	strangers list.List            // of *Conn without a token so far, oldest first
	idle      list.List            // of *Conn with one and without requests, idle for longest first

	refused, evicted, flooded atomic.Int64
}

// New guards a listener.
func New(l net.Listener, limits Limits, log *slog.Logger) *Guard {
	return &Guard{Listener: l, limits: limits, log: log, addresses: map[netip.Prefix]int{}}
}

// Stats returns the counters.
func (g *Guard) Stats() Stats {
	g.mu.Lock()
	open := g.open
	g.mu.Unlock()
	return Stats{Open: int64(open), Refused: g.refused.Load(), Evicted: g.evicted.Load(), Flooded: g.flooded.Load()}
}

// Install connects a server to the guard of its listener, before it serves.
func (g *Guard) Install(srv *http.Server) {
	srv.ConnState = g.state
	srv.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		return context.WithValue(ctx, connKey{}, guarded(c))
	}
}

type connKey struct{}

// Trust says that the connection of a request has shown a valid token.
func Trust(ctx context.Context) {
	if c, ok := ctx.Value(connKey{}).(*Conn); ok && c != nil && !c.authenticated.Load() {
		c.guard.trust(c)
	}
}

// Waits after failures of accept.
const (
	firstWait = 5 * time.Millisecond
	lastWait  = 500 * time.Millisecond
)

// Accept implements net.Listener. It does not give up when the process is out of
// descriptors, but makes room.
func (g *Guard) Accept() (net.Conn, error) {
	wait := firstWait
	for {
		inner, err := g.Listener.Accept()
		if err == nil {
			if c := g.admit(inner); c != nil {
				return c, nil
			}
			continue
		}
		if !isTemporary(err) {
			return nil, err
		}
		g.log.Warn("a connection cannot be accepted", "error", err)
		g.mu.Lock()
		victim := g.victim()
		g.mu.Unlock()
		victim.evict()
		time.Sleep(wait) //nolint:forbidigo // Accept has no context
		wait = min(2*wait, lastWait)
	}
}

// isTemporary reports whether accepting may succeed later.
func isTemporary(err error) bool {
	for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED,
		syscall.ECONNRESET, syscall.EINTR} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// Secure has the guard speak TLS to clients, before it accepts any. The frames of HTTP/2 are
// counted within it.
func (g *Guard) Secure(c *tls.Config) { g.tls = c }

// admit takes a connection in; nil if there is no room for it. The goroutine that reads first
// makes the handshake of TLS.
func (g *Guard) admit(inner net.Conn) *Conn {
	if g.tls != nil {
		inner = tls.Server(inner, g.tls)
	}
	c := &Conn{Conn: inner, guard: g, from: address(inner.RemoteAddr()), budget: burst, since: time.Now()}
	c.limit.After, c.limit.Cut = writeTime, func() { _ = inner.Close() }
	g.mu.Lock()
	why, victim := g.room(c)
	if why == "" {
		g.open++
		if c.from.IsValid() {
			g.addresses[c.from]++
		}
		c.enter(&g.strangers)
	}
	g.mu.Unlock()
	victim.evict()
	if why == "" {
		return c
	}
	_ = inner.Close()
	g.refused.Add(1)
	g.log.Warn(why, "from", inner.RemoteAddr().String())
	return nil
}

// room finds room for a connection: it returns why there is none, or the connection that
// must end. The caller holds the lock.
func (g *Guard) room(c *Conn) (why string, victim *Conn) {
	if c.from.IsValid() && g.limits.PerAddress > 0 && g.addresses[c.from] >= g.limits.PerAddress {
		return "connections refused: this client address has as many as it can have", nil
	}
	if g.open < g.limits.Connections {
		return "", nil
	}
	if victim = g.victim(); victim == nil {
		return "connections refused: there are as many as there can be", nil
	}
	return "", victim
}

// victim takes out the connection that can best be done without; nil if all are at
// work. The caller holds the lock, and closes it without.
func (g *Guard) victim() *Conn {
	first := g.strangers.Front()
	if first == nil {
		first = g.idle.Front()
	}
	if first == nil {
		return nil
	}
	c := first.Value.(*Conn)
	g.remove(c)
	return c
}

// remove takes a connection out of the count. The caller holds the lock.
func (g *Guard) remove(c *Conn) {
	if c.removed {
		return
	}
	c.removed = true
	c.leave()
	g.open--
	if !c.from.IsValid() {
		return
	}
	if g.addresses[c.from]--; g.addresses[c.from] == 0 {
		delete(g.addresses, c.from)
	}
}

func (g *Guard) trust(c *Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.removed || c.authenticated.Swap(true) {
		return
	}
	c.leave() // it is at work
}

// state follows which connections are idle. Of those without a token it does not
// matter.
func (g *Guard) state(inner net.Conn, s http.ConnState) {
	c := guarded(inner)
	if c == nil || !c.authenticated.Load() || s != http.StateActive && s != http.StateIdle {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	c.leave()
	if s == http.StateIdle && !c.removed {
		c.enter(&g.idle)
	}
}

// guarded is the guard's own end of a connection, below what others put around it; nil if it
// has none.
func guarded(c net.Conn) *Conn {
	if own, ok := c.(*Conn); ok {
		return own
	}
	if t, ok := c.(interface{ NetConn() net.Conn }); ok {
		return guarded(t.NetConn())
	}
	return nil
}

// address is what a client's connections are counted by; the zero Prefix for those of
// this machine, and where there is no address.
func address(a net.Addr) netip.Prefix {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip, ok := netip.AddrFromSlice(tcp.IP)
	if !ok || ip.Unmap().IsLoopback() {
		return netip.Prefix{}
	}
	return network(ip)
}

// network is the client behind an address: of IPv6 one has a whole /64.
func network(ip netip.Addr) netip.Prefix {
	ip = ip.Unmap().WithZone("")
	bits := ip.BitLen()
	if ip.Is6() {
		bits = 64
	}
	p, err := ip.Prefix(bits)
	if err != nil { // there is no such length, or no address
		return netip.Prefix{}
	}
	return p
}
