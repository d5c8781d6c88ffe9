// Package stream is users' streams as a load test reads them: with a decoder of the few
// fields that it needs, because streams carry hundreds of thousands of frames a second and
// the server shares the machine. It also encodes the requests that are as frequent, and
// the stamps in messages by which deliveries are timed.
//
// Concurrency: the functions of a Listener's owner run on its connection's reader, one at a
// time, and must not wait; its methods may be called by many goroutines, but Repeats and ID
// by those functions only.
package stream

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/parley-chat/parley/gen/parley/delivery/v1/deliveryv1connect"
	"github.com/parley-chat/parley/server/load/rpc"
)

// Handler has the functions for frames; a nil function ignores them.
type Handler struct {
	Message func(l *Listener, f Frame)
	Receipt func()
}

// Listener is a user's stream.
type Listener struct {
	handler Handler
	id      string           // of the stream, from its first frame
	last    map[string]int64 // sequence of the last message by chat
	live    chan error       // nil once everything that was missed has come, or why not
	isUp    atomic.Bool
	lost    atomic.Bool
}

var errEnded = errors.New("the server ended the stream")

// NewListener makes a listener that is on no connection yet.
func NewListener(h Handler) *Listener {
	return &Listener{handler: h, last: map[string]int64{}, live: make(chan error, 1)}
}

// Listen opens a stream.
func Listen(c *rpc.Conn, token string, h Handler) (*Listener, error) {
	l := NewListener(h)
	return l, c.Stream(token, deliveryv1connect.DeliveryServiceSubscribeProcedure, nil, l.take, l.end)
}

func (l *Listener) take(b []byte) {
	err := eachFrame(b, func(f Frame) {
		switch f.kind {
		case frameHello:
			l.id = streamID(f.body)
		case frameMessage:
			if l.handler.Message != nil {
				l.handler.Message(l, f)
			}
		case frameReceipt:
			if l.handler.Receipt != nil {
				l.handler.Receipt()
			}
		case frameHeartbeat: // the first one says that everything has come
			l.resolve(nil)
		case frameEnd:
			l.end(errEnded)
		}
	})
	if err != nil {
		l.end(err)
	}
}

func (l *Listener) end(err error) {
	if err == nil {
		err = errEnded
	}
	l.lost.Store(true)
	l.resolve(err)
}

func (l *Listener) resolve(err error) {
	if l.isUp.CompareAndSwap(false, true) {
		l.live <- err
	}
}

// Await waits until the stream has everything that its user missed. It is called once.
func (l *Listener) Await(ctx context.Context) error {
	select {
	case err := <-l.live:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ID is the stream's, by which it is acknowledged.
func (l *Listener) ID() string { return l.id }

// IsLost reports whether the stream has ended.
func (l *Listener) IsLost() bool { return l.lost.Load() }

// Repeats notes a message and reports whether it came before, or after a later one.
func (l *Listener) Repeats(f Frame) bool {
	if f.Sequence <= l.last[string(f.Chat)] {
		return true
	}
	l.last[string(f.Chat)] = f.Sequence
	return false
}
