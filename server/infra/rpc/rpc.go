// Package rpc surrounds the handlers of a service, in the same order for every service:
// it recovers panics, counts outcomes and maps errors; lets callers in; checks each
// message; bounds a unary call's time; and waits until what a handler read is durable.
//
// It owns that order, and the form of what callers see of errors: Refusals is a service's table
// from errors to codes, reasons and times to retry. The services own authentication, validation and
// their tables: package api for users, package ops for operators.
//
// Concurrency: a Chain does not change and is safe for concurrent use.
package rpc

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
)

// Chain is what surrounds a service's handlers. All of it is required but Admit and Stream.
type Chain struct {
	// Enter lets a call in, or refuses it; leave is called when the call has ended.
	Enter func(ctx context.Context) (leave func(), err error)
	// Admit, after Enter, lets a call in by what it asks for, or refuses it; m is nil where a
	// stream is opened, and has not been checked. leave is called when the call has ended.
	Admit func(ctx context.Context, procedure string, m any) (leave func(), err error)
	// Check checks each message before the handler gets it.
	Check func(m proto.Message, header http.Header) error
	// Timeout bounds a unary call.
	Timeout time.Duration
	// Unary and Stream surround the handler itself, inside of all else.
	Unary  func(ctx context.Context, req connect.AnyRequest, next connect.UnaryFunc) (connect.AnyResponse, error)
	Stream func(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc
	// Durable waits until all that the call has read is on stable storage.
	Durable func(ctx context.Context) error
	// Public is the error that a caller sees in place of another; Panicked in place of a panic.
	Public   func(ctx context.Context, procedure string, err error) *connect.Error
	Panicked func(ctx context.Context, procedure string, value any, stack []byte) *connect.Error
	// Observe counts a call; err is what the caller sees, nil for a success.
	Observe func(ctx context.Context, procedure string, err *connect.Error, took time.Duration)
	// First, if given, counts a stream once: when its first response is sent, with nil, or when it
	// ends without one, with what the caller sees.
	First func(procedure string, err *connect.Error, took time.Duration)
}

var _ connect.Interceptor = (*Chain)(nil)

// WrapUnary implements connect.Interceptor.
func (c *Chain) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (res connect.AnyResponse, err error) {
		started := time.Now()
		ctx, cancel := context.WithTimeout(ctx, c.Timeout)
		defer cancel() // after errors are judged, which asks whether the context has ended
		defer func() {
			if err = c.finish(ctx, req.Spec().Procedure, started, recover(), err); err != nil {
				res = nil
			}
		}()
		leave, err := c.enter(ctx, req.Spec().Procedure, req.Any())
		if err != nil {
			return nil, err
		}
		defer leave()
		if err := c.check(req.Any(), req.Header()); err != nil {
			return nil, err
		}
		return c.Unary(ctx, req, func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			res, err := next(ctx, req)
			// The one place where a unary answer waits. An error waits, too: it may depend on
			// what was read.
			if durable := c.Durable(ctx); durable != nil {
				return nil, fmt.Errorf("wait for durability: %w", durable)
			}
			return res, err
		})
	}
}

// WrapStreamingClient implements connect.Interceptor; there are no clients here.
func (*Chain) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler implements connect.Interceptor. The messages of a stream wait for
// durability where they are made.
func (c *Chain) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	if c.Stream != nil {
		next = c.Stream(next)
	}
	return func(ctx context.Context, conn connect.StreamingHandlerConn) (err error) {
		checked := &checkedConn{StreamingHandlerConn: conn, chain: c, started: time.Now()}
		defer func() {
			err = c.finish(ctx, conn.Spec().Procedure, checked.started, recover(), err)
			public := (*connect.Error)(nil)
			if errors.As(err, &public); err != nil {
				checked.first(public)
			}
		}()
		leave, err := c.enter(ctx, conn.Spec().Procedure, nil)
		if err != nil {
			return err
		}
		defer leave()
		return next(ctx, checked)
	}
}

// enter lets a call in: its caller, then what it asks for.
func (c *Chain) enter(ctx context.Context, procedure string, m any) (leave func(), err error) {
	entered, err := c.Enter(ctx)
	if err != nil || c.Admit == nil {
		return entered, err
	}
	admitted, err := c.Admit(ctx, procedure, m)
	if err != nil {
		entered()
		return nil, err
	}
	return func() { admitted(); entered() }, nil
}

// checkedConn checks each message of a stream, and counts its first response.
type checkedConn struct {
	connect.StreamingHandlerConn
	chain   *Chain
	started time.Time
	counted atomic.Bool
}

// first counts the stream, unless it was counted.
func (c *checkedConn) first(err *connect.Error) {
	if c.chain.First != nil && !c.counted.Swap(true) {
		c.chain.First(c.Spec().Procedure, err, time.Since(c.started))
	}
}

// Send implements connect.StreamingHandlerConn.
func (c *checkedConn) Send(m any) error {
	err := c.StreamingHandlerConn.Send(m)
	if err == nil {
		c.first(nil)
	}
	return err
}

// Receive implements connect.StreamingHandlerConn.
func (c *checkedConn) Receive(m any) error {
	if err := c.StreamingHandlerConn.Receive(m); err != nil {
		return err
	}
	return c.chain.check(m, c.RequestHeader())
}

func (c *Chain) check(m any, header http.Header) error {
	msg, ok := m.(proto.Message)
	if !ok {
		return fmt.Errorf("rpc: %T is not a message", m)
	}
	return c.Check(msg, header)
}

// finish counts a call and returns the error that the caller sees.
func (c *Chain) finish(ctx context.Context, procedure string, started time.Time, panicked any, err error) error {
	if panicked == http.ErrAbortHandler { //nolint:errorlint // net/http compares it like this too
		panic(panicked)
	}
	var out *connect.Error
	switch {
	case panicked != nil:
		out = c.Panicked(ctx, procedure, panicked, debug.Stack())
	case err != nil:
		out = c.Public(ctx, procedure, err)
	}
	c.Observe(ctx, procedure, out, time.Since(started))
	if out == nil {
		return nil // not a nil *connect.Error in an error
	}
	return out
}

// Code is how a call's outcome is counted: "ok" or the name of connect's code.
func Code(err *connect.Error) string {
	if err == nil || connect.IsNotModifiedError(err) {
		return "ok"
	}
	return err.Code().String()
}
