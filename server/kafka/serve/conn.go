package serve

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sync/semaphore"
)

// Limits of a connection.
const (
	maxRequest  = 1 << 20   // bytes of a request
	maxGreeting = 64 << 10  // of one before the client has shown a password
	maxPending  = 256       // requests that wait for the answer of the one before
	maxUnread   = 2 << 20   // bytes of these
	writePart   = 256 << 10 // bytes of an answer that a client takes within writeTime
	writeTime   = 20 * time.Second
	// greetingTime is how long a client may take to show a password, and requestTime how long the first byte of a
	// request may be ahead of its last.
	greetingTime = 10 * time.Second
	requestTime  = 10 * time.Second
	headerSize   = 8 // of a request: key, version, correlation id
)

// errRefused ends a connection whose client sent a request that the server does not announce.
var errRefused = errors.New("kafka: request is not served")

// conn is one connection. Two goroutines serve it: one reads requests, and so also notices the end of
// the connection while the other waits for records; the other answers.
type conn struct {
	net.Conn
	server  *Server
	auth    authState // of the goroutine that answers
	session *session  // likewise; nil: none

	since    time.Time // when the connection began
	requests chan []byte
	unread   *semaphore.Weighted // bytes of the requests in the channel

	mu    sync.Mutex
	hurry context.CancelFunc // ends the wait of the current fetch; nil: none waits
	full  bool               // the reading goroutine waits for room
	// known allows larger requests, and silence. It is set before the answer that tells the client, which reads that
	// before it sends one.
	known bool
}

// Serve answers the requests of one connection until it ends, ctx ends, or the client sends what is
// not served; the error says which. It closes the connection, also if the client shows no password within 10
// seconds, or takes as long for a request, and if an answer that it does not read makes no progress for 20
// seconds. With a user the client need not show a password; without (""), it must.
func (s *Server) Serve(ctx context.Context, nc net.Conn, user string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	c := &conn{Conn: nc, server: s, requests: make(chan []byte, maxPending), unread: semaphore.NewWeighted(maxUnread),
		since: time.Now(), known: user != "", auth: authState{done: user != "", user: user}}
	// The end of ctx must end a Read and a Write under way, and the end of either must end every wait of the other
	// goroutine: closing the connection and cancelling ctx always go together.
	stop := context.AfterFunc(ctx, func() { _ = nc.Close() })
	defer stop()
	var reading sync.WaitGroup
	reading.Go(func() { cancel(c.read(ctx)) })
	cancel(c.answer(ctx))
	_ = nc.Close()
	reading.Wait()
	return context.Cause(ctx)
}

// read reads requests until one fails.
func (c *conn) read(ctx context.Context) error {
	for {
		b, err := c.readFrame()
		if err != nil {
			return err
		}
		if err := c.queue(ctx, b); err != nil {
			return err
		}
	}
}

// readFrame reads one request without its size. It asks for the limit when the size is there: it has waited for that
// since before the answer to the last request, which may have been the one to the password.
func (c *conn) readFrame() ([]byte, error) {
	if err := c.await(false); err != nil {
		return nil, err
	}
	var size [4]byte
	if _, err := io.ReadFull(c.Conn, size[:1]); err != nil {
		return nil, err
	}
	if err := c.await(true); err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(c.Conn, size[1:]); err != nil {
		return nil, err
	}
	n := int64(binary.BigEndian.Uint32(size[:]))
	if n == 0 || n > c.limit() {
		return nil, errMalformed
	}
	b := make([]byte, 0, min(n, 4<<10)) // as much as comes, not as much as is announced
	for int64(len(b)) < n {
		part := min(max(len(b), 4<<10), int(n)-len(b))
		b = slices.Grow(b, part)[:len(b)+part]
		if _, err := io.ReadFull(c.Conn, b[len(b)-part:]); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// limit is how large a request may be now.
func (c *conn) limit() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known {
		return maxRequest
	}
	return maxGreeting
}

// await bounds how long the rest of a request is waited for, or the first byte of the next.
func (c *conn) await(begun bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var until time.Time // a client whose password is known may be silent
	if begun {
		until = time.Now().Add(requestTime)
	}
	if end := c.since.Add(greetingTime); !c.known && (until.IsZero() || end.Before(until)) {
		until = end
	}
	return c.SetReadDeadline(until)
}

// setKnown says that the client has shown a password. The reading goroutine waits for the next request already, or
// has its first byte: its bound, which is that of a greeting, ends. The lock keeps it from setting another one.
func (c *conn) setKnown() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known = true
	return c.SetReadDeadline(time.Time{})
}

// queue passes a request on. Without room it waits, and then the end of the connection is not noticed. So it first
// ends the wait of a fetch, which answers with the records that it has; its client asks again. A request of a group
// waits until its coordinator answers.
func (c *conn) queue(ctx context.Context, b []byte) error {
	n := int64(len(b))
	if !c.unread.TryAcquire(n) {
		c.setFull(true)
		if err := c.unread.Acquire(ctx, n); err != nil {
			return err
		}
	}
	select {
	case c.requests <- b:
	default:
		c.setFull(true)
		select {
		case c.requests <- b:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	c.setFull(false)
	return nil
}

func (c *conn) setFull(full bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.full = full
	if full && c.hurry != nil {
		c.hurry()
	}
}

// patience returns the context of a fetch that waits, which ends early if requests behind it find no room.
func (c *conn) patience(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.full {
		cancel()
	}
	c.hurry = cancel
	return ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.hurry = nil
		cancel()
	}
}

// answer answers requests until one fails.
func (c *conn) answer(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case b := <-c.requests:
			c.unread.Release(int64(len(b)))
			if err := c.one(ctx, b); err != nil {
				return err
			}
		}
	}
}

// one answers a request.
func (c *conn) one(ctx context.Context, b []byte) error {
	if c.auth.bare {
		return c.bareToken(b)
	}
	h, body, err := c.server.header(b)
	if err != nil {
		return err
	}
	if h.api == nil { // ApiVersions of a version to come
		return c.write(appendResponse(nil, h.correlation, unknownVersion(c.server.apis)))
	}
	if h.api.password && !c.auth.done {
		return errRefused
	}
	req, err := h.api.parse(h.version, body)
	if err != nil {
		return err
	}
	if f, ok := req.(*kmsg.FetchRequest); ok { // takes memory by itself, as much as it needs
		return c.answerFetch(ctx, h, f)
	}
	if h.api.charged {
		_, release, err := c.server.memory.take(ctx, 0)
		if err != nil {
			return err
		}
		defer release()
	}
	res, err := h.api.handle(c, ctx, h, req)
	if err != nil {
		return err
	}
	if err := c.send(h, res, 0); err != nil {
		return err
	}
	return c.auth.failed // the client has read why
}

func (c *conn) answerFetch(ctx context.Context, h header, req *kmsg.FetchRequest) error {
	res, size, release, err := c.fetchRecords(ctx, req)
	if err != nil {
		return err
	}
	defer release()
	return c.send(h, res, size)
}

// send sends a response, whose size may be known about.
func (c *conn) send(h header, res kmsg.Response, size int) error {
	res.SetVersion(h.version)
	return c.write(appendResponse(make([]byte, 0, size), h.correlation, res))
}

// appendResponse appends a frame. The header of an ApiVersions response is never flexible, because its client
// does not know yet what the server understands.
func appendResponse(b []byte, correlation int32, res kmsg.Response) []byte {
	start := len(b)
	b = binary.BigEndian.AppendUint32(append(b, 0, 0, 0, 0), uint32(correlation))
	if res.IsFlexible() && res.Key() != int16(kmsg.ApiVersions) {
		b = append(b, 0) // no tags
	}
	b = res.AppendTo(b)
	binary.BigEndian.PutUint32(b[start:], uint32(len(b)-start-4))
	return b
}

// write sends a frame. The memory of an answer is in use until then, so a client must take it in time.
func (c *conn) write(b []byte) error {
	for len(b) > 0 {
		if err := c.SetWriteDeadline(time.Now().Add(writeTime)); err != nil {
			return err
		}
		n, err := c.Write(b[:min(len(b), writePart)])
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// header is what precedes a request.
type header struct {
	api         *api // nil: ApiVersions of an unknown version
	version     int16
	correlation int32
	client      string
}

// header reads the header of a request, and returns what follows.
func (s *Server) header(b []byte) (h header, body []byte, err error) {
	if len(b) < headerSize {
		return h, nil, errMalformed
	}
	r := kbin.Reader{Src: b}
	key := r.Int16()
	h.version, h.correlation = r.Int16(), r.Int32()
	a := s.apis[key]
	if a == nil {
		return h, nil, errRefused
	}
	if h.version < a.min || h.version > a.max {
		if kmsg.Key(key) == kmsg.ApiVersions {
			return h, nil, nil
		}
		return h, nil, errRefused
	}
	h.api = a
	if id := r.NullableString(); id != nil {
		h.client = *id
	}
	if !r.Ok() {
		return h, nil, errMalformed
	}
	body = r.Src
	if a.flexible(h.version) {
		if body, err = (shape{}).walk(body, h.version, true); err != nil {
			return h, nil, err
		}
	}
	return h, body, nil
}

// client describes the sender of a request.
func (c *conn) client(h header) Client {
	host := c.RemoteAddr().String()
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return Client{User: c.auth.user, ID: h.client, Host: host}
}
