package userapi

import (
	"time"

	"connectrpc.com/connect"

	"github.com/parley-chat/parley/server/identity/people"
	"github.com/parley-chat/parley/server/infra/rpc"
)

// Refusals is the service's table of errors.
var Refusals = rpc.Refusals{
	{Is: people.ErrUnknown, Code: connect.CodeNotFound, Reason: "USER_NOT_FOUND", Text: "there is no such user"},
	{Is: people.ErrEtag, Code: connect.CodeAborted, Reason: "VERSION_MISMATCH",
		Text: "the profile has another etag: read it, and decide again"},
	{Is: people.ErrHandleTaken, Code: connect.CodeAlreadyExists, Reason: "HANDLE_TAKEN",
		Text: "another user has this handle, or had it until a short time ago"},
	{Is: people.ErrHandleReserved, Code: connect.CodeInvalidArgument, Reason: "HANDLE_RESERVED",
		Text: "this handle is reserved"},
	{Is: people.ErrHandleTooSoon, Code: connect.CodeResourceExhausted, Reason: "RATE_LIMITED",
		Text: "a handle changes at most once a day", Retry: time.Hour},
	{Is: people.ErrSelf, Code: connect.CodeInvalidArgument, Reason: "INVALID_ARGUMENT",
		Text: "user_id: must be another user"},
	{Is: people.ErrTooManyBlocked, Code: connect.CodeFailedPrecondition, Reason: "TOO_MANY_BLOCKED",
		Text: "the block list has as many entries as it can have"},
	{Is: people.ErrNoInvitation, Code: connect.CodeNotFound, Reason: "INVITATION_NOT_FOUND",
		Text: "there is no such invitation, or it has lapsed"},
	{Is: people.ErrNoIdentifiers, Code: connect.CodeFailedPrecondition, Reason: "NO_IDENTIFIERS",
		Text: "this server knows no identifiers of people"},
	{Is: people.ErrNotConfirmed, Code: connect.CodeInvalidArgument, Reason: "INVALID_ARGUMENT",
		Text: "confirm_user_id: must be the id of the caller"},
	{Is: people.ErrSignInTooOld, Code: connect.CodeFailedPrecondition, Reason: "RECENT_SIGN_IN_REQUIRED",
		Text: "an account is deleted within 10 minutes of signing in: sign in again"},
	{Is: people.ErrBusy, Code: connect.CodeResourceExhausted, Reason: "RATE_LIMITED",
		Text: "an export of this user is under way: wait for its end", Retry: time.Second},
	{Is: people.ErrCursor, Code: connect.CodeInvalidArgument, Reason: "INVALID_PAGE_TOKEN",
		Text: "not a token of this list: begin with the first page"},
}
