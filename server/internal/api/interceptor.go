package api

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"buf.build/go/protovalidate"
	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/infra/rpc"
	"github.com/parley-chat/parley/server/internal/jsonbody"
	"github.com/parley-chat/parley/server/store"
)

// interceptor is what the chain around every RPC does for users.
type interceptor struct {
	reporter
	observe  func(procedure, code string, took time.Duration)
	first    func(procedure, code string, took time.Duration) // may be nil
	validate protovalidate.Validator
	enter    func(context.Context) error
	limit    func(ctx context.Context, procedure string, m any) (leave func(), err error)
	history  *history
}

func newInterceptor(c Config) (*interceptor, error) {
	v, err := protovalidate.New()
	if err != nil {
		return nil, fmt.Errorf("api: rules of requests: %w", err)
	}
	i := &interceptor{reporter: reporter{log: c.Logger}, observe: c.Observe, first: c.First, validate: v, enter: c.Enter,
		limit: c.Admit}
	if i.enter == nil {
		i.enter = principal
	}
	if c.Hub != nil {
		i.history = &history{of: c.Hub.History(), log: c.Logger}
	}
	for _, s := range c.More {
		if s.Explain != nil {
			i.explain = append(i.explain, s.Explain)
		}
	}
	return i, nil
}

// chain surrounds the handlers.
func (i *interceptor) chain(s store.Store) *rpc.Chain {
	return &rpc.Chain{
		Enter: i.admit, Admit: i.limit, Check: i.check, Timeout: unaryTimeout, Unary: i.unary, Stream: i.stream,
		Durable: s.Durable,
		Public: func(ctx context.Context, procedure string, err error) *connect.Error {
			return addReason(i.public(ctx, procedure, err))
		},
		Panicked: func(ctx context.Context, procedure string, value any, stack []byte) *connect.Error {
			return i.internal(ctx, procedure, slog.Any("panic", value), slog.String("stack", string(stack)))
		},
		Observe: i.record,
		First: func(procedure string, err *connect.Error, took time.Duration) {
			if i.first != nil {
				i.first(procedure, rpc.Code(err), took)
			}
		},
	}
}

// admit requires a caller.
func (i *interceptor) admit(ctx context.Context) (leave func(), err error) {
	markReached(ctx)
	return func() {}, i.enter(ctx)
}

// principal requires the principal of a user.
func principal(ctx context.Context) error {
	if _, ok := auth.PrincipalFrom(ctx); !ok {
		return auth.ErrMissingToken
	}
	return nil
}

// unary runs the handler of a unary RPC.
func (i *interceptor) unary(
	ctx context.Context, req connect.AnyRequest, next connect.UnaryFunc,
) (connect.AnyResponse, error) {
	if err := i.history.check(ctx, req.Header()); err != nil {
		return nil, err
	}
	res, err := next(ctx, req)
	if err == nil {
		i.history.say(res.Header())
	}
	if err == nil && req.HTTPMethod() == http.MethodGet {
		err = setETag(req.Header(), res)
	}
	return res, withKey(err, req.Any())
}

// stream runs the handler of a stream, and explains messages that cannot be read.
func (i *interceptor) stream(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		if err := i.history.check(ctx, conn.RequestHeader()); err != nil {
			return err
		}
		return next(ctx, readableConn{conn})
	}
}

type readableConn struct{ connect.StreamingHandlerConn }

// Receive implements connect.StreamingHandlerConn.
func (c readableConn) Receive(m any) error {
	err := c.StreamingHandlerConn.Receive(m)
	var broken *connect.Error
	if errors.As(err, &broken) && !errors.Is(err, io.EOF) { // no further message; connect wraps it
		return unreadable(broken.Code(), broken.Message())
	}
	return err
}

// record counts an RPC by its outcome; err is nil for a success.
func (i *interceptor) record(ctx context.Context, procedure string, err *connect.Error, took time.Duration) {
	code := rpc.Code(err)
	i.observe(procedure, code, took)
	if !i.log.Enabled(ctx, slog.LevelDebug) {
		return // before the attributes are made
	}
	i.log.DebugContext(ctx, "request", slog.String("procedure", procedure), slog.String("code", code),
		slog.Duration("took", took))
}

// check applies the idempotency key and validates a request.
func (i *interceptor) check(msg proto.Message, header http.Header) error {
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
		if v.Proto.GetRuleId() == "string.pattern" {
			text = cmp.Or(patterns[v.RuleValue.String()], text)
		}
		bad.add(field, text, v.Proto.GetRuleId())
	}
	return bad
}

// patterns are forms of the contracts in words.
var patterns = map[string]string{
	"^[A-Za-z0-9][A-Za-z0-9._-]{0,254}$": "a name is 1 to 255 letters, digits, dots, hyphens or underscores " +
		"and begins with a letter or digit",
	`^(\$queue|[A-Za-z0-9][A-Za-z0-9._-]{0,254}\*?)$`: "a pattern is the name of a group, $queue, or the beginning of a name " +
		"with an asterisk behind it",
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
