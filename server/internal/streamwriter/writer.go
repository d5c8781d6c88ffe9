// Package streamwriter is the way of a stream's responses out of a handler: writes are
// collected until they are flushed, messages that are encoded already take a short way, a
// reader that is stuck is cut, and responses under load are spaced.
//
// It owns how responses leave; it does not own what they hold (packages api and topicrpc)
// nor their encoding (package codec).
//
// # Concurrency
//
// A Writer and a Pace belong to the one goroutine that sends.
package streamwriter

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/parley-chat/parley/server/infra/edge"
)

// Timeout is the time for one response: it cuts a reader that is stuck.
const Timeout = 10 * time.Second

// collector collects what is written until it is flushed, so that a response of many frames
// goes to the server in one piece: the server passes each write of an HTTP/2 stream to
// another goroutine and waits for it, and connect writes the envelope and its content one
// after the other.
//
// One goroutine uses it. Between responses it holds no memory.
type collector struct {
	http.ResponseWriter
	controller *http.ResponseController
	short      shortWay // nil: the server has none
	buffer     *[]byte  // nil: nothing was written
	held       bool     // flushes wait
	err        error    // of the server, which a flush cannot return
}

// keptBuffer is the largest buffer that is used again, in bytes: what append makes of the
// 256 KiB that callers send together.
const keptBuffer = 384 << 10

var buffers = sync.Pool{New: func() any { return new([]byte) }}

type collectorKey struct{}

// Collect gives the handlers of streaming procedures what New looks for.
func Collect(next http.Handler, streams func(procedure string) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !streams(r.URL.Path) {
			next.ServeHTTP(w, r)
			return
		}
		out := &collector{ResponseWriter: w, controller: http.NewResponseController(w), short: shortWayOf(w)}
		defer out.release()
		next.ServeHTTP(out, r.WithContext(context.WithValue(r.Context(), collectorKey{}, out)))
		out.push()
	})
}

// Unwrap is for http.ResponseController.
func (c *collector) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// Write implements http.ResponseWriter.
func (c *collector) Write(b []byte) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	c.alloc()
	*c.buffer = append(*c.buffer, b...)
	return len(b), nil
}

func (c *collector) alloc() {
	if c.buffer == nil {
		c.buffer = buffers.Get().(*[]byte)
	}
}

// Flush implements http.Flusher, which connect asks for by type.
func (c *collector) Flush() {
	if c.held {
		return
	}
	c.push()
	if err := c.controller.Flush(); c.err == nil {
		c.err = err
	}
}

// push writes what was collected.
func (c *collector) push() {
	if c.buffer == nil {
		return
	}
	if _, err := c.ResponseWriter.Write(*c.buffer); c.err == nil {
		c.err = err
	}
	c.release()
}

func (c *collector) release() {
	if c.buffer == nil {
		return
	}
	if cap(*c.buffer) <= keptBuffer {
		*c.buffer = (*c.buffer)[:0]
		buffers.Put(c.buffer)
	}
	c.buffer = nil
}

// shortWay is a server's writer that takes bytes of a body and has them written, without the
// buffers and writers between.
type shortWay interface {
	WriteAndFlush(b []byte) error
}

// shortWayOf is that of the server below the writers that were put around its own.
func shortWayOf(w http.ResponseWriter) shortWay {
	for {
		switch t := w.(type) {
		case shortWay:
			return t
		case interface{ Unwrap() http.ResponseWriter }:
			w = t.Unwrap()
		default:
			return nil
		}
	}
}

// encoded is a message that puts itself on the wire (codec.Encoded).
type encoded interface {
	AppendWire(dst []byte) ([]byte, error)
}

// envelope is the size of what stands before a message of a stream: a byte of flags, of which
// none is set, and its length in four bytes. Connect, gRPC and gRPC-Web have the same.
const envelope = 5

// message writes a message in its envelope, as connect would.
func (c *collector) message(m encoded) error {
	if c.err != nil {
		return c.err
	}
	c.alloc()
	start := len(*c.buffer)
	b, err := m.AppendWire(append(*c.buffer, make([]byte, envelope)...))
	if err != nil {
		return fmt.Errorf("encode a response: %w", err)
	}
	binary.BigEndian.PutUint32(b[start+1:], uint32(len(b)-start-envelope))
	*c.buffer = b
	switch {
	case c.held:
	case c.short == nil:
		c.Flush()
	default:
		c.err = c.short.WriteAndFlush(b)
		c.release()
	}
	return c.err
}

// Sender is what sends: a connection of connect.
type Sender interface {
	ResponseHeader() http.Header
	Send(m any) error
}

var _ Sender = connect.StreamingHandlerConn(nil)

// Writer sends the responses of one stream.
type Writer struct {
	conn  Sender
	out   *collector // nil: the transport has none
	limit edge.WriteLimit
	plain bool // the headers are sent, and messages are protobuf in envelopes
}

// New makes the writer of a stream. Close releases what it holds.
func New(ctx context.Context, conn Sender) *Writer {
	conn.ResponseHeader().Set("X-Accel-Buffering", "no") // nginx would hold responses back
	conn.ResponseHeader().Set("Cache-Control", "no-cache")
	w := &Writer{conn: conn}
	w.limit.After = Timeout
	if out, ok := ctx.Value(collectorKey{}).(*collector); ok {
		w.out = out
		// Not every transport can; then the bound of what is queued alone ends a slow reader.
		w.limit.Cut = func() { _ = out.controller.SetWriteDeadline(time.Unix(1, 0)) }
	}
	return w
}

// Close ends the limit of single responses. The status, and the end of the response, are
// written later by others, who get a time of their own.
func (w *Writer) Close() {
	w.limit.Close()
	if w.out != nil {
		_ = w.out.controller.SetWriteDeadline(time.Now().Add(Timeout))
	}
}

// Send sends responses in one piece. Between them nothing else is sent.
func (w *Writer) Send(responses ...any) error {
	w.limit.Start()
	defer w.limit.Stop()
	for i, m := range responses {
		if w.out != nil {
			w.out.held = i < len(responses)-1
		}
		// The first one is always connect's: its content in headers is its own. Of the others those that are encoded
		// already need nothing of it.
		var err error
		if e, ok := m.(encoded); ok && w.plain {
			err = w.out.message(e)
		} else if err = w.conn.Send(m); err == nil && w.out != nil {
			w.plain = isProtobuf(w.out.Header().Get("Content-Type")) // connect's own has none for gRPC
			err = w.out.err
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// isProtobuf reports whether a content type is that of a stream of protobuf.
func isProtobuf(contentType string) bool {
	switch contentType {
	case "application/connect+proto", "application/grpc", "application/grpc+proto", "application/grpc-web",
		"application/grpc-web+proto":
		return true
	}
	return false
}

// CutRead makes reads of the request's body fail from a time on; the zero time ends that.
// Not every transport can.
func CutRead(ctx context.Context, at time.Time) {
	if out, ok := ctx.Value(collectorKey{}).(*collector); ok {
		_ = out.controller.SetReadDeadline(at)
	}
}
