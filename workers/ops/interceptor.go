package ops

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"buf.build/go/protovalidate"
	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/parley-chat/parley/server/infra/rpc"
)

// chain surrounds every call: it bounds their number, validates requests, and records calls
// for the audit.
func (s *Service) chain() (*rpc.Chain, error) {
	v, err := protovalidate.New()
	if err != nil {
		return nil, fmt.Errorf("ops: rules of requests: %w", err)
	}
	return &rpc.Chain{
		Enter: s.enter, Check: func(m proto.Message, _ http.Header) error { return v.Validate(m) },
		Timeout: unaryTimeout, Unary: s.record, Stream: s.recordStream,
		Durable: s.cfg.Store.Durable, // an answer says nothing that a crash could undo
		Public:  s.public,
		Panicked: func(ctx context.Context, procedure string, value any, stack []byte) *connect.Error {
			return s.internal(ctx, procedure, slog.Any("panic", value), slog.String("stack", string(stack)))
		},
		Observe: func(_ context.Context, procedure string, err *connect.Error, took time.Duration) {
			s.cfg.Observe(procedure, rpc.Code(err), took)
		},
	}, nil
}

// enter bounds the number of calls.
func (s *Service) enter(context.Context) (leave func(), err error) {
	select {
	case s.calls <- struct{}{}:
		return func() { <-s.calls }, nil
	default:
		return nil, errBusy
	}
}

// record runs a unary call, and records its start and end.
func (s *Service) record(
	ctx context.Context, req connect.AnyRequest, next connect.UnaryFunc,
) (res connect.AnyResponse, err error) {
	r := &record{s: s, procedure: req.Spec().Procedure}
	if err := r.begin(ctx, req.Spec(), req.Any()); err != nil {
		return nil, err
	}
	defer r.end(ctx, &err)
	if res, err = next(ctx, req); err == nil {
		r.result = res.Any()
	}
	return res, err
}

// recordStream records the start and end of a stream.
func (s *Service) recordStream(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) (err error) {
		c := &recordedConn{conn, ctx, &record{s: s, procedure: conn.Spec().Procedure}}
		defer c.record.end(ctx, &err)
		return next(ctx, c)
	}
}

// recordedConn records a call when its first message comes.
type recordedConn struct {
	connect.StreamingHandlerConn
	ctx    context.Context // of the one call that this is
	record *record
}

// Receive implements connect.StreamingHandlerConn.
func (c *recordedConn) Receive(m any) error {
	if err := c.StreamingHandlerConn.Receive(m); err != nil {
		return err
	}
	return c.record.begin(c.ctx, c.Spec(), m)
}

// Send implements connect.StreamingHandlerConn.
func (c *recordedConn) Send(m any) error {
	c.record.result = m
	return c.StreamingHandlerConn.Send(m)
}
