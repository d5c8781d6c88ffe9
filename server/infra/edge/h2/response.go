package h2

import (
	"bytes"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// response is a stream's http.ResponseWriter. It belongs to its handler, deadlines aside.
type response struct {
	st      *stream
	header  http.Header
	status  int
	head    bool          // a request for headers only
	fixed   http.Header   // what the handler had set at WriteHeader
	begun   bool          // the headers are queued
	buffer  *bytes.Buffer // of the body; nil: nothing
	wrote   int64
	trailer []string // names that were announced
}

// bodyBuffer is how much of a body waits for more of it.
const bodyBuffer = 4 << 10

var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

func alloc() *bytes.Buffer { return buffers.Get().(*bytes.Buffer) }

func free(b *bytes.Buffer) {
	if b != nil && b.Cap() <= maxOut {
		b.Reset()
		buffers.Put(b)
	}
}

// Header implements http.ResponseWriter.
func (w *response) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter.
func (w *response) WriteHeader(status int) {
	if w.status != 0 {
		return
	}
	if status >= 100 && status < 200 { // no handler here sends any
		return
	}
	w.status = status
	w.fixed = w.header.Clone()
}

// Write implements http.ResponseWriter.
func (w *response) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	if !bodyAllowed(w.status) {
		return 0, http.ErrBodyNotAllowed
	}
	w.wrote += int64(len(b))
	if w.head {
		return len(b), nil
	}
	if w.buffer == nil && len(b) <= bodyBuffer {
		w.buffer = alloc()
	}
	if w.buffer != nil && w.buffer.Len()+len(b) <= bodyBuffer {
		return w.buffer.Write(b)
	}
	if err := w.push(b, false); err != nil {
		return 0, err
	}
	return len(b), nil
}

// WriteAndFlush is Write and FlushError in one, without a copy between.
func (w *response) WriteAndFlush(b []byte) error {
	w.WriteHeader(http.StatusOK)
	if w.head || !bodyAllowed(w.status) {
		return http.ErrBodyNotAllowed
	}
	w.wrote += int64(len(b))
	return w.push(b, false)
}

// FlushError is for http.ResponseController.
func (w *response) FlushError() error {
	w.WriteHeader(http.StatusOK)
	return w.push(nil, false)
}

// Flush implements http.Flusher.
func (w *response) Flush() { _ = w.FlushError() }

// SetReadDeadline is for http.ResponseController.
func (w *response) SetReadDeadline(at time.Time) error {
	w.st.readDeadline(at)
	return nil
}

// SetWriteDeadline is for http.ResponseController.
func (w *response) SetWriteDeadline(at time.Time) error {
	w.st.writeDeadline(at)
	return nil
}

// EnableFullDuplex is for http.ResponseController: HTTP/2 has nothing else.
func (w *response) EnableFullDuplex() error { return nil }

// finish ends the response.
func (w *response) finish() {
	w.WriteHeader(http.StatusOK)
	_ = w.push(nil, true) // a client that does not get it has gone
}

func bodyAllowed(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}

// push queues what is buffered and more, with the headers before it and the end after it.
// It writes them or leaves them to the goroutine that writes already.
func (w *response) push(more []byte, end bool) error {
	c, st := w.st.c, w.st
	var buffer []byte
	if w.buffer != nil {
		buffer = w.buffer.Bytes()
		defer free(w.buffer)
		w.buffer = nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if st.err != nil {
		return st.err
	}
	size := len(buffer) + len(more)
	trailers := end && w.hasTrailers()
	if !w.begun {
		w.begun, st.body.expect = true, false // a 100 must not follow
		over := end && size == 0 && !trailers
		w.headers(buffer, more, end, over)
		if over {
			w.ended()
		}
	}
	last := end && !trailers
	if err := w.data(buffer, last && len(more) == 0); err != nil {
		return err
	}
	if err := w.data(more, last); err != nil {
		return err
	}
	if end && !st.answered {
		if trailers {
			w.trailers()
		} else {
			c.frame(http2.FrameData, http2.FlagDataEndStream, st.id, nil)
		}
		w.ended()
	}
	st.flush()
	return nil
}

// flush is the connection's, except that a handler with a deadline does not wait for the
// network, where no deadline of a stream would reach it. The caller holds mu.
func (st *stream) flush() {
	if st.writeEnd != nil {
		st.c.flushLater()
		return
	}
	st.c.flush()
}

// ended says that the end of the response is queued. The caller holds mu.
func (w *response) ended() {
	w.st.answered = true
	if w.st.body.ended {
		w.st.c.close(w.st, errDone)
	}
}

// data queues bytes as far as the client takes them. The caller holds mu, which is not held
// while this waits.
func (w *response) data(b []byte, last bool) error {
	c, st := w.st.c, w.st
	for len(b) > 0 {
		n := int(min(int64(min(len(b), c.maxFrame)), st.window, c.window))
		if n <= 0 || c.queued() >= maxOut {
			if st.flush(); n <= 0 || c.queued() >= maxOut {
				if st.err == nil && !c.gone && (st.window <= 0 || c.window <= 0 || c.queued() >= maxOut) {
					c.wake.Wait()
				}
			}
			if c.gone && st.err == nil {
				return errGone
			}
			if st.err != nil {
				return st.err
			}
			continue
		}
		st.window -= int64(n)
		c.window -= int64(n)
		flags := http2.Flags(0)
		over := last && n == len(b)
		if over {
			flags = http2.FlagDataEndStream
		}
		c.frame(http2.FrameData, flags, st.id, b[:n])
		if over {
			w.ended()
		}
		b = b[n:]
	}
	return nil
}

// frame queues a frame. The caller holds mu.
func (c *conn) frame(kind http2.FrameType, flags http2.Flags, id uint32, b []byte) {
	n := len(b)
	out := c.buffer()
	out.Grow(9 + n)
	_, _ = out.Write([]byte{byte(n >> 16), byte(n >> 8), byte(n), byte(kind), byte(flags), byte(id >> 24),
		byte(id >> 16), byte(id >> 8), byte(id)})
	_, _ = out.Write(b)
}

// headers queues the response's headers. The caller holds mu.
func (w *response) headers(buffer, more []byte, end, over bool) {
	c, h := w.st.c, w.fixed
	c.block.Reset()
	c.encode(":status", strconv.Itoa(w.status))
	for name, values := range h {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			continue
		}
		if name == "Trailer" {
			w.announce(values)
		}
		for _, v := range values {
			c.encode(strings.ToLower(name), v)
		}
	}
	allowed := bodyAllowed(w.status)
	if _, ok := h["Content-Type"]; !ok && allowed && len(buffer)+len(more) > 0 {
		c.encode("content-type", http.DetectContentType(append(buffer[:len(buffer):len(buffer)], more...)))
	}
	if _, ok := h["Content-Length"]; !ok && end && allowed && !w.hasTrailers() && (w.wrote > 0 || !w.head) {
		c.encode("content-length", strconv.FormatInt(w.wrote, 10))
	}
	if _, ok := h["Date"]; !ok {
		c.encode("date", time.Now().UTC().Format(http.TimeFormat))
	}
	c.headerFrames(w.st.id, over)
}

func (w *response) announce(values []string) {
	for _, v := range values {
		for name := range strings.SplitSeq(v, ",") {
			w.trailer = append(w.trailer, http.CanonicalHeaderKey(strings.TrimSpace(name)))
		}
	}
}

func (w *response) hasTrailers() bool {
	if len(w.trailer) > 0 || len(w.fixed["Trailer"]) > 0 {
		return true
	}
	for name := range w.header {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			return true
		}
	}
	return false
}

// trailers queues what follows the body. The caller holds mu.
func (w *response) trailers() {
	c := w.st.c
	c.block.Reset()
	for name, values := range w.header {
		if bare, ok := strings.CutPrefix(name, http.TrailerPrefix); ok {
			for _, v := range values {
				c.encode(strings.ToLower(bare), v)
			}
		}
	}
	for _, name := range w.trailer {
		for _, v := range w.header[name] {
			c.encode(strings.ToLower(name), v)
		}
	}
	if c.block.Len() == 0 { // they were announced and have not come
		c.frame(http2.FrameData, http2.FlagDataEndStream, w.st.id, nil)
		return
	}
	c.headerFrames(w.st.id, true)
}

// encode adds a header to the block, unless HTTP/2 has no such header, or a client could
// not tell where it ends.
func (c *conn) encode(name, value string) {
	switch name {
	case "connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade":
		return
	}
	if name != ":status" && !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
		return
	}
	_ = c.encoder.WriteField(hpack.HeaderField{Name: name, Value: value}) // to memory
}

// headerFrames queues the block of headers. The caller holds mu.
func (c *conn) headerFrames(id uint32, over bool) {
	kind, flags := http2.FrameHeaders, http2.Flags(0)
	if over {
		flags = http2.FlagHeadersEndStream
	}
	b := c.block.Bytes()
	for first := true; first || len(b) > 0; first = false {
		n := min(len(b), c.maxFrame)
		if n == len(b) {
			flags |= http2.FlagHeadersEndHeaders // has the same value in a continuation
		}
		c.frame(kind, flags, id, b[:n])
		b, kind, flags = b[n:], http2.FrameContinuation, 0
	}
}

// sayContinue asks the client for the body that it holds back. The caller holds mu.
func (st *stream) sayContinue() {
	c := st.c
	if st.err != nil || st.answered {
		return
	}
	c.block.Reset()
	c.encode(":status", "100")
	c.headerFrames(st.id, false)
	c.flushLater()
}
