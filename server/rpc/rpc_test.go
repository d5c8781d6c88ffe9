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

	"github.com/parley-chat/parley/server/rpc"
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
