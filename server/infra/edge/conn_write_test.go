package edge

import (
	"io"
	"log/slog"
	"net"
	"testing"
	"time"
)

// pair is a guarded connection and its client.
func pair(t *testing.T) (*Conn, net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := New(l, Limits{Connections: 10}, slog.New(slog.DiscardHandler))
	t.Cleanup(func() { _ = g.Close() })
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	c, err := g.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c.(*Conn), client
}

// prefaced makes the server's end see that the client speaks HTTP/2.
func prefaced(t *testing.T, c *Conn, client net.Conn) {
	t.Helper()
	if _, err := io.WriteString(client, preface); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, len(preface))); err != nil {
		t.Fatal(err)
	}
}

// A client of HTTP/2 that takes nothing is cut, one that takes something now and then is
// not, and on other connections writes may wait.
func TestWritesThatHang(t *testing.T) {
	const limit = 200 * time.Millisecond
	more := make([]byte, 32<<20) // more than all buffers on the way hold
	t.Run("takes nothing", func(t *testing.T) {
		c, client := pair(t)
		c.limit.After = limit
		prefaced(t, c, client)
		if n, err := c.Write(more); err == nil {
			t.Errorf("%d bytes were written", n)
		}
	})
	t.Run("takes something", func(t *testing.T) {
		c, client := pair(t)
		c.limit.After = limit
		prefaced(t, c, client)
		took := make(chan int64)
		go func() {
			b, sum, began := make([]byte, 1<<20), int64(0), time.Now()
			for {
				n, err := client.Read(b)
				if sum += int64(n); err != nil {
					took <- sum
					return
				}
				if time.Since(began) < 3*limit { // longer than the limit in all
					time.Sleep(limit / 10)
				}
			}
		}()
		n, err := c.Write(more)
		if err != nil || n != len(more) {
			t.Errorf("%d bytes were written: %v", n, err)
		}
		_ = c.Close()
		if sum := <-took; sum != int64(len(more)) {
			t.Errorf("%d bytes came", sum)
		}
	})
	t.Run("HTTP/1.1", func(t *testing.T) {
		c, client := pair(t)
		c.limit.After = limit
		done := make(chan error, 1)
		go func() {
			_, err := c.Write(more)
			done <- err
		}()
		time.Sleep(3 * limit)
		go func() { _, _ = io.Copy(io.Discard, client) }()
		if err := <-done; err != nil {
			t.Errorf("cut: %v", err)
		}
	})
}
