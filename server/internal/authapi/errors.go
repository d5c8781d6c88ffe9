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
	"github.com/parley-chat/parley/server/internal/api"
)

// table is what clients see of errors. Where there is no text, it is the error's own.
var table = []struct {
	is error
	api.Refusal
}{
	{identifier.ErrInvalid, api.Refusal{Code: connect.CodeInvalidArgument, Reason: "INVALID_ARGUMENT"}},
	{otp.ErrCode, api.Refusal{Code: connect.CodePermissionDenied, Reason: "INVALID_CODE"}},
	{otp.ErrBusy, api.Refusal{Code: connect.CodeUnavailable, Reason: "UNAVAILABLE", Retry: 5 * time.Second}},
	{otp.ErrKind, api.Refusal{Code: connect.CodeFailedPrecondition, Reason: "IDENTIFIER_NOT_SERVED"}},
	{otp.ErrOff, api.Refusal{Code: connect.CodeFailedPrecondition, Reason: "CODES_NOT_SERVED"}},
	{signin.ErrNoIssuer, api.Refusal{Code: connect.CodeFailedPrecondition, Reason: "NO_ISSUER"}},
	{signin.ErrForeignToken, api.Refusal{Code: connect.CodeUnauthenticated, Reason: "INVALID_ISSUER_TOKEN"}},
	{signin.ErrIssuerAway, api.Refusal{Code: connect.CodeUnavailable, Reason: "UNAVAILABLE", Retry: 5 * time.Second}},
	{session.ErrToken, api.Refusal{Code: connect.CodeUnauthenticated, Reason: "INVALID_REFRESH_TOKEN",
		Text: "the refresh token is not valid: sign in again"}},
	{session.ErrSuspended, api.Refusal{Code: connect.CodePermissionDenied, Reason: "ACCOUNT_SUSPENDED"}},
	{session.ErrNotFound, api.Refusal{Code: connect.CodeNotFound, Reason: "SESSION_NOT_FOUND"}},
	{errFull, api.Refusal{Code: connect.CodeResourceExhausted, Reason: "RATE_LIMITED", Retry: time.Second}},
	{errService, api.Refusal{Code: connect.CodePermissionDenied, Reason: "FORBIDDEN"}},
	{session.ErrTooMany, api.Refusal{Code: connect.CodeResourceExhausted, Reason: "RATE_LIMITED",
		Retry: 10 * time.Minute}},
	{session.ErrTooFast, api.Refusal{Code: connect.CodeResourceExhausted, Reason: "RATE_LIMITED",
		Retry: session.Grace}},
}

// Reasons are all refusals of signing in, for the documents.
func Reasons() []api.Refusal {
	all := make([]api.Refusal, len(table))
	for i, row := range table {
		all[i] = row.Refusal
		if all[i].Text == "" {
			all[i].Text = text(row.is)
		}
	}
	return all
}

// text is what an error says, without the name of its package.
func text(err error) string {
	_, said, _ := strings.Cut(err.Error(), ": ")
	return said
}

// explain says what clients see of the errors of signing in.
func explain(err error) *api.Refusal {
	var often *otp.TooOften
	if errors.As(err, &often) {
		return &api.Refusal{Code: connect.CodeResourceExhausted, Reason: "RATE_LIMITED", Text: text(often),
			Retry: often.Retry.Round(time.Second) + time.Second}
	}
	for _, row := range table {
		if !errors.Is(err, row.is) {
			continue
		}
		refused := row.Refusal
		if refused.Text == "" {
			refused.Text = text(row.is)
			if errors.Is(row.is, identifier.ErrInvalid) { // with what is wrong
				refused.Text = text(err)
			}
		}
		return &refused
	}
	return nil
}
