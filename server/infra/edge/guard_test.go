package edge

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"syscall"
	"testing"
	"time"
)

// pipes is a listener whose clients say where they come from.
type pipes struct{ arrivals chan any } // net.Conn or error

func (p *pipes) Accept() (net.Conn, error) {
	switch a := (<-p.arrivals).(type) {
	case net.Conn:
		return a, nil
	case error:
		return nil, a
	}
	return nil, net.ErrClosed
}

func (p *pipes) Close() error   { close(p.arrivals); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

type from struct {
	net.Conn
	addr net.Addr
}

func (f from) RemoteAddr() net.Addr { return f.addr }

// gate is a guard, and the number of connections that came through it and are open.
type gate struct {
	*Guard
	in  *pipes
	log *lines
}

type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func newGate(t *testing.T, limits Limits) *gate {
	g := &gate{in: &pipes{make(chan any, 16)}, log: &lines{}}
	g.Guard = New(g.in, limits, slog.New(slog.NewTextHandler(g.log, nil)))
	t.Cleanup(func() { _ = g.Close() })
	return g
}

// come lets a client in; server is nil if it was closed at once.
func (g *gate) come(t *testing.T, ip string) (client net.Conn, server *Conn) {
	t.Helper()
	client, theirs := net.Pipe()
	return client, g.admit(from{theirs, &net.TCPAddr{IP: net.ParseIP(ip), Port: 1}})
}

// isOpen reports whether the other side has not closed.
func isOpen(c net.Conn) bool {
	_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err := c.Read(make([]byte, 1))
	return !errors.Is(err, io.EOF)
}

func (c *Conn) context() context.Context {
	return context.WithValue(context.Background(), connKey{}, c)
}

// Where there is no room the oldest without a token goes, then who is idle for longest;
// nobody who is at work does.
func TestWhoMakesRoom(t *testing.T) {
	g := newGate(t, Limits{Connections: 3})
	first, _ := g.come(t, "127.0.0.1")
	worker, w := g.come(t, "127.0.0.1")
	idle, i := g.come(t, "127.0.0.1")
	for _, c := range []*Conn{w, i} {
		Trust(c.context())
		Trust(c.context())
		g.state(c, http.StateActive)
	}
	g.state(i, http.StateIdle)
	expect := func(what string, conn net.Conn, want bool) {
		t.Helper()
		if isOpen(conn) != want {
			t.Errorf("%s: open is %v", what, !want)
		}
	}
	second, _ := g.come(t, "127.0.0.1")
	expect("the oldest without a token", first, false)
	third, s := g.come(t, "127.0.0.1")
	expect("the next one", second, false)
	Trust(s.context())
	fourth, f := g.come(t, "127.0.0.1")
	expect("who is idle", idle, false)
	expect("who is at work", worker, true)
	expect("who has a token and its first request", third, true)
	Trust(f.context())
	fifth, n := g.come(t, "127.0.0.1")
	if n != nil || isOpen(fifth) {
		t.Error("there are more connections than there may be")
	}
	expect("who was there", fourth, true)
	if got, want := g.Stats(), (Stats{Open: 3, Refused: 1, Evicted: 3}); got != want {
		t.Errorf("%+v, not %+v", got, want)
	}
	for _, c := range []*Conn{w, w, s, f, i} { // closing twice, or after having been closed, counts once
		_ = c.Close()
	}
	if got := g.Stats().Open; got != 0 {
		t.Errorf("%d are open after all were closed", got)
	}
}

// An address has a number of connections, of IPv6 a network; this machine has them all.
func TestConnectionsOfAnAddress(t *testing.T) {
	g := newGate(t, Limits{Connections: 100, PerAddress: 2})
	var conns []*Conn
	for i, tt := range []struct {
		ip string
		in bool
	}{
		{"203.0.113.7", true}, {"203.0.113.7", true}, {"203.0.113.7", false}, {"203.0.113.8", true},
		{"::ffff:203.0.113.7", false},
		{"2001:db8:1:2::1", true}, {"2001:db8:1:2::2", true}, {"2001:db8:1:2:ffff::3", false}, {"2001:db8:1:3::1", true},
		{"127.0.0.1", true}, {"127.0.0.1", true}, {"127.0.0.1", true}, {"::1", true}, {"::1", true}, {"::1", true},
	} {
		client, c := g.come(t, tt.ip)
		if (c != nil) != tt.in || isOpen(client) != tt.in {
			t.Errorf("%d, from %s: let in is %v", i, tt.ip, c != nil)
		}
		if c != nil {
			conns = append(conns, c)
		}
	}
	_ = conns[0].Close()
	if _, c := g.come(t, "203.0.113.7"); c == nil {
		t.Error("a place that was left is not free")
	}
	for _, c := range conns[1:] {
		_ = c.Close()
	}
	if n := len(g.addresses); n != 1 {
		t.Errorf("%d addresses are remembered", n)
	}
}

// A process without descriptors makes room and keeps accepting; a closed listener
// ends.
func TestAcceptGoesOn(t *testing.T) {
	g := newGate(t, Limits{Connections: 100})
	old, _ := g.come(t, "127.0.0.1")
	for _, err := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ECONNABORTED} {
		g.in.arrivals <- &net.OpError{Op: "accept", Err: err}
	}
	client, theirs := net.Pipe()
	g.in.arrivals <- net.Conn(from{theirs, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}})
	if c, err := g.Accept(); err != nil || c == nil {
		t.Fatal(err)
	}
	if isOpen(old) || !isOpen(client) {
		t.Error("no room was made, or for nobody")
	}
	g.in.arrivals <- net.ErrClosed
	if _, err := g.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}
