// Package port is the listener of the embedded broker: a guarded TCP port for other
// processes on this machine, and in-memory connections for the clients of this process.
//
// Loopback is not trusted: every account on the machine can connect. So the port accepts
// a bounded number of connections, small and complete requests, and only those that read. The broker also
// requires a password, from a file in the data directory, which permits reading topics and
// using groups other than Parley's own. Clients of this process do not use TCP, so that
// strangers cannot use up their connections.
//
// The package owns connections, limits and the credentials; it does not own the broker.
//
// Concurrency: a Port may be used by many goroutines.
package port

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Limits of a connection by TCP.
const (
	DefaultConnections = 64
	MaxRequest         = 1 << 20          // bytes of one request; the broker holds two at most
	maxGreeting        = 64 << 10         // before the password was right
	greetingTime       = 10 * time.Second // until it is
	requestTime        = 10 * time.Second // from the first byte of a request to the last
	maxFetch           = 8 << 20          // bytes of an answer with records
	maxFetchPart       = 1 << 20          // of one partition
	maxOpen            = 512              // connections of a port without passwords
	logEvery           = time.Minute      // least time between two lines about refused connections
)

// Config is how a port is guarded.
type Config struct {
	// Open lets all clients do everything, with requests of any kind that there is; for tests.
	Open bool
	// Connections bounds those by TCP; 0: DefaultConnections.
	Connections int
	Logger      *slog.Logger // may be nil
}

// Stats are the connections by TCP.
type Stats struct {
	Open    int
	Refused int64 // closed at once, because as many as allowed had shown the password
	Evicted int64 // closed without a password, to make room
}

// Port is a listener for the broker.
type Port struct {
	net.Listener
	open  bool // without passwords, for tests
	limit int  // of connections by TCP
	log   *slog.Logger
	conns chan net.Conn
	done  chan struct{}
	close sync.Once

	mu      sync.Mutex
	strange []*conn // by TCP, oldest first
	refused int64
	evicted int64
	logged  time.Time // when the last refused connection was logged
}

// New guards a listener.
func New(l net.Listener, cfg Config) *Port {
	p := &Port{Listener: l, open: cfg.Open, limit: cmp.Or(cfg.Connections, DefaultConnections), log: cfg.Logger,
		conns: make(chan net.Conn), done: make(chan struct{})}
	if p.open {
		p.limit = maxOpen
	}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	go p.accept()
	return p
}

// Accept returns the next connection, of either kind.
func (p *Port) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

// Dial connects a client of this process.
func (p *Port) Dial(ctx context.Context, _, _ string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case p.conns <- local{theirs, p.Addr()}:
		return ours, nil
	case <-p.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// local is the broker's end of a connection of this process: pipes have no address that
// the broker could show.
type local struct {
	net.Conn
	addr net.Addr
}

func (l local) RemoteAddr() net.Addr { return l.addr }

// Close ends the listener.
func (p *Port) Close() error {
	err := net.ErrClosed
	p.close.Do(func() {
		close(p.done)
		err = p.Listener.Close()
	})
	return err
}

func (p *Port) accept() {
	for {
		c, err := p.Listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			_ = p.Close()
			return
		}
		if err != nil { // out of descriptors, say
			select {
			case <-p.done:
				return
			case <-time.After(50 * time.Millisecond):
			}
			continue
		}
		s := p.admit(c)
		if s == nil {
			continue
		}
		select {
		case p.conns <- s:
		case <-p.done:
			_ = s.Close()
			return
		}
	}
}

// admit takes a connection among those that there may be. Where there is no room, the
// oldest that has not shown a password goes; if all have, the new one does.
func (p *Port) admit(c net.Conn) *conn {
	s := &conn{Conn: c, port: p, since: time.Now()}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.strange) >= p.limit {
		i := slices.IndexFunc(p.strange, func(old *conn) bool { return !old.trusted() })
		if i < 0 {
			p.refuse(c)
			return nil
		}
		p.evicted++
		_ = p.strange[i].Conn.Close()
		p.strange = slices.Delete(p.strange, i, i+1)
	}
	p.strange = append(p.strange, s)
	return s
}

// refuse closes a connection for which there is no room; mu is held.
func (p *Port) refuse(c net.Conn) {
	_ = c.Close()
	p.refused++
	if now := time.Now(); now.Sub(p.logged) >= logEvery {
		p.logged = now
		p.log.Warn("the Kafka port refuses connections of readers; raise kafka-connections or close some", "connections",
			p.limit, "refused", p.refused)
	}
}

// Stats returns the counters.
func (p *Port) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return Stats{Open: len(p.strange), Refused: p.refused, Evicted: p.evicted}
}

// Watched reports whether anybody is connected by TCP who has shown a password.
func (p *Port) Watched() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.strange, func(c *conn) bool { return c.trusted() })
}

func (p *Port) forget(s *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.strange, s); i >= 0 {
		p.strange = slices.Delete(p.strange, i, i+1)
	}
}

// conn is a connection by TCP. The broker has one reader for it, and one writer.
type conn struct {
	net.Conn
	port  *Port
	since time.Time
	buf   []byte // of a request that the broker has not read yet

	mu    sync.Mutex
	asked bool // something that needs a password was let through
	known bool // and answered: the broker has taken the password
	// greetings counts the unanswered requests before that. The broker reads the next request
	// while it works on one, so asked may be true when it answers a greeting: such an answer must
	// not count as one to a request that needs a password.
	greetings int
	// versions are the unanswered ApiVersions requests, in order. The broker answers in order,
	// but not every request (acks=0), so the correlation id tells to which one an answer belongs.
	versions []versionsRequest
}

// versionsRequest is an ApiVersions request.
type versionsRequest struct {
	correlation int32
	version     int16
}

func (c *conn) trusted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known || c.port.open
}

// Write is the broker's answer: it gives none to what needs a password without one. The broker
// writes each answer with one call.
func (c *conn) Write(b []byte) (int, error) {
	if version, ok := c.answers(b); ok {
		out, err := announce(b, version)
		if err != nil {
			return 0, err
		}
		if _, err := c.Conn.Write(out); err != nil {
			return 0, err
		}
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// answers notes an answer, and returns the version if it belongs to an ApiVersions request.
func (c *conn) answers(b []byte) (version int16, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.greetings > 0 {
		c.greetings--
	} else {
		c.known = c.known || c.asked
	}
	if len(c.versions) == 0 || len(b) < 8 || int32(binary.BigEndian.Uint32(b[4:])) != c.versions[0].correlation {
		return 0, false
	}
	version = c.versions[0].version
	c.versions = c.versions[1:]
	return version, true
}

// Close lets another connection in.
func (c *conn) Close() error {
	c.port.forget(c)
	return c.Conn.Close()
}

var errRefused = errors.New("kafka: connection sent what is not allowed here")

// Read hands over requests once they are there whole.
func (c *conn) Read(b []byte) (int, error) {
	if len(c.buf) == 0 {
		request, err := c.request()
		if err != nil {
			_ = c.Close()
			return 0, err
		}
		c.buf = request
	}
	n := copy(b, c.buf)
	c.buf = c.buf[n:]
	return n, nil
}

// request reads one.
func (c *conn) request() ([]byte, error) {
	limit := maxGreeting
	var patience time.Time
	if c.trusted() {
		limit = MaxRequest
		if c.port.open {
			limit = 100 << 20
		}
	} else {
		patience = c.since.Add(greetingTime)
	}
	if err := c.SetReadDeadline(patience); err != nil {
		return nil, err
	}
	var size [4]byte
	if _, err := io.ReadFull(c.Conn, size[:1]); err != nil {
		return nil, err
	}
	if end := time.Now().Add(requestTime); patience.IsZero() || end.Before(patience) {
		if err := c.SetReadDeadline(end); err != nil {
			return nil, err
		}
	}
	if _, err := io.ReadFull(c.Conn, size[1:]); err != nil {
		return nil, err
	}
	n := int(size[0])<<24 | int(size[1])<<16 | int(size[2])<<8 | int(size[3])
	if n < minRequest || n > limit {
		return nil, errRefused
	}
	b := make([]byte, 4, 4+min(n, 4<<10)) // as much as comes, not as much as is announced
	copy(b, size[:])
	for len(b) < 4+n {
		part := min(max(len(b), 4<<10), 4+n-len(b))
		b = slices.Grow(b, part)[:len(b)+part]
		if _, err := io.ReadFull(c.Conn, b[len(b)-part:]); err != nil {
			return nil, err
		}
	}
	return c.check(b)
}

// check lets a request through, with bounds of its own where it has none.
func (c *conn) check(b []byte) ([]byte, error) {
	key := int16(binary.BigEndian.Uint16(b[4:]))
	if c.port.open {
		if kmsg.RequestForKey(key) == nil { // the broker would end the process
			return nil, errRefused
		}
		return b, nil
	}
	when := answered[kmsg.Key(key)]
	if when == never {
		return nil, errRefused
	}
	c.mu.Lock()
	switch {
	case when == afterPassword:
		c.asked = true
	case !c.asked:
		c.greetings++
	}
	if kmsg.Key(key) == kmsg.ApiVersions {
		c.versions = append(c.versions, versionsRequest{
			correlation: int32(binary.BigEndian.Uint32(b[8:])), version: int16(binary.BigEndian.Uint16(b[6:])),
		})
	}
	c.mu.Unlock()
	if key == int16(kmsg.Fetch) {
		return boundFetch(b)
	}
	return b, nil
}
