package rpc_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/parley-chat/parley/server/infra/rpc"
)

var (
	errRefused = errors.New("refused")
	errInvalid = errors.New("invalid")
	errHandler = errors.New("handler")
	errDisk    = errors.New("disk")
)

// call is one call through a chain, with what goes wrong in it.
type call struct {
	enter, admit, check, handler, durable error
	panics                                any
}

// run makes the call and returns the order of what happened, and what the caller sees.
func (c call) run(ctx context.Context) (steps []string, res connect.AnyResponse, err error) {
	step := func(name string) { steps = append(steps, name) }
	chain := &rpc.Chain{
		Enter: func(context.Context) (func(), error) {
			step("enter")
			return func() { step("leave") }, c.enter
		},
		Admit: func(context.Context, string, any) (func(), error) {
			step("admit")
			return func() { step("out") }, c.admit
		},
		Check: func(proto.Message, http.Header) error {
			step("check")
			return c.check
		},
		Timeout: time.Hour,
		Unary: func(ctx context.Context, req connect.AnyRequest, next connect.UnaryFunc) (connect.AnyResponse, error) {
			step("unary")
			return next(ctx, req)
		},
		Durable: func(ctx context.Context) error {
			step("durable")
			return c.durable
		},
		Public: func(_ context.Context, _ string, err error) *connect.Error {
			return connect.NewError(connect.CodeAborted, err)
		},
		Panicked: func(_ context.Context, _ string, value any, stack []byte) *connect.Error {
			if !strings.Contains(string(stack), "rpc_test") {
				step("no stack")
			}
			return connect.NewError(connect.CodeInternal, errors.New("panic"))
		},
		Observe: func(_ context.Context, _ string, err *connect.Error, _ time.Duration) {
			step("observe " + rpc.Code(err))
		},
	}
	handler := func(ctx context.Context, _ connect.AnyRequest) (connect.AnyResponse, error) {
		if _, bounded := ctx.Deadline(); !bounded {
			step("no deadline")
		}
		step("handler")
		if c.panics != nil {
			panic(c.panics)
		}
		return connect.NewResponse(&emptypb.Empty{}), c.handler
	}
	res, err = chain.WrapUnary(handler)(ctx, connect.NewRequest(&emptypb.Empty{}))
	return steps, res, err
}

// Every call takes the same way, and is counted once, however it ends.
func TestOrder(t *testing.T) {
	for _, c := range []struct {
		name  string
		call  call
		steps string
		is    error
	}{
		{"answered", call{}, "enter admit check unary handler durable out leave, observe ok", nil},
		{"not let in", call{enter: errRefused}, "enter, observe aborted", errRefused},
		{"not admitted", call{admit: errRefused}, "enter admit leave, observe aborted", errRefused},
		{"not valid", call{check: errInvalid}, "enter admit check out leave, observe aborted", errInvalid},
		{"failed", call{handler: errHandler}, "enter admit check unary handler durable out leave, observe aborted", errHandler},
		{"not durable", call{durable: errDisk}, "enter admit check unary handler durable out leave, observe aborted", errDisk},
		{"failed, not durable", call{handler: errHandler, durable: errDisk},
			"enter admit check unary handler durable out leave, observe aborted", errDisk},
		{"panicked", call{panics: "x"}, "enter admit check unary handler out leave, observe internal", nil},
	} {
		steps, res, err := c.call.run(t.Context())
		got := strings.Join(steps, " ")
		if want := strings.ReplaceAll(c.steps, ",", ""); got != want {
			t.Errorf("%s: %s; want %s", c.name, got, want)
		}
		if c.is != nil && !errors.Is(err, c.is) || (res == nil) != (err != nil) ||
			(err != nil) == slices.Contains(steps, "observe ok") {
			t.Errorf("%s: %v, %v", c.name, res, err)
		}
	}
}

// A handler that wants its connection cut gets its wish.
func TestAbort(t *testing.T) {
	defer func() {
		if p := recover(); p != http.ErrAbortHandler { //nolint:errorlint // net/http compares it like this
			t.Errorf("recovered %v", p)
		}
	}()
	_, _, err := call{panics: http.ErrAbortHandler}.run(t.Context())
	t.Errorf("answered with %v", err)
}

func TestCode(t *testing.T) {
	for want, err := range map[string]*connect.Error{
		"ok":        nil,
		"not_found": connect.NewError(connect.CodeNotFound, errHandler),
	} {
		if got := rpc.Code(err); got != want {
			t.Errorf("%v counts as %s, not %s", err, got, want)
		}
	}
	if got := rpc.Code(connect.NewNotModifiedError(nil)); got != "ok" {
		t.Errorf("what was not modified counts as %s", got)
	}
}

// sendingConn is a stream whose responses fail with an error.
type sendingConn struct {
	connect.StreamingHandlerConn
	err error
}

func (sendingConn) Spec() connect.Spec { return connect.Spec{Procedure: "/s/Stream"} }
func (c sendingConn) Send(any) error   { return c.err }

// A stream is counted once: when its first response was sent, or when it ends without one, with
// what the caller sees.
func TestFirstResponse(t *testing.T) {
	for name, c := range map[string]struct {
		enter, send, end error
		sends            int
		want             string
	}{
		"sent":              {sends: 3, want: "ok"},
		"sent, then failed": {sends: 1, end: errHandler, want: "ok"},
		"not admitted":      {enter: errRefused, want: "aborted"},
		"failed before":     {end: errHandler, want: "aborted"},
		"could not be sent": {sends: 1, send: errDisk, end: errDisk, want: "aborted"},
		"ended without one": {want: ""},
	} {
		var counted []string
		chain := &rpc.Chain{
			Enter: func(context.Context) (func(), error) { return func() {}, c.enter },
			Check: func(proto.Message, http.Header) error { return nil },
			Public: func(_ context.Context, _ string, err error) *connect.Error {
				return connect.NewError(connect.CodeAborted, err)
			},
			Observe: func(context.Context, string, *connect.Error, time.Duration) {},
			First: func(procedure string, err *connect.Error, took time.Duration) {
				if procedure != "/s/Stream" || took < 0 {
					t.Errorf("%s: %s, %s", name, procedure, took)
				}
				counted = append(counted, rpc.Code(err))
			},
		}
		_ = chain.WrapStreamingHandler(func(_ context.Context, conn connect.StreamingHandlerConn) error {
			for range c.sends {
				_ = conn.Send(nil)
			}
			return c.end
		})(t.Context(), sendingConn{err: c.send})
		if got := strings.Join(counted, " "); got != c.want {
			t.Errorf("%s is counted as %q, want %q", name, got, c.want)
		}
	}
}
