package api

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"buf.build/go/protovalidate"
	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/internal/jsonbody"
	"github.com/parley-chat/parley/server/store"
)

// interceptor wraps every RPC. In this order it measures time and outcome, recovers panics
// and maps errors; requires a caller; applies the Idempotency-Key header; validates the
// request; runs the handler; and waits until what the handler read is durable.
type interceptor struct {
	reporter
	store    store.Store
	observe  func(procedure, code string, took time.Duration)
	validate protovalidate.Validator
}

var _ connect.Interceptor = (*interceptor)(nil)

func newInterceptor(c Config) (*interceptor, error) {
	v, err := protovalidate.New()
	if err != nil {
		return nil, fmt.Errorf("api: rules of requests: %w", err)
	}
	return &interceptor{reporter: reporter{c.Logger}, store: c.Store, observe: c.Observe, validate: v}, nil
}

// WrapUnary implements connect.Interceptor.
func (i *interceptor) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (res connect.AnyResponse, err error) {
		markReached(ctx)
		started := time.Now()
		defer func() {
			if err = i.finish(ctx, req.Spec().Procedure, started, recover(), err); err != nil {
				res = nil
			}
		}()
		if err := i.admit(ctx); err != nil {
			return nil, err
		}
		if err := i.check(req.Any(), req.Header()); err != nil {
			return nil, err
		}
		defer func() { err = withKey(err, req.Any()) }()
		ctx, cancel := context.WithTimeout(ctx, unaryTimeout)
		defer cancel()
		res, err = next(ctx, req)
		// The one place where a unary answer waits. An error waits, too: it may depend
		// on what was read.
		if durable := i.store.Durable(ctx); durable != nil {
			return nil, fmt.Errorf("wait for durability: %w", durable)
		}
		if err == nil && req.HTTPMethod() == http.MethodGet {
			err = setETag(req.Header(), res)
		}
		return res, err
	}
}

// WrapStreamingClient implements connect.Interceptor; there are no clients here.
func (i *interceptor) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler implements connect.Interceptor.
func (i *interceptor) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) (err error) {
		markReached(ctx)
		started := time.Now()
		defer func() { err = i.finish(ctx, conn.Spec().Procedure, started, recover(), err) }()
		if err := i.admit(ctx); err != nil {
			return err
		}
		return next(ctx, checkedConn{conn, i})
	}
}

// checkedConn checks each message of a stream.
type checkedConn struct {
	connect.StreamingHandlerConn
	interceptor *interceptor
}

// Receive implements connect.StreamingHandlerConn.
func (c checkedConn) Receive(m any) error {
	err := c.StreamingHandlerConn.Receive(m)
	var broken *connect.Error
	switch {
	case errors.Is(err, io.EOF): // no further message; connect wraps it
		return err
	case errors.As(err, &broken):
		return unreadable(broken.Code(), broken.Message())
	case err != nil:
		return err
	}
	return c.interceptor.check(m, c.RequestHeader())
}

// finish counts an RPC and returns the error that the client sees.
func (i *interceptor) finish(ctx context.Context, procedure string, started time.Time, panicked any, err error) error {
	if panicked == http.ErrAbortHandler { //nolint:errorlint // net/http compares it like this too
		panic(panicked)
	}
	var out *connect.Error
	switch {
	case panicked != nil:
		out = i.internal(ctx, procedure, slog.Any("panic", panicked), slog.String("stack", string(debug.Stack())))
	case err != nil:
		out = addReason(i.public(ctx, procedure, err))
	}
	i.record(ctx, procedure, out, time.Since(started))
	if out == nil {
		return nil // not a nil *connect.Error in an error
	}
	return out
}

// record counts an RPC by its outcome; err is nil for a success.
func (i *interceptor) record(ctx context.Context, procedure string, err *connect.Error, took time.Duration) {
	code := "ok"
	if err != nil && !connect.IsNotModifiedError(err) {
		code = err.Code().String()
	}
	i.observe(procedure, code, took)
	i.log.DebugContext(ctx, "request", slog.String("procedure", procedure), slog.String("code", code), slog.Duration("took", took))
}

func (i *interceptor) admit(ctx context.Context) error {
	if _, ok := auth.PrincipalFrom(ctx); !ok {
		return auth.ErrMissingToken
	}
	return nil
}

// check applies the idempotency key and validates a request.
func (i *interceptor) check(m any, header http.Header) error {
	msg, ok := m.(proto.Message)
	if !ok {
		return fmt.Errorf("api: %T is not a message", m)
	}
	keyed, err := applyIdempotencyKey(msg.ProtoReflect(), header)
	if err != nil {
		return err
	}
	err = i.validate.Validate(msg)
	var invalid *protovalidate.ValidationError
	if !errors.As(err, &invalid) {
		return err
	}
	bad := &badRequest{}
	for _, v := range invalid.Violations {
		field := protovalidate.FieldPathString(v.Proto.GetField())
		if field != "" && field == keyed {
			field = keyHeader
		}
		text := v.Proto.GetMessage()
		if fd := v.FieldDescriptor; fd != nil && fd.Enum() != nil {
			text = "must be one of " + jsonbody.Values(fd.Enum())
		}
		bad.add(field, text, v.Proto.GetRuleId())
	}
	return bad
}

// keyHeader is the alias of the fields below.
const keyHeader = "Idempotency-Key"

// applyIdempotencyKey sets the field that the Idempotency-Key header is an alias of, and
// returns the field's name. Requests without such a field ignore the header; the field's
// own rules validate it. A client_message_id is a UUID, in which case does not matter: it
// is normalised to lower case, so that both spellings are the same message.
func applyIdempotencyKey(m protoreflect.Message, header http.Header) (field string, err error) {
	write := func(id string) string { return id }
	fd := m.Descriptor().Fields().ByName("client_message_id")
	if fd != nil {
		write = strings.ToLower
		if id := m.Get(fd).String(); id != write(id) {
			m.Set(fd, protoreflect.ValueOfString(write(id)))
		}
	} else {
		fd = m.Descriptor().Fields().ByName("request_id")
	}
	values := header.Values(keyHeader)
	if fd == nil || len(values) == 0 {
		return "", nil
	}
	key := strings.TrimSpace(values[0])
	if len(key) >= 2 && key[0] == '"' && key[len(key)-1] == '"' {
		key = key[1 : len(key)-1] // a string of structured fields
	}
	key = write(key)
	name := string(fd.Name())
	switch have := m.Get(fd).String(); {
	case len(values) > 1 || key == "":
		return "", invalidField(keyHeader, "must be given once and not be empty")
	case have != "" && have != key:
		return "", invalidField(keyHeader, "differs from "+name)
	case have == key:
		return "", nil
	}
	m.Set(fd, protoreflect.ValueOfString(key))
	return name, nil
}

// keyOf returns the idempotency key of a message and the name of its field; empty for
// messages without one.
func keyOf(m any) (field, key string) {
	msg, ok := m.(proto.Message)
	if !ok {
		return "", ""
	}
	fields := msg.ProtoReflect().Descriptor().Fields()
	for _, name := range []protoreflect.Name{"client_message_id", "request_id"} {
		if fd := fields.ByName(name); fd != nil {
			return string(name), msg.ProtoReflect().Get(fd).String()
		}
	}
	return "", ""
}

// unknownOutcome is an error after which a request may have taken effect, with the key
// with which it can be retried.
type unknownOutcome struct {
	error
	field, key string
}

// Unwrap is for errors.Is.
func (e *unknownOutcome) Unwrap() error { return e.error }

// withKey adds the key of a request to an error that leaves its outcome unknown: the key
// that the service used, which it may have generated, or else the request's.
func withKey(err error, m any) error {
	if !errors.Is(err, store.ErrAmbiguous) && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	field, key := keyOf(m)
	var open *chat.OpenError
	if errors.As(err, &open) {
		field, key = open.Field, open.Key
	}
	return &unknownOutcome{err, field, key}
}

// setETag sets the entity tag of the answer to a GET, and returns "not modified" if the
// client has that tag. The tag is a hash of the message's content; it is weak, because
// the same message has many encodings.
func setETag(header http.Header, res connect.AnyResponse) error {
	msg, ok := res.Any().(proto.Message)
	if !ok {
		return fmt.Errorf("api: %T is not a message", res.Any())
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(msg)
	if err != nil {
		return fmt.Errorf("make tag: %w", err)
	}
	sum := sha256.Sum256(b)
	tag := `W/"` + base64.RawURLEncoding.EncodeToString(sum[:16]) + `"`
	res.Header().Set("ETag", tag)
	res.Header().Set("Cache-Control", "private, no-cache")
	for _, value := range header.Values("If-None-Match") {
		for have := range strings.SplitSeq(value, ",") {
			if strings.TrimSpace(have) == tag {
				return connect.NewNotModifiedError(http.Header{"Etag": {tag}, "Cache-Control": {"private, no-cache"}})
			}
		}
	}
	return nil
}
