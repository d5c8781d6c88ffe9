package edge

import (
	"container/list"
	"net"
	"net/netip"
	"sync/atomic"
	"time"
)

// A client pays for every HTTP/2 frame, because each costs the server work, and earns by
// what it was sent, because it answers that with frames of its own: updates of two windows
// and a ping to measure its bandwidth for a frame of data, the body of a request for an
// answer. The rest of the budget limits a client that sends frames without an answer of the
// server: PING, SETTINGS, PRIORITY, WINDOW_UPDATE, CONTINUATION, empty DATA, and requests
// that are reset at once. A client that has shown a token does not pay for data that may
// hold a message: on a stream of requests there may be many to an answer.
const (
	burst     = 2_000 // frames of a connection at its beginning, or after a pause
	perSecond = 200   // more of them
	perAnswer = 16    // for each header sent
	perData   = 3     // at most, for each frame of data sent
	dataShare = 64    // bytes of data sent for which there is one frame
	maxEarned = 1 << 18
	envelope  = 5 // bytes that a message has at least
)

// Conn is a guarded connection. It has one reader, and one writer at a time. A client of
// HTTP/2 that does not take what is written to it is cut.
type Conn struct {
	net.Conn
	guard *Guard
	from  netip.Prefix

	// Of the reader.
	in     frames
	budget int64     // frames that may still come
	since  time.Time // when it was filled up

	// Of the writer.
	out   frames
	limit WriteLimit

	http2  atomic.Bool
	earned atomic.Int64
	// authenticated: the connection has shown a token.
	authenticated atomic.Bool

	// Guarded by the guard's lock.
	within  *list.List
	slot    *list.Element
	removed bool
}

func (c *Conn) enter(l *list.List) { c.within, c.slot = l, l.PushBack(c) }

func (c *Conn) leave() {
	if c.within != nil {
		c.within.Remove(c.slot)
		c.within, c.slot = nil, nil
	}
}

// evict closes a connection that was taken out of the count.
func (c *Conn) evict() {
	if c != nil {
		c.guard.evicted.Add(1)
		_ = c.Conn.Close() // its reader and writer find out
	}
}

// Close implements net.Conn.
func (c *Conn) Close() error {
	c.limit.Close()
	c.guard.mu.Lock()
	c.guard.remove(c)
	c.guard.mu.Unlock()
	return c.Conn.Close()
}

// CloseWrite ends one direction, as net/http does before it closes a connection on which
// something is still coming: without that the last answer is lost.
func (c *Conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// Read implements net.Conn. It cuts a connection that floods.
func (c *Conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.in.mode == plain {
		return n, err
	}
	rest := b[:n]
	for {
		f, left, ok := c.in.next(rest)
		if !ok {
			break
		}
		rest = left
		if f.kind == frameData && f.length >= envelope && c.authenticated.Load() {
			continue
		}
		if !c.pay() {
			c.cut(f)
			return 0, net.ErrClosed
		}
	}
	if c.in.mode == framed && !c.http2.Load() {
		c.http2.Store(true)
	}
	return n, err
}

// Bounds of a write to an HTTP/2 connection. All its streams wait for it.
const (
	writeTime = 20 * time.Second
	writeSize = 64 << 10 // bytes that have this time: a client that takes them, however slowly, is not cut
)

// Write implements net.Conn.
func (c *Conn) Write(b []byte) (n int, err error) {
	if !c.http2.Load() {
		return c.Conn.Write(b)
	}
	c.out.mode = framed // a server has no preface
	c.earn(b)
	for n < len(b) && err == nil {
		var wrote int
		c.limit.Start()
		wrote, err = c.Conn.Write(b[n:min(len(b), n+writeSize)])
		c.limit.Stop()
		n += wrote
	}
	return n, err
}

// pay takes a frame from the budget, and reports whether there was one.
func (c *Conn) pay() bool {
	if c.budget <= 0 {
		now := time.Now()
		if more := int64(now.Sub(c.since) * perSecond / time.Second); more > 0 {
			c.budget, c.since = min(more, burst), now
		}
		c.budget += c.earned.Swap(0)
	}
	c.budget--
	return c.budget >= 0
}

// earn counts what is sent.
func (c *Conn) earn(b []byte) {
	var sum int64
	for {
		f, left, ok := c.out.next(b)
		if !ok {
			break
		}
		b = left
		switch f.kind {
		case frameData:
			sum += int64(min(f.length/dataShare, perData))
		case frameHeaders:
			sum += perAnswer
		}
	}
	if sum > 0 && c.earned.Load() < maxEarned {
		c.earned.Add(sum)
	}
}

func (c *Conn) cut(last frame) {
	c.guard.flooded.Add(1)
	c.guard.log.Warn("connection cut: more HTTP/2 frames than there was a reason for", "from", c.RemoteAddr().String(),
		"last_frame", last.name())
	_ = c.Close()
}
