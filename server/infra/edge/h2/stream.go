package h2

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2"
)

// Why a stream is over.
var (
	errGone  = errors.New("h2: the client has gone")
	errReset = errors.New("h2: the stream was reset")
	errDone  = errors.New("h2: the response is complete")
)

// stream is one request and its response. The connection's lock guards it.
type stream struct {
	c      *conn
	id     uint32
	ctx    context.Context
	cancel context.CancelFunc
	window int64 // bytes of data that the client takes
	body   body
	err    error // why it is over

	answered bool // the end of the response is queued
	writeEnd *time.Timer
	readEnd  *time.Timer
}

// headers begins a stream, or ends a request's body.
func (c *conn) headers(f *http2.MetaHeadersFrame) error {
	id := f.StreamID
	if id%2 == 0 {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	if st := c.streams[id]; st != nil { // trailers, which no handler here reads
		switch b := &st.body; {
		case b.ended:
			return http2.StreamError{StreamID: id, Code: http2.ErrCodeStreamClosed}
		case !f.StreamEnded(), len(f.PseudoFields()) > 0, b.length >= 0 && b.came != b.length:
			return http2.StreamError{StreamID: id, Code: http2.ErrCodeProtocol}
		}
		c.bodyEnded(st)
		c.wake.Broadcast()
		return nil
	}
	if id <= c.seen {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	c.seen = id
	if c.leaving {
		return nil // the client learns which streams are not served
	}
	c.last = id
	if f.HasPriority() && f.Priority.StreamDep == id {
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeProtocol}
	}
	if len(c.streams) >= maxStreams || c.handlers >= maxHandlers {
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeRefusedStream}
	}
	st := &stream{c: c, id: id, window: c.initial}
	st.body = body{st: st, owed: streamWindow, length: -1, ended: f.StreamEnded()}
	req, status := c.request(st, f)
	if req == nil {
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeProtocol}
	}
	st.ctx, st.cancel = context.WithCancel(c.ctx)
	if len(c.streams) == 0 {
		c.state(http.StateActive)
	}
	c.streams[id] = st
	c.handlers++
	c.srv.workers.do(func() { c.run(st, req.WithContext(st.ctx), status) })
	return nil
}

// request is the request of a stream; nil if there is none. A status other than 0 is the
// answer.
func (c *conn) request(st *stream, f *http2.MetaHeadersFrame) (req *http.Request, status int) {
	method, path, scheme := f.PseudoValue("method"), f.PseudoValue("path"), f.PseudoValue("scheme")
	if method == "" || method == http.MethodConnect || path == "" || scheme != "http" && scheme != "https" {
		return nil, 0
	}
	u, err := url.ParseRequestURI(path)
	if err != nil {
		return nil, 0
	}
	fields := f.RegularFields()
	header := make(http.Header, len(fields))
	for _, h := range fields {
		header.Add(h.Name, h.Value)
	}
	if cookies := header["Cookie"]; len(cookies) > 1 {
		header.Set("Cookie", strings.Join(cookies, "; "))
	}
	st.body.expect = httpguts.HeaderValuesContainsToken(header["Expect"], "100-continue")
	if st.body.expect {
		header.Del("Expect")
	}
	if forbidden(header) {
		return nil, 0
	}
	host := f.PseudoValue("authority")
	if host == "" {
		host = header.Get("Host")
	}
	header.Del("Host")
	req = &http.Request{Method: method, URL: u, Proto: "HTTP/2.0", ProtoMajor: 2, Header: header, Host: host,
		RemoteAddr: c.peer, RequestURI: path, Body: &st.body, ContentLength: -1}
	if n, ok := header["Content-Length"]; ok {
		length, err := strconv.ParseUint(n[0], 10, 63)
		if err != nil || len(n) > 1 {
			return nil, 0
		}
		req.ContentLength = int64(length)
		st.body.length = req.ContentLength
	}
	if st.body.ended {
		if req.ContentLength > 0 {
			return nil, 0
		}
		req.ContentLength, req.Body = 0, http.NoBody
	}
	if f.Truncated {
		status = http.StatusRequestHeaderFieldsTooLarge
	}
	return req, status
}

// forbidden reports whether headers are there that HTTP/2 does not have.
func forbidden(h http.Header) bool {
	for _, name := range [...]string{"Connection", "Proxy-Connection", "Keep-Alive", "Transfer-Encoding", "Upgrade"} {
		if _, ok := h[name]; ok {
			return true
		}
	}
	te := h["Te"]
	return len(te) > 0 && (len(te) > 1 || te[0] != "" && te[0] != "trailers")
}

// run serves a stream.
func (c *conn) run(st *stream, req *http.Request, status int) {
	w := &response{st: st, head: req.Method == http.MethodHead, header: http.Header{}}
	defer func() {
		p := recover()
		if p != nil && p != http.ErrAbortHandler { //nolint:errorlint // as net/http compares it
			c.srv.Log.Error("a handler panicked", "panic", p, "stack", string(debug.Stack()))
		}
		if p == nil {
			w.finish()
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.handlers--
		st.closeBody()
		for _, t := range []*time.Timer{st.writeEnd, st.readEnd} {
			if t != nil {
				t.Stop()
			}
		}
		if c.streams[st.id] == st { // it has no end, or the client's is missing
			code := http2.ErrCodeNo
			if !st.answered {
				code = http2.ErrCodeInternal
			}
			c.reset(st.id, code)
		}
		st.cancel()
		c.flush()
	}()
	if status != 0 {
		http.Error(w, http.StatusText(status), status)
		return
	}
	c.srv.Handler.ServeHTTP(w, req)
}

// fail ends a stream on which a goroutine has waited for too long. The caller holds mu.
func (st *stream) fail(why error) {
	c := st.c
	if c.streams[st.id] != st {
		return
	}
	st.err = why
	c.reset(st.id, http2.ErrCodeInternal)
	c.flushLater()
}

// body is the body of a request.
type body struct {
	st     *stream
	data   []byte
	at     int   // of data that was read
	owed   int64 // bytes that may come
	taken  int64 // bytes that were read and not credited yet
	came   int64
	length int64 // as the client says; -1: it does not
	ended  bool  // all has come
	closed bool  // the handler wants nothing more
	expect bool  // the client waits for a word before it sends it
	err    error // of a deadline
}

func (b *body) rest() []byte { return b.data[min(b.at, len(b.data)):] }

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	c := b.st.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if b.expect {
		b.expect = false
		b.st.sayContinue()
	}
	for len(b.rest()) == 0 {
		switch {
		case b.closed:
			return 0, http.ErrBodyReadAfterClose
		case b.err != nil:
			return 0, b.err
		case b.ended:
			return 0, io.EOF
		case b.st.err != nil:
			return 0, b.st.err
		case len(p) == 0:
			return 0, nil
		}
		c.wake.Wait()
	}
	n := copy(p, b.rest())
	if b.at += n; b.at == len(b.data) {
		b.data, b.at = nil, 0
	}
	c.giveBack(b.st, int64(n))
	c.flushLater() // or a client that takes nothing would keep the handler, past its deadline
	return n, nil
}

// Close implements io.Closer.
func (b *body) Close() error {
	b.st.c.mu.Lock()
	defer b.st.c.mu.Unlock()
	b.st.closeBody()
	b.st.c.flushLater() // a window for the other streams
	return nil
}

// closeBody drops what has come of a body. The caller holds mu.
func (st *stream) closeBody() {
	st.c.giveBack(nil, int64(len(st.body.rest())))
	st.body.data, st.body.at, st.body.closed = nil, 0, true
	st.c.wake.Broadcast()
}

// deadline has f called at a time, in the past at once; the zero time means never. The
// caller holds mu.
func (st *stream) deadline(timer **time.Timer, at time.Time, f func()) {
	if *timer != nil {
		(*timer).Stop()
		*timer = nil
	}
	switch left := time.Until(at); {
	case at.IsZero():
	case left <= 0:
		f()
	default:
		var own *time.Timer
		own = time.AfterFunc(left, func() {
			st.c.mu.Lock()
			defer st.c.mu.Unlock()
			if *timer == own { // or another has been set since
				f()
			}
		})
		*timer = own
	}
}

func (st *stream) readDeadline(at time.Time) {
	st.c.mu.Lock()
	defer st.c.mu.Unlock()
	st.body.err = nil
	st.deadline(&st.readEnd, at, func() {
		st.body.err = os.ErrDeadlineExceeded
		st.c.wake.Broadcast()
	})
}

func (st *stream) writeDeadline(at time.Time) {
	st.c.mu.Lock()
	defer st.c.mu.Unlock()
	st.deadline(&st.writeEnd, at, func() { st.fail(os.ErrDeadlineExceeded) })
}
