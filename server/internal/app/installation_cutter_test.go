//go:build !windows

package app_test

import (
	"bufio"
	"net"
	"sync"
	"testing"
)

// cutter stands in front of an address, cuts connections and lets none through.
type cutter struct {
	addr, behind string

	mu     sync.Mutex
	closed bool
	conns  []net.Conn
}

// newCutter makes a way to an address, or to a free one that a server is to take.
func newCutter(t testing.TB, to string) *cutter {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{addr: l.Addr().String(), behind: to}
	if to == "" {
		free, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		c.behind = free.Addr().String()
		_ = free.Close()
	}
	t.Cleanup(func() { _ = l.Close(); c.cut() })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", c.behind)
			if err != nil {
				_ = in.Close()
				continue
			}
			c.mu.Lock()
			c.conns = append(c.conns, in, out)
			if c.closed {
				_ = in.Close()
			}
			c.mu.Unlock()
			for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
				go func() {
					_, _ = bufio.NewReader(way[0]).WriteTo(way[1])
					_ = way[0].Close()
					_ = way[1].Close()
				}()
			}
		}
	}()
	return c
}

// shut cuts all connections and lets no new ones through, or lets them again.
func (c *cutter) shut(on bool) {
	c.mu.Lock()
	c.closed = on
	c.mu.Unlock()
	c.cut()
}

func (c *cutter) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	c.conns = nil
}
