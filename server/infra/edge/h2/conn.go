package h2

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// conn is one connection.
type conn struct {
	srv  *Server
	nc   net.Conn
	ctx  context.Context
	peer string

	// Of the reader.
	framer  *http2.Framer
	settled bool // the client's settings have come

	mu   sync.Mutex
	wake *sync.Cond // a window grew, something was written, a body came, a stream ended
	gone bool       // the connection is over

	out      *bytes.Buffer // frames to be written; nil: none
	writing  bool          // a goroutine writes
	control  *http2.Framer // appends to out
	block    bytes.Buffer  // of headers
	encoder  *hpack.Encoder
	window   int64 // bytes of data that the client takes
	initial  int64 // the same of a new stream
	maxFrame int

	streams  map[uint32]*stream
	handlers int
	last     uint32 // the newest stream that was served
	seen     uint32 // the newest of which there was a frame
	taken    int64  // bytes of bodies that were read and not credited yet
	owed     int64  // bytes of bodies that may come
	leaving  bool   // no further streams

	timer  *time.Timer
	heard  time.Time // the last frame came
	idle   time.Time // the last stream ended
	pinged time.Time // zero: no ping waits for its answer
	ping   [8]byte
}

func newConn(ctx context.Context, s *Server, nc net.Conn) *conn {
	c := &conn{srv: s, nc: nc, ctx: ctx, peer: nc.RemoteAddr().String(), streams: map[uint32]*stream{},
		window: 65535, initial: 65535, maxFrame: 16 << 10, owed: connWindow}
	c.wake = sync.NewCond(&c.mu)
	c.framer = http2.NewFramer(nil, bufio.NewReaderSize(nc, 512))
	c.framer.SetReuseFrames()
	c.framer.SetMaxReadFrameSize(maxFrameSize)
	c.framer.ReadMetaHeaders = hpack.NewDecoder(tableSize, nil)
	c.framer.MaxHeaderListSize = uint32(s.MaxHeader + 10*32)
	c.control = http2.NewFramer(appender{c}, nil)
	c.encoder = hpack.NewEncoder(&c.block)
	// The settings come first on the wire. They are queued before others know the connection:
	// a shutdown may announce the end before serve has run.
	_ = c.control.WriteSettings( // to memory, as all that control writes
		http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: maxStreams},
		http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: c.framer.MaxHeaderListSize})
	_ = c.control.WriteWindowUpdate(0, connWindow-65535)
	return c
}

// appender queues what is written to it. The caller holds mu.
type appender struct{ c *conn }

func (a appender) Write(b []byte) (int, error) {
	return a.c.buffer().Write(b)
}

// serve reads the connection until it ends.
func (c *conn) serve() {
	defer c.end()
	now := time.Now()
	c.mu.Lock()
	c.heard, c.idle = now, now
	c.timer = time.AfterFunc(settingsTime, c.tick)
	c.flush()
	c.mu.Unlock()
	for {
		f, err := c.framer.ReadFrame()
		if err == nil {
			err = c.process(f)
		}
		var broken http2.StreamError
		if errors.As(err, &broken) {
			c.mu.Lock()
			c.reset(broken.StreamID, broken.Code)
			c.mu.Unlock()
			err = nil
		}
		if err != nil {
			c.refuse(err)
			return
		}
		if !c.answer() {
			return
		}
	}
}

// answer has what reading brought about written. False means that too much of it waits: the
// client asks and does not take the answers.
func (c *conn) answer() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.queued(); n > maxAnswers {
		c.srv.Log.Warn("connection cut: the client does not take the answers that it asks for", "from", c.peer,
			"waiting_bytes", n)
		return false
	}
	c.flushLater()
	return true
}

// flushLater has another goroutine write what is queued: the reader must not wait for the
// client. The caller holds mu.
func (c *conn) flushLater() {
	if c.out == nil || c.writing {
		return
	}
	go func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.flush()
	}()
}

// refuse says why a connection is over.
func (c *conn) refuse(err error) {
	var code http2.ConnectionError
	switch {
	case errors.As(err, &code):
	case errors.Is(err, http2.ErrFrameTooLarge):
		code = http2.ConnectionError(http2.ErrCodeFrameSize)
	default:
		return // the client has gone
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.control.WriteGoAway(c.last, http2.ErrCode(code), nil)
	_ = c.nc.SetDeadline(time.Now().Add(lastWords))
	c.flush()
	c.mu.Unlock()
	_, _ = io.Copy(io.Discard, c.nc) // or the client would not get to read why
	c.mu.Lock()
}

func (c *conn) end() {
	_ = c.nc.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone = true
	c.timer.Stop()
	for _, st := range c.streams {
		c.close(st, errGone)
	}
	c.wake.Broadcast()
}

// flush writes what is queued. If another goroutine writes already, that one writes it,
// too. Frames that others queue meanwhile are left to a new goroutine, because a handler
// must return to its stream. The caller holds mu, which is not held during writes.
func (c *conn) flush() {
	if c.writing || c.out == nil {
		return
	}
	c.writing = true
	if c.write(); c.out == nil || c.gone {
		c.writing = false
		return
	}
	go func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for c.out != nil && !c.gone {
			c.write()
		}
		c.writing = false
	}()
}

// write writes what is queued now. The caller holds mu.
func (c *conn) write() {
	b := c.out
	c.out = nil
	c.mu.Unlock()
	_, err := c.nc.Write(b.Bytes())
	free(b)
	c.mu.Lock()
	if err != nil {
		c.gone = true
		_ = c.nc.Close() // the reader finds out
	}
	c.wake.Broadcast()
}

// buffer is where frames are queued. The caller holds mu.
func (c *conn) buffer() *bytes.Buffer {
	if c.out == nil {
		c.out = alloc()
	}
	return c.out
}

// queued is how many bytes wait to be written. The caller holds mu.
func (c *conn) queued() int {
	if c.out == nil {
		return 0
	}
	return c.out.Len()
}

// reset ends a stream with a code. The caller holds mu.
func (c *conn) reset(id uint32, code http2.ErrCode) {
	_ = c.control.WriteRSTStream(id, code)
	c.seen = max(c.seen, id)
	if st := c.streams[id]; st != nil {
		c.close(st, errReset)
	}
}

// close forgets a stream. The caller holds mu.
func (c *conn) close(st *stream, why error) {
	if c.streams[st.id] != st {
		return
	}
	delete(c.streams, st.id)
	if st.err == nil {
		st.err = why
	}
	if n := len(st.body.rest()); n > 0 { // the handler does not get the whole body
		c.giveBack(nil, int64(n))
		st.body.data, st.body.ended = nil, false
	}
	st.cancel()
	if len(c.streams) == 0 {
		c.idle = time.Now()
		c.state(http.StateIdle)
		if c.leaving {
			c.hangUp()
		}
	}
	c.wake.Broadcast()
}

func (c *conn) state(s http.ConnState) {
	if c.srv.State != nil {
		c.srv.State(c.nc, s)
	}
}

// hangUp ends a connection when the client has had the time to read what is queued. The
// caller holds mu.
func (c *conn) hangUp() {
	c.flushLater()
	time.AfterFunc(lastWords, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if (c.out != nil || c.writing) && !c.gone { // a slow client; the limit of writes ends it
			c.hangUp()
			return
		}
		_ = c.nc.Close()
	})
}

// drain takes no further streams, and ends the connection with the last.
func (c *conn) drain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leave()
}

// leave is drain for callers that hold mu.
func (c *conn) leave() {
	if c.leaving {
		return
	}
	c.leaving = true
	_ = c.control.WriteGoAway(c.last, http2.ErrCodeNo, nil)
	if len(c.streams) == 0 {
		c.hangUp()
		return
	}
	c.flushLater()
}

// tick watches a connection on which nothing happens.
func (c *conn) tick() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	next := time.Duration(math.MaxInt64)
	until := func(at time.Time) { next = min(next, at.Sub(now)) }
	switch {
	case c.gone:
		return
	case !c.settled, !c.pinged.IsZero() && now.Sub(c.pinged) >= pingTime:
		_ = c.nc.Close()
		return
	case len(c.streams) == 0 && now.Sub(c.idle) >= idleTime:
		c.leave()
		return
	case c.pinged.IsZero() && now.Sub(c.heard) >= pingAfter:
		c.pinged = now
		_, _ = rand.Read(c.ping[:]) // never fails
		_ = c.control.WritePing(false, c.ping)
		c.flushLater()
	}
	if c.pinged.IsZero() {
		until(c.heard.Add(pingAfter))
	} else {
		until(c.pinged.Add(pingTime))
	}
	if len(c.streams) == 0 {
		until(c.idle.Add(idleTime))
	}
	c.timer.Reset(max(next, time.Millisecond))
}
