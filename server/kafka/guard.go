package kafka

import (
	"encoding/binary"
	"errors"
	"net"

	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/net/netutil"
)

// Limits of the embedded broker's port.
const (
	maxFrame       = 100 << 20
	maxConnections = 512
)

var errFrame = errors.New("kafka: connection sent what is no Kafka request")

// guardedListener lets only Kafka requests through to the embedded broker, which
// would end the process for an unknown kind of request and set aside as much
// memory as a frame claims to need.
type guardedListener struct{ net.Listener }

func guard(l net.Listener) net.Listener {
	return guardedListener{netutil.LimitListener(l, maxConnections)}
}

func (l guardedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &guardedConn{Conn: c}, nil
}

// guardedConn follows the frames in what is read: four bytes of length, then two
// of the request's kind. The broker's one reader is the only caller of Read.
type guardedConn struct {
	net.Conn
	head [6]byte
	have int   // bytes of head
	rest int64 // of the frame after its head
}

func (c *guardedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if !c.follow(b[:n]) {
		_ = c.Conn.Close()
		return 0, errFrame
	}
	return n, err
}

// follow reports whether the bytes may go on being read.
func (c *guardedConn) follow(b []byte) bool {
	for len(b) > 0 {
		if c.rest > 0 {
			skip := min(c.rest, int64(len(b)))
			b, c.rest = b[skip:], c.rest-skip
			continue
		}
		c.head[c.have] = b[0]
		c.have++
		b = b[1:]
		switch c.have {
		case 4:
			if n := binary.BigEndian.Uint32(c.head[:4]); n < 8 || n > maxFrame {
				return false
			}
		case 6:
			if kmsg.RequestForKey(int16(binary.BigEndian.Uint16(c.head[4:]))) == nil {
				return false
			}
			c.rest, c.have = int64(binary.BigEndian.Uint32(c.head[:4]))-2, 0
		}
	}
	return true
}
