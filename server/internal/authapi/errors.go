package authapi

import (
	"errors"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/parley-chat/parley/server/identity/identifier"
	"github.com/parley-chat/parley/server/identity/otp"
	"github.com/parley-chat/parley/server/identity/session"
	"github.com/parley-chat/parley/server/identity/signin"
	"github.com/parley-chat/parley/server/infra/rpc"
)

// Refusals is the service's table of errors. Another one is that codes are asked for too often.
var Refusals = rpc.Refusals{
	{Is: identifier.ErrInvalid, Code: connect.CodeInvalidArgument, Reason: "INVALID_ARGUMENT"},
	{Is: otp.ErrCode, Code: connect.CodePermissionDenied, Reason: "INVALID_CODE",
		Text: "the code is wrong, was used, or is too old: ask for another"},
	{Is: otp.ErrBusy, Code: connect.CodeUnavailable, Reason: "UNAVAILABLE",
		Text: "too many codes wait to be sent", Retry: 5 * time.Second},
	{Is: otp.ErrKind, Code: connect.CodeFailedPrecondition, Reason: "IDENTIFIER_NOT_SERVED",
		Text: "no way to send a code there"},
	{Is: otp.ErrOff, Code: connect.CodeFailedPrecondition, Reason: "CODES_NOT_SERVED",
		Text: "this server sends no codes"},
	{Is: signin.ErrNoIssuer, Code: connect.CodeFailedPrecondition, Reason: "NO_ISSUER",
		Text: "this server trusts no issuer of tokens"},
	{Is: signin.ErrForeignToken, Code: connect.CodeUnauthenticated, Reason: "INVALID_ISSUER_TOKEN",
		Text: "the token of the issuer is not valid"},
	{Is: signin.ErrIssuerAway, Code: connect.CodeUnavailable, Reason: "UNAVAILABLE",
		Text: "the issuer of the token cannot be reached", Retry: 5 * time.Second},
	{Is: session.ErrToken, Code: connect.CodeUnauthenticated, Reason: "INVALID_REFRESH_TOKEN",
		Text: "the refresh token is not valid: sign in again"},
	{Is: session.ErrSuspended, Code: connect.CodePermissionDenied, Reason: "ACCOUNT_SUSPENDED",
		Text: "the account is suspended or deleted"},
	{Is: session.ErrNotFound, Code: connect.CodeNotFound, Reason: "SESSION_NOT_FOUND",
		Text: "no such session"},
	{Is: errFull, Code: connect.CodeResourceExhausted, Reason: "RATE_LIMITED",
		Text: "too many are signing in: try again", Retry: time.Second},
	{Is: errService, Code: connect.CodePermissionDenied, Reason: "FORBIDDEN",
		Text: "a service account has no session to end: operators revoke its keys"},
	{Is: errTicket, Code: connect.CodePermissionDenied, Reason: "FORBIDDEN",
		Text: "a service account gets no tickets: its back end sends its key"},
	{Is: session.ErrTooMany, Code: connect.CodeResourceExhausted, Reason: "RATE_LIMITED",
		Text: "the account has begun too many sessions: try again later", Retry: 10 * time.Minute},
	{Is: session.ErrTooFast, Code: connect.CodeResourceExhausted, Reason: "RATE_LIMITED",
		Text: "refreshed too often", Retry: session.Grace},
}

// explain says what clients see of the errors of signing in.
func explain(err error) *rpc.Refusal {
	var often *otp.TooOften
	if errors.As(err, &often) {
		_, text, _ := strings.Cut(often.Error(), ": ")
		return &rpc.Refusal{Code: connect.CodeResourceExhausted, Reason: "RATE_LIMITED", Text: text,
			Retry: often.Retry.Round(time.Second) + time.Second}
	}
	return Refusals.Explain(err)
}
