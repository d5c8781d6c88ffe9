package api

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"math"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/limit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/view"
)

// errorDomain is the domain of all reasons.
const errorDomain = "parley"

// Reasons that are not in the table.
const (
	reasonInvalid  = "INVALID_ARGUMENT"
	reasonInternal = "INTERNAL"
	reasonCanceled = "CANCELED"
	reasonDeadline = "DEADLINE_EXCEEDED"
)

// mapping is a row of the table of errors: what a client sees of a sentinel.
type mapping struct {
	is     error
	code   connect.Code
	reason string
	// text is what the client reads. Empty: the error's own, from the sentinel on;
	// only for sentinels that explain what the caller sent.
	text  string
	retry time.Duration // when to retry; 0: a retry does not help
}

// mappings is the one table of errors, searched from the top. Errors that are
// not in it are internal and their text is hidden.
var mappings = []mapping{
	{is: auth.ErrMissingToken, code: connect.CodeUnauthenticated, reason: "UNAUTHENTICATED",
		text: "an access token is required: Authorization: Bearer <token>"},
	{is: auth.ErrNotBearer, code: connect.CodeUnauthenticated, reason: "UNAUTHENTICATED",
		text: "the header must be one: Authorization: Bearer <token>"},
	{is: auth.ErrOtherKey, code: connect.CodeUnauthenticated, reason: "UNAUTHENTICATED",
		text: "the access token is another server's, or of an older data directory"},
	{is: auth.ErrRevoked, code: connect.CodeUnauthenticated, reason: "UNAUTHENTICATED",
		text: "the access token is of a session that was ended"},
	{is: auth.ErrInvalidToken, code: connect.CodeUnauthenticated, reason: "UNAUTHENTICATED",
		text: "the access token is not valid"},
	{is: auth.ErrOtherUser, code: connect.CodePermissionDenied, reason: "FORBIDDEN",
		text: "Parley-As-User must name one user whom the service account may speak for, and who is active"},
	{is: auth.ErrScope, code: connect.CodePermissionDenied, reason: "FORBIDDEN",
		text: "the caller needs a service account's key with the scope for this"},
	{is: auth.ErrUninformed, code: connect.CodeUnavailable, reason: "UNAVAILABLE",
		text: "it is not known just now whether the session was ended", retry: time.Second},
	{is: auth.ErrTokenExpired, code: connect.CodeUnauthenticated, reason: "TOKEN_EXPIRED",
		text: "the access token has expired"},

	{is: chat.ErrNotAMember, code: connect.CodePermissionDenied, reason: "NOT_A_MEMBER",
		text: "not a member of this chat"},
	{is: chat.ErrForbidden, code: connect.CodePermissionDenied, reason: "FORBIDDEN",
		text: "the caller's role does not allow this"},
	{is: chat.ErrChatFull, code: connect.CodeFailedPrecondition, reason: "CHAT_FULL",
		text: "the chat has as many members as it can have"},
	{is: chat.ErrTooManyChats, code: connect.CodeFailedPrecondition, reason: "TOO_MANY_CHATS"},
	{is: chat.ErrInvalidOperation, code: connect.CodeFailedPrecondition, reason: "INVALID_OPERATION",
		text: "not possible in this chat"},
	{is: chat.ErrAlreadyMember, code: connect.CodeAlreadyExists, reason: "ALREADY_MEMBER",
		text: "the user is a member already"},
	{is: chat.ErrMemberNotFound, code: connect.CodeNotFound, reason: "MEMBER_NOT_FOUND", text: "the user is not a member"},
	{is: chat.ErrUserNotFound, code: connect.CodeNotFound, reason: "USER_NOT_FOUND"},
	{is: chat.ErrKeyReused, code: connect.CodeInvalidArgument, reason: "IDEMPOTENCY_KEY_REUSED",
		text: "this request id was used before with other content"},
	{is: chat.ErrVersionMismatch, code: connect.CodeAborted, reason: "VERSION_MISMATCH",
		text: "the chat has another version than expected"},
	{is: chat.ErrBusy, code: connect.CodeResourceExhausted, reason: "RATE_LIMITED",
		text: "this user has too many requests under way: wait for their answers", retry: time.Second},
	{is: limit.ErrStreams, code: connect.CodeResourceExhausted, reason: "RATE_LIMITED",
		text: "this client address has as many streams as it may have", retry: 10 * time.Second},
	{is: limit.ErrOverloaded, code: connect.CodeUnavailable, reason: "UNAVAILABLE",
		text: "the server has more to do than it can", retry: time.Second},
	{is: limit.ErrUnavailable, code: connect.CodeUnavailable, reason: "UNAVAILABLE",
		text: "this cannot be done just now", retry: time.Second},
	{is: chat.ErrInvalidArgument, code: connect.CodeInvalidArgument, reason: reasonInvalid},
	{is: limit.ErrNoRule, code: connect.CodeInternal, reason: reasonInternal}, // a defect of this program
	{is: chat.ErrPanic, code: connect.CodeInternal, reason: reasonInternal},

	{is: view.ErrInvalidToken, code: connect.CodeInvalidArgument, reason: "INVALID_TOKEN",
		text: "not a synchronisation token of this user: sync without a token"},
	{is: view.ErrInvalidPageToken, code: connect.CodeInvalidArgument, reason: "INVALID_PAGE_TOKEN",
		text: "not a page token of this query, or expired: begin with the first page"},

	{is: ErrHistory, code: connect.CodeAborted, reason: "HISTORY_CHANGED",
		text: "the client has seen what the server does not have, since it was restored: start over without Parley-History"},

	{is: delivery.ErrStreamGone, code: connect.CodeNotFound, reason: "STREAM_GONE", text: "no such stream"},
	{is: delivery.ErrPosition, code: connect.CodeOutOfRange, reason: "POSITION_NOT_SENT",
		text: "this position was not sent yet"},
	{is: delivery.ErrNotYours, code: connect.CodePermissionDenied, reason: "FORBIDDEN",
		text: "the stream belongs to another session"},
	{is: delivery.ErrDraining, code: connect.CodeUnavailable, reason: "DRAINING", text: "the server is going down",
		retry: time.Second},
	{is: delivery.ErrSlow, code: connect.CodeUnavailable, reason: "SLOW", text: "the stream was not read fast enough",
		retry: time.Second},
	{is: delivery.ErrResync, code: connect.CodeUnavailable, reason: "RESYNC", text: "the stream must be reopened",
		retry: time.Second},
	{is: delivery.ErrTokenExpired, code: connect.CodeUnauthenticated, reason: "TOKEN_EXPIRED",
		text: "the access token has expired"},
	{is: delivery.ErrSessionRevoked, code: connect.CodeUnauthenticated, reason: "SESSION_REVOKED",
		text: "the session was ended"},
	{is: delivery.ErrReplaced, code: connect.CodeResourceExhausted, reason: "REPLACED",
		text: "a newer stream took this one's place"},

	{is: ErrPeersUnavailable, code: connect.CodeUnavailable, reason: "UNAVAILABLE",
		text: "live updates cannot be had just now", retry: time.Second},

	{is: store.ErrFull, code: connect.CodeResourceExhausted, reason: "STORAGE_FULL",
		text: "storage is full: reads still work, writes do not"},
	{is: store.ErrAmbiguous, code: connect.CodeUnavailable, reason: "OUTCOME_UNKNOWN",
		text: "it is not known whether this was done", retry: time.Second},
	{is: store.ErrThrottled, code: connect.CodeUnavailable, reason: "UNAVAILABLE", text: "overloaded",
		retry: 2 * time.Second},
	{is: store.ErrConflict, code: connect.CodeUnavailable, reason: "UNAVAILABLE",
		text: "others are changing the same chat", retry: time.Second},
	{is: store.ErrUnavailable, code: connect.CodeUnavailable, reason: "UNAVAILABLE", text: "storage cannot be reached",
		retry: time.Second},
	{is: store.ErrClosed, code: connect.CodeUnavailable, reason: "DRAINING", text: "the server is going down",
		retry: time.Second},
	{is: store.ErrInvalid, code: connect.CodeInternal, reason: reasonInternal}, // a defect of this program
	{is: store.ErrCorrupt, code: connect.CodeInternal, reason: reasonInternal},
}

// reasonOf is the reason of a sentinel in the table.
func reasonOf(sentinel error) string {
	for _, m := range mappings {
		if m.is == sentinel { //nolint:errorlint // which row it is
			return m.reason
		}
	}
	return reasonInternal
}

// reporter turns errors into what clients may see, and logs the rest.
type reporter struct {
	log     *slog.Logger
	explain []func(error) *Refusal // of services that have a table of their own
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
			return newError(refused.Code, refused.Reason, refused.Text, nil, refused.Retry)
		}
	}
	var unknown *unknownOutcome
	errors.As(err, &unknown)
	var failed *store.ConditionError
	for _, m := range mappings {
		if !errors.Is(err, m.is) || m.code == connect.CodeInternal {
			continue
		}
		text, metadata := m.text, map[string]string(nil)
		if many := new(chat.TooManyChats); errors.As(err, &many) {
			text, metadata = tooMany(ctx, many)
		} else if text == "" {
			text = ownText(err, m.is)
		}
		if (m.code == connect.CodeUnavailable && !errors.Is(m.is, delivery.ErrDraining)) || errors.Is(m.is, store.ErrFull) {
			r.log.WarnContext(ctx, "request failed", slog.String("procedure", procedure), slog.Any("error", err))
		}
		if metadata == nil {
			text, metadata = detailed(err, text)
		}
		if m.is == store.ErrAmbiguous { //nolint:errorlint // which row it is
			text += unknown.advice()
		}
		return newError(m.code, m.reason, text, unknown.metadata(metadata), m.retry)
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

// ownText returns an error's text from the sentinel on, without the package's
// name.
func ownText(err, sentinel error) string {
	text := err.Error()
	if i := strings.Index(text, sentinel.Error()); i >= 0 {
		text = text[i:]
	}
	_, after, ok := strings.Cut(text, ": ")
	if !ok {
		return text
	}
	return after
}

func newError(
	code connect.Code, reason, text string, metadata map[string]string, retry time.Duration, details ...proto.Message,
) *connect.Error {
	out := connect.NewError(code, errors.New(text))
	details = append([]proto.Message{&errdetails.ErrorInfo{Reason: reason, Domain: errorDomain, Metadata: metadata}},
		details...)
	if retry > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(retry)})
		out.Meta().Set("Retry-After", strconv.Itoa(int(math.Ceil(retry.Seconds()))))
	}
	for _, m := range details {
		if d, err := connect.NewErrorDetail(m); err == nil { // only fails for messages that cannot be encoded
			out.AddDetail(d)
		}
	}
	return out
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
