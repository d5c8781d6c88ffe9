package api

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/view"
)

// domain names the reasons' owner in google.rpc.ErrorInfo.
const domain = "parley"

// row is one line of the table of errors.
type row struct {
	err    error
	code   connect.Code
	reason string
	text   string
	detail bool // the error's own text is for the caller too
	retry  time.Duration
}

// errorTable is the only place where errors become codes. What is not in it is
// internal, and its text stays here.
var errorTable = []row{
	{err: chat.ErrNotAMember, code: connect.CodePermissionDenied, reason: "NOT_A_MEMBER", text: "not a member of this chat"},
	{err: chat.ErrForbidden, code: connect.CodePermissionDenied, reason: "FORBIDDEN", text: "your role does not allow this"},
	{err: chat.ErrChatFull, code: connect.CodeFailedPrecondition, reason: "CHAT_FULL", text: "the chat has no room for more members"},
	{err: chat.ErrInvalidOperation, code: connect.CodeFailedPrecondition, reason: "INVALID_OPERATION", text: "not possible in this chat"},
	{err: chat.ErrAlreadyMember, code: connect.CodeAlreadyExists, reason: "ALREADY_MEMBER", text: "already a member"},
	{err: chat.ErrMemberNotFound, code: connect.CodeNotFound, reason: "MEMBER_NOT_FOUND", text: "no such member"},
	{err: chat.ErrUserNotFound, code: connect.CodeNotFound, reason: "USER_NOT_FOUND", text: "no such user"},
	{err: chat.ErrKeyReused, code: connect.CodeInvalidArgument, reason: "IDEMPOTENCY_KEY_REUSED", text: "this request id was used before with other content"},
	{err: chat.ErrInvalidArgument, code: connect.CodeInvalidArgument, reason: "INVALID_ARGUMENT", detail: true},
	{err: errInvalidRequest, code: connect.CodeInvalidArgument, reason: "INVALID_ARGUMENT", detail: true},
	{err: view.ErrInvalidToken, code: connect.CodeInvalidArgument, reason: "INVALID_TOKEN", text: "not a synchronisation token of yours"},
	{err: view.ErrInvalidPageToken, code: connect.CodeInvalidArgument, reason: "INVALID_PAGE_TOKEN", text: "not a page token of this request"},

	{err: delivery.ErrStreamGone, code: connect.CodeNotFound, reason: "STREAM_GONE", text: "no such stream"},
	{err: delivery.ErrPosition, code: connect.CodeOutOfRange, reason: "POSITION_NOT_SENT", text: "this position was not sent yet"},
	{err: delivery.ErrNotYours, code: connect.CodePermissionDenied, reason: "FORBIDDEN", text: "the stream is of another user or session"},
	{err: delivery.ErrDraining, code: connect.CodeUnavailable, reason: "DRAIN", text: "the server is going down", retry: time.Second},
	{err: delivery.ErrSlow, code: connect.CodeUnavailable, reason: "SLOW", text: "the stream was too slow", retry: time.Second},
	{err: delivery.ErrResync, code: connect.CodeUnavailable, reason: "RESYNC", text: "open the stream anew", retry: time.Second},
	{err: delivery.ErrTokenExpired, code: connect.CodeUnauthenticated, reason: "TOKEN_EXPIRED", text: "the access token has expired"},
	{err: delivery.ErrSessionRevoked, code: connect.CodeUnauthenticated, reason: "SESSION_REVOKED", text: "the session was ended"},
	{err: delivery.ErrReplaced, code: connect.CodeResourceExhausted, reason: "REPLACED", text: "a newer stream took this one's place"},

	{err: auth.ErrMissingToken, code: connect.CodeUnauthenticated, reason: "MISSING_TOKEN", text: "a bearer token is required"},
	{err: auth.ErrInvalidToken, code: connect.CodeUnauthenticated, reason: "INVALID_TOKEN", text: "the access token is not valid"},
	{err: auth.ErrTokenExpired, code: connect.CodeUnauthenticated, reason: "TOKEN_EXPIRED", text: "the access token has expired"},

	{err: store.ErrFull, code: connect.CodeResourceExhausted, reason: "STORAGE_FULL", text: "the server has no room to store more", retry: time.Minute},
	{err: store.ErrThrottled, code: connect.CodeUnavailable, reason: "OVERLOADED", text: "overloaded, try again", retry: time.Second},
	{err: store.ErrConflict, code: connect.CodeUnavailable, reason: "OVERLOADED", text: "overloaded, try again", retry: time.Second},
	{err: store.ErrUnavailable, code: connect.CodeUnavailable, reason: "UNAVAILABLE", text: "try again", retry: time.Second},
	{err: store.ErrClosed, code: connect.CodeUnavailable, reason: "DRAIN", text: "the server is going down", retry: time.Second},
	{err: store.ErrAmbiguous, code: connect.CodeUnavailable, reason: "OUTCOME_UNKNOWN", text: "it may have been done: try again with the same request id", retry: time.Second},
	{err: context.DeadlineExceeded, code: connect.CodeDeadlineExceeded, reason: "DEADLINE_EXCEEDED", text: "took too long"},
	{err: context.Canceled, code: connect.CodeCanceled, reason: "CANCELED", text: "canceled"},
}

// errInvalidRequest wraps what is wrong with a request by itself.
var errInvalidRequest = errors.New("invalid request")

type errorMapper struct{ log *slog.Logger }

// connect turns an error into what the caller may know of it.
func (m *errorMapper) connect(ctx context.Context, procedure string, err error) *connect.Error {
	var ready *connect.Error
	if errors.As(err, &ready) { // connect's own: bad encoding, too large, unimplemented
		return ready
	}
	for i := range errorTable {
		if r := &errorTable[i]; errors.Is(err, r.err) {
			text := r.text
			if r.detail {
				text = err.Error()
			}
			return newError(r.code, r.reason, text, r.retry)
		}
	}
	id := "err_" + rand.Text()
	m.log.ErrorContext(ctx, "internal error", "procedure", procedure, "id", id, "error", err)
	return newError(connect.CodeInternal, "INTERNAL", "internal error "+id, 0)
}

func newError(code connect.Code, reason, text string, retry time.Duration) *connect.Error {
	e := connect.NewError(code, errors.New(text))
	if d, err := connect.NewErrorDetail(&errdetails.ErrorInfo{Reason: reason, Domain: domain}); err == nil {
		e.AddDetail(d)
	}
	if retry > 0 {
		if d, err := connect.NewErrorDetail(&errdetails.RetryInfo{RetryDelay: durationpb.New(retry)}); err == nil {
			e.AddDetail(d)
		}
	}
	return e
}
