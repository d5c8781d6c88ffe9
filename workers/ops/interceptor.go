package ops

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	"buf.build/go/protovalidate"
	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
)

// interceptor surrounds every call: it bounds their number, validates requests, records
// calls for the audit, catches panics, maps errors, and counts results.
type interceptor struct {
	s        *Service
	validate protovalidate.Validator
}

func newInterceptor(s *Service) (*interceptor, error) {
	v, err := protovalidate.New()
	if err != nil {
		return nil, fmt.Errorf("ops: rules of requests: %w", err)
	}
	return &interceptor{s, v}, nil
}

func (i *interceptor) check(m any) error {
	msg, ok := m.(proto.Message)
	if !ok {
		return fmt.Errorf("ops: %T is not a message", m)
	}
	return i.validate.Validate(msg)
}

// WrapUnary implements connect.Interceptor.
func (i *interceptor) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (res connect.AnyResponse, err error) {
		err = i.call(ctx, req.Spec().Procedure, func() error {
			if err := i.check(req.Any()); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(ctx, unaryTimeout)
			defer cancel()
			if res, err = i.record(ctx, req, next); err != nil {
				return err
			}
			return i.s.cfg.Store.Durable(ctx) // an answer says nothing that a crash could undo
		})
		if err != nil {
			return nil, err
		}
		return res, nil
	}
}

// WrapStreamingClient implements connect.Interceptor; there are no clients here.
func (i *interceptor) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler implements connect.Interceptor.
func (i *interceptor) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		return i.call(ctx, conn.Spec().Procedure, func() (err error) {
			c := &checkedConn{conn, i, ctx, &record{s: i.s, procedure: conn.Spec().Procedure}}
			defer c.record.end(ctx, &err)
			return next(ctx, c)
		})
	}
}

// record runs a unary call, and records its start and end.
func (i *interceptor) record(ctx context.Context, req connect.AnyRequest, next connect.UnaryFunc) (res connect.AnyResponse, err error) {
	r := &record{s: i.s, procedure: req.Spec().Procedure}
	if err := r.begin(ctx, req.Spec(), req.Any()); err != nil {
		return nil, err
	}
	defer r.end(ctx, &err)
	if res, err = next(ctx, req); err == nil {
		r.result = res.Any()
	}
	return res, err
}

// checkedConn validates each message of a stream, and records the call when the first one
// comes.
type checkedConn struct {
	connect.StreamingHandlerConn
	interceptor *interceptor
	ctx         context.Context //nolint:containedctx // of the one call that this is
	record      *record
}

// Receive implements connect.StreamingHandlerConn.
func (c *checkedConn) Receive(m any) error {
	if err := c.StreamingHandlerConn.Receive(m); err != nil {
		return err
	}
	if err := c.interceptor.check(m); err != nil {
		return err
	}
	return c.record.begin(c.ctx, c.Spec(), m)
}

// Send implements connect.StreamingHandlerConn.
func (c *checkedConn) Send(m any) error {
	c.record.result = m
	return c.StreamingHandlerConn.Send(m)
}

// call runs a call, and returns the error that the operator sees.
func (i *interceptor) call(ctx context.Context, procedure string, run func() error) (err error) {
	s, start := i.s, time.Now()
	defer func() {
		p := recover()
		if p == http.ErrAbortHandler { //nolint:errorlint // net/http compares it like this too
			panic(p)
		}
		var out *connect.Error
		switch {
		case p != nil:
			out = s.internal(ctx, procedure, slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
		case err != nil:
			out = s.public(ctx, procedure, err)
		}
		code := "ok"
		if err = nil; out != nil { // not a nil *connect.Error in an error
			code, err = out.Code().String(), out
		}
		s.cfg.Observe(procedure, code, time.Since(start))
	}()
	select {
	case s.calls <- struct{}{}:
		defer func() { <-s.calls }()
	default:
		return errBusy
	}
	return run()
}
