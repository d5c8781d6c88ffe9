package api

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/infra/rpc"
	"github.com/parley-chat/parley/server/limit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/view"
)

// Reasons that are not in the table.
const (
	reasonInvalid  = "INVALID_ARGUMENT"
	reasonInternal = "INTERNAL"
	reasonCanceled = "CANCELED"
	reasonDeadline = "DEADLINE_EXCEEDED"
)

// refusals is the table of errors of chats and streams, and of all that services share. Errors that are
// in no table are internal and their text is hidden.
var refusals = rpc.Refusals{
	{Is: auth.ErrMissingToken, Code: connect.CodeUnauthenticated, Reason: "UNAUTHENTICATED",
		Text: "an access token is required: Authorization: Bearer <token>"},
	{Is: auth.ErrNotBearer, Code: connect.CodeUnauthenticated, Reason: "UNAUTHENTICATED",
		Text: "the header must be one: Authorization: Bearer <token>"},
	{Is: auth.ErrOtherKey, Code: connect.CodeUnauthenticated, Reason: "UNAUTHENTICATED",
		Text: "the access token is another server's, or of an older data directory"},
	{Is: auth.ErrRevoked, Code: connect.CodeUnauthenticated, Reason: "UNAUTHENTICATED",
		Text: "the access token is of a session that was ended"},
	{Is: auth.ErrInvalidToken, Code: connect.CodeUnauthenticated, Reason: "UNAUTHENTICATED",
		Text: "the access token is not valid"},
	{Is: auth.ErrOtherUser, Code: connect.CodePermissionDenied, Reason: "FORBIDDEN",
		Text: "Parley-As-User must name one user whom the service account may speak for, and who is active"},
	{Is: auth.ErrScope, Code: connect.CodePermissionDenied, Reason: "FORBIDDEN",
		Text: "the caller needs a service account's key with the scope for this"},
	{Is: auth.ErrUninformed, Code: connect.CodeUnavailable, Reason: "UNAVAILABLE",
		Text: "it is not known just now whether the session was ended", Retry: time.Second},
	{Is: auth.ErrTokenExpired, Code: connect.CodeUnauthenticated, Reason: "TOKEN_EXPIRED",
		Text: "the access token has expired"},

	{Is: chat.ErrNotAMember, Code: connect.CodePermissionDenied, Reason: "NOT_A_MEMBER",
		Text: "not a member of this chat"},
	{Is: chat.ErrForbidden, Code: connect.CodePermissionDenied, Reason: "FORBIDDEN",
		Text: "the caller's role does not allow this"},
	{Is: chat.ErrChatFull, Code: connect.CodeFailedPrecondition, Reason: "CHAT_FULL",
		Text: "the chat has as many members as it can have"},
	{Is: chat.ErrTooManyChats, Code: connect.CodeFailedPrecondition, Reason: "TOO_MANY_CHATS"},
	{Is: chat.ErrInvalidOperation, Code: connect.CodeFailedPrecondition, Reason: "INVALID_OPERATION",
		Text: "not possible in this chat"},
	{Is: chat.ErrAlreadyMember, Code: connect.CodeAlreadyExists, Reason: "ALREADY_MEMBER",
		Text: "the user is a member already"},
	{Is: chat.ErrMemberNotFound, Code: connect.CodeNotFound, Reason: "MEMBER_NOT_FOUND", Text: "the user is not a member"},
	{Is: chat.ErrUserNotFound, Code: connect.CodeNotFound, Reason: "USER_NOT_FOUND"},
	{Is: chat.ErrKeyReused, Code: connect.CodeInvalidArgument, Reason: "IDEMPOTENCY_KEY_REUSED",
		Text: "this request id was used before with other content"},
	{Is: chat.ErrVersionMismatch, Code: connect.CodeAborted, Reason: "VERSION_MISMATCH",
		Text: "the chat has another version than expected"},
	{Is: chat.ErrBusy, Code: connect.CodeResourceExhausted, Reason: "RATE_LIMITED",
		Text: "this user has too many requests under way: wait for their answers", Retry: time.Second},
	{Is: limit.ErrStreams, Code: connect.CodeResourceExhausted, Reason: "RATE_LIMITED",
		Text: "this client address has as many streams as it may have", Retry: 10 * time.Second},
	{Is: limit.ErrOverloaded, Code: connect.CodeUnavailable, Reason: "UNAVAILABLE",
		Text: "the server has more to do than it can", Retry: time.Second},
	{Is: limit.ErrUnavailable, Code: connect.CodeUnavailable, Reason: "UNAVAILABLE",
		Text: "this cannot be done just now", Retry: time.Second},
	{Is: chat.ErrInvalidArgument, Code: connect.CodeInvalidArgument, Reason: reasonInvalid},
	{Is: limit.ErrNoRule, Code: connect.CodeInternal, Reason: reasonInternal}, // a defect of this program
	{Is: chat.ErrPanic, Code: connect.CodeInternal, Reason: reasonInternal},

	{Is: view.ErrInvalidToken, Code: connect.CodeInvalidArgument, Reason: "INVALID_TOKEN",
		Text: "not a synchronisation token of this user: sync without a token"},
	{Is: view.ErrInvalidPageToken, Code: connect.CodeInvalidArgument, Reason: "INVALID_PAGE_TOKEN",
		Text: "not a page token of this query, or expired: begin with the first page"},

	{Is: ErrHistory, Code: connect.CodeAborted, Reason: "HISTORY_CHANGED",
		Text: "the client has seen what the server does not have, since it was restored: start over without Parley-History"},

	{Is: delivery.ErrStreamGone, Code: connect.CodeNotFound, Reason: "STREAM_GONE", Text: "no such stream"},
	{Is: delivery.ErrPosition, Code: connect.CodeOutOfRange, Reason: "POSITION_NOT_SENT",
		Text: "this position was not sent yet"},
	{Is: delivery.ErrNotYours, Code: connect.CodePermissionDenied, Reason: "FORBIDDEN",
		Text: "the stream belongs to another session"},
	{Is: delivery.ErrDraining, Code: connect.CodeUnavailable, Reason: "DRAINING", Text: "the server is going down",
		Retry: time.Second},
	{Is: delivery.ErrSlow, Code: connect.CodeUnavailable, Reason: "SLOW", Text: "the stream was not read fast enough",
		Retry: time.Second},
	{Is: delivery.ErrResync, Code: connect.CodeUnavailable, Reason: "RESYNC", Text: "the stream must be reopened",
		Retry: time.Second},
	{Is: delivery.ErrTokenExpired, Code: connect.CodeUnauthenticated, Reason: "TOKEN_EXPIRED",
		Text: "the access token has expired"},
	{Is: delivery.ErrSessionRevoked, Code: connect.CodeUnauthenticated, Reason: "SESSION_REVOKED",
		Text: "the session was ended"},
	{Is: delivery.ErrReplaced, Code: connect.CodeResourceExhausted, Reason: "REPLACED",
		Text: "a newer stream took this one's place"},

	{Is: ErrPeersUnavailable, Code: connect.CodeUnavailable, Reason: "UNAVAILABLE",
		Text: "live updates cannot be had just now", Retry: time.Second},

	{Is: store.ErrFull, Code: connect.CodeResourceExhausted, Reason: "STORAGE_FULL",
		Text: "storage is full: reads still work, writes do not"},
	{Is: store.ErrAmbiguous, Code: connect.CodeUnavailable, Reason: "OUTCOME_UNKNOWN",
		Text: "it is not known whether this was done", Retry: time.Second},
	{Is: store.ErrThrottled, Code: connect.CodeUnavailable, Reason: "UNAVAILABLE", Text: "overloaded",
		Retry: 2 * time.Second},
	{Is: store.ErrConflict, Code: connect.CodeUnavailable, Reason: "UNAVAILABLE",
		Text: "others are changing the same chat", Retry: time.Second},
	{Is: store.ErrUnavailable, Code: connect.CodeUnavailable, Reason: "UNAVAILABLE", Text: "storage cannot be reached",
		Retry: time.Second},
	{Is: store.ErrClosed, Code: connect.CodeUnavailable, Reason: "DRAINING", Text: "the server is going down",
		Retry: time.Second},
	{Is: store.ErrInvalid, Code: connect.CodeInternal, Reason: reasonInternal}, // a defect of this program
	{Is: store.ErrCorrupt, Code: connect.CodeInternal, Reason: reasonInternal},
}

// reasonOf is the reason of a sentinel in the table.
func reasonOf(sentinel error) string {
	for _, m := range refusals {
		if m.Is == sentinel { //nolint:errorlint // which row it is
			return m.Reason
		}
	}
	return reasonInternal
}

// reporter turns errors into what clients may see, and logs the rest.
type reporter struct {
	log     *slog.Logger
	explain []func(error) *rpc.Refusal // of services that have a table of their own
}

// public returns the error that a client sees in place of err. It logs what is hidden, and
// failures that concern operators.
func (r reporter) public(ctx context.Context, procedure string, err error) *connect.Error {
	var out *connect.Error
	if errors.As(err, &out) {
		return out
	}
	var bad *badRequest
	if errors.As(err, &bad) {
		return newError(connect.CodeInvalidArgument, reasonInvalid, bad.Error(), nil, 0,
			&errdetails.BadRequest{FieldViolations: bad.violations})
	}
	if over := new(limit.Refused); errors.As(err, &over) {
		return rateLimited(over)
	}
	for _, explain := range r.explain {
		if refused := explain(err); refused != nil {
			return refused.Error(nil)
		}
	}
	var unknown *unknownOutcome
	errors.As(err, &unknown)
	var failed *store.ConditionError
	if m := refusals.Find(err); m != nil {
		text, metadata := m.Explain(err).Text, map[string]string(nil)
		if many := new(chat.TooManyChats); errors.As(err, &many) {
			text, metadata = tooMany(ctx, many)
		}
		if (m.Code == connect.CodeUnavailable && !errors.Is(m.Is, delivery.ErrDraining)) || errors.Is(m.Is, store.ErrFull) {
			r.log.WarnContext(ctx, "request failed", slog.String("procedure", procedure), slog.Any("error", err))
		}
		if metadata == nil {
			text, metadata = detailed(err, text)
		}
		if m.Is == store.ErrAmbiguous { //nolint:errorlint // which row it is
			text += unknown.advice()
		}
		return newError(m.Code, m.Reason, text, unknown.metadata(metadata), m.Retry)
	}
	switch {
	case errors.Is(err, context.Canceled) && ctx.Err() != nil:
		return newError(connect.CodeCanceled, reasonCanceled, "the request was canceled", nil, 0)
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil:
		text, metadata := detailed(err, "the request took too long")
		return newError(connect.CodeDeadlineExceeded, reasonDeadline, text, unknown.metadata(metadata), 0)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.As(err, &failed):
		// A call within the request took too long, or lost every race against others.
		r.log.WarnContext(ctx, "request failed", slog.String("procedure", procedure), slog.Any("error", err))
		return newError(connect.CodeUnavailable, "UNAVAILABLE", "storage cannot be reached", unknown.metadata(nil),
			time.Second)
	}
	return r.internal(ctx, procedure, slog.Any("error", err))
}

// rateLimited says which limit has refused something, and either when to retry or how much may be
// asked for at once.
func rateLimited(over *limit.Refused) *connect.Error {
	metadata := map[string]string{"limit": string(over.Rule)}
	if over.AtOnce > 0 { // a retry does not help
		metadata["at_once"] = strconv.Itoa(over.AtOnce)
		return newError(connect.CodeResourceExhausted, "TOO_LARGE",
			"this is more at once than is allowed: ask for "+metadata["at_once"]+" at most", metadata, 0)
	}
	return newError(connect.CodeResourceExhausted, "RATE_LIMITED", "too many of these requests: retry later", metadata,
		over.RetryAfter)
}

// tooMany says whose chats are too many. Of others no more is said than that one chat
// more was refused.
func tooMany(ctx context.Context, e *chat.TooManyChats) (text string, metadata map[string]string) {
	metadata = map[string]string{"user_id": e.UserID}
	if e.UserID != caller(ctx) {
		return e.UserID + " cannot be in any more chats", metadata
	}
	limit := strconv.FormatInt(e.Limit, 10)
	metadata["limit"] = limit
	return "you are in " + limit + " chats, which is as many as can be: leave one first", metadata
}

// internal makes the error for what must not be seen, and logs it under an id
// that both have.
func (r reporter) internal(ctx context.Context, procedure string, what ...any) *connect.Error {
	id := "err_" + rand.Text()
	user := ""
	if p, ok := auth.PrincipalFrom(ctx); ok {
		user = p.UserID
	}
	args := append([]any{slog.String("procedure", procedure), slog.String("correlation_id", id),
		slog.String("user_id", user)}, what...)
	r.log.ErrorContext(ctx, "internal error", args...)
	return newError(connect.CodeInternal, reasonInternal, "internal error", map[string]string{"correlation_id": id}, 0)
}

func newError(
	code connect.Code, reason, text string, metadata map[string]string, retry time.Duration, details ...proto.Message,
) *connect.Error {
	return rpc.Refusal{Code: code, Reason: reason, Text: text, Retry: retry}.Error(metadata, details...)
}

// badRequest says what is wrong with which field of a request.
type badRequest struct {
	violations []*errdetails.BadRequest_FieldViolation
}

// Invalid is the error for a field that is not as it must be.
func Invalid(field, description string) error { return invalidField(field, description) }

func invalidField(field, description string) *badRequest {
	b := &badRequest{}
	b.add(field, description, "")
	return b
}

// fieldOf turns a rule's refusal of a request into that of the only field that it can
// mean.
func fieldOf(err error, field string) error {
	if !errors.Is(err, chat.ErrInvalidArgument) {
		return err
	}
	_, why, ok := strings.Cut(err.Error(), chat.ErrInvalidArgument.Error()+": ")
	if !ok {
		return err
	}
	return invalidField(field, why)
}

func (b *badRequest) add(field, description, rule string) {
	b.violations = append(b.violations,
		&errdetails.BadRequest_FieldViolation{Field: field, Description: description, Reason: rule})
}

// Error lists the first few violations.
func (b *badRequest) Error() string {
	const most = 5
	var text strings.Builder
	for i, v := range b.violations {
		if i > 0 {
			text.WriteString("; ")
		}
		if i == most {
			text.WriteString("…")
			break
		}
		if v.GetField() != "" {
			text.WriteString(v.GetField() + ": ")
		}
		text.WriteString(v.GetDescription())
	}
	return text.String()
}
