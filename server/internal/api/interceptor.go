package api

import (
	"context"
	"errors"
	"fmt"
	"time"

	"buf.build/go/protovalidate"
	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/store"
)

// interceptor stands around every handler, unary and streaming.
type interceptor struct {
	store     store.Store
	validator protovalidate.Validator
	errors    *errorMapper
	observe   func(procedure, code string, took time.Duration)
}

var _ connect.Interceptor = (*interceptor)(nil)

func (i *interceptor) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (res connect.AnyResponse, err error) {
		start, procedure := time.Now(), req.Spec().Procedure
		defer func() { i.done(ctx, procedure, start, recover(), &err) }()
		if err := i.check(ctx, req.Any(), req.Header().Get(keyHeader)); err != nil {
			return nil, err
		}
		res, err = next(ctx, req)
		// What the answer says, an error too, rests on reads that may have seen what is
		// not on disk yet.
		if durable := i.store.Durable(ctx); durable != nil {
			return nil, durable
		}
		return res, err
	}
}

// WrapStreamingClient is not used: this is a server.
func (i *interceptor) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

func (i *interceptor) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) (err error) {
		start, procedure := time.Now(), conn.Spec().Procedure
		defer func() { i.done(ctx, procedure, start, recover(), &err) }()
		return next(ctx, &checkedConn{StreamingHandlerConn: conn, check: func(m any) error {
			return i.check(ctx, m, conn.RequestHeader().Get(keyHeader))
		}})
	}
}

// checkedConn checks each message that a client sends on a stream.
type checkedConn struct {
	connect.StreamingHandlerConn
	check func(any) error
}

func (c *checkedConn) Receive(m any) error {
	if err := c.StreamingHandlerConn.Receive(m); err != nil {
		return err
	}
	return c.check(m)
}

// done maps the error, contains a panic, and counts.
func (i *interceptor) done(ctx context.Context, procedure string, start time.Time, panicked any, err *error) {
	if panicked != nil {
		*err = fmt.Errorf("panic: %v", panicked)
	}
	code := "ok"
	if *err != nil {
		mapped := i.errors.connect(ctx, procedure, *err)
		*err, code = mapped, mapped.Code().String()
	}
	i.observe(procedure, code, time.Since(start))
}

func (i *interceptor) check(ctx context.Context, m any, key string) error {
	if _, ok := auth.PrincipalFrom(ctx); !ok {
		return auth.ErrMissingToken // a handler without a gate answers nobody
	}
	pb, ok := m.(proto.Message)
	if !ok {
		return fmt.Errorf("%T is not a message", m)
	}
	if err := applyKey(pb, key); err != nil {
		return err
	}
	if err := i.validator.Validate(pb); err != nil {
		return invalid(err)
	}
	return nil
}

// keyHeader is an alias of the field that makes a request safe to repeat.
const keyHeader = "Idempotency-Key"

// applyKey puts the header's key into the request's field for it.
func applyKey(m proto.Message, key string) error {
	if key == "" {
		return nil
	}
	r := m.ProtoReflect()
	fields := r.Descriptor().Fields()
	field := fields.ByName("client_message_id")
	if field == nil {
		field = fields.ByName("request_id")
	}
	if field == nil {
		return nil // a request without such a field changes nothing
	}
	if old := r.Get(field).String(); old != "" && old != key {
		return fmt.Errorf("%w: %s and the %s header differ", errInvalidRequest, field.Name(), keyHeader)
	}
	r.Set(field, protoString(key))
	return nil
}

// invalid tells what is wrong with a request, field by field.
func invalid(err error) error {
	var violations *protovalidate.ValidationError
	if !errors.As(err, &violations) {
		return err
	}
	e := newError(connect.CodeInvalidArgument, "INVALID_ARGUMENT", violations.Error(), 0)
	bad := &errdetails.BadRequest{}
	for _, v := range violations.Violations {
		bad.FieldViolations = append(bad.FieldViolations, &errdetails.BadRequest_FieldViolation{
			Field: protovalidate.FieldPathString(v.Proto.GetField()), Description: v.Proto.GetMessage(),
		})
	}
	if d, err := connect.NewErrorDetail(bad); err == nil {
		e.AddDetail(d)
	}
	return e
}
