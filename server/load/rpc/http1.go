package rpc

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// Pool makes unary calls over HTTP/1.1, in Connect's protocol: each call has a connection
// to itself, and leaves it for the next one.
type Pool struct {
	target Target

	mu     sync.Mutex
	idle   []*http1
	closed bool
}

type http1 struct {
	nc  net.Conn
	r   *bufio.Reader
	out []byte
}

// NewPool makes a pool, which opens connections as they are needed.
func NewPool(t Target) *Pool {
	t.Protocol = Connect
	return &Pool{target: t}
}

// Call implements Caller.
func (p *Pool) Call(ctx context.Context, token, procedure string, message []byte) ([]byte, error) {
	c, err := p.take(ctx)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.nc.SetDeadline(time.Unix(1, 0)) })
	body, status, err := c.exchange(p.target.Address, token, procedure, message)
	if !stop() || err != nil {
		_ = c.nc.Close()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		if err != nil {
			return nil, err
		}
	} else {
		p.give(c)
	}
	return p.target.answer(response{status: status}, body)
}

func (c *http1) exchange(host, token, procedure string, message []byte) ([]byte, int, error) {
	c.out = fmt.Appendf(c.out[:0], "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/proto\r\n"+
		"Connect-Protocol-Version: 1\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n",
		procedure, host, token, len(message))
	c.out = append(c.out, message...)
	if _, err := c.nc.Write(c.out); err != nil {
		return nil, 0, err
	}
	res, err := http.ReadResponse(c.r, nil)
	if err != nil {
		return nil, 0, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	return body, res.StatusCode, err
}

func (p *Pool) take(ctx context.Context) (*http1, error) {
	p.mu.Lock()
	if n := len(p.idle); n > 0 {
		c := p.idle[n-1]
		p.idle = p.idle[:n-1]
		p.mu.Unlock()
		return c, nil
	}
	p.mu.Unlock()
	nc, err := p.target.dial(ctx, "http/1.1")
	if err != nil {
		return nil, err
	}
	return &http1{nc: nc, r: bufio.NewReader(nc)}, nil
}

func (p *Pool) give(c *http1) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = c.nc.Close()
		return
	}
	p.idle = append(p.idle, c)
}

// Close closes the connections that no call has.
func (p *Pool) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, c := range p.idle {
		_ = c.nc.Close()
	}
	p.idle = nil
}
