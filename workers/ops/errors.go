package ops

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"strings"

	"buf.build/go/protovalidate"
	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	"github.com/parley-chat/parley/server/audit"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/backup"
	"github.com/parley-chat/parley/server/identity/admin"
	"github.com/parley-chat/parley/server/kafka/lag"
	"github.com/parley-chat/parley/server/kafka/versions"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/topic"
	"github.com/parley-chat/parley/workers/deadletter"
	"github.com/parley-chat/parley/workers/eventquery"
	"github.com/parley-chat/parley/workers/failedrows"
	"github.com/parley-chat/parley/workers/migrate"
	"github.com/parley-chat/parley/workers/ops/pagetoken"
	"github.com/parley-chat/parley/workers/projection"
	"github.com/parley-chat/parley/workers/projection/chatactivity"
	"github.com/parley-chat/parley/workers/projection/notifications"
	"github.com/parley-chat/parley/workers/replay"
)

// errorDomain is the domain of all reasons.
const errorDomain = "parley"

// Errors of the service itself.
var (
	errLog      = errors.New("ops: the event log cannot be read")
	errBusy     = errors.New("ops: too many calls at once")
	errArgument = errors.New("ops: invalid argument")
	errRole     = errors.New("ops: the role is too small")
	errPanic    = errors.New("ops: panic") // recorded in the audit; the interceptor answers the call
)

// mapping is a row of the table of errors: what an operator sees of a sentinel.
type mapping struct {
	is     error
	code   connect.Code
	reason string
	text   string // empty: the error's own, from the sentinel on
}

// mappings is the table of errors, searched from the top. Errors that are not in it are
// internal, and their text is hidden.
var mappings = []mapping{
	{auth.ErrMissingToken, connect.CodeUnauthenticated, "UNAUTHENTICATED",
		"an operator's token is required: Authorization: Bearer <token>"},
	{auth.ErrInvalidToken, connect.CodeUnauthenticated, "UNAUTHENTICATED", "not an operator's token of this installation"},
	{auth.ErrTokenExpired, connect.CodeUnauthenticated, "TOKEN_EXPIRED", "the operator's token has expired"},
	{errRole, connect.CodePermissionDenied, "ROLE_REQUIRED", ""},
	{errArgument, connect.CodeInvalidArgument, "INVALID_ARGUMENT", ""},
	{pagetoken.ErrInvalid, connect.CodeInvalidArgument, "INVALID_PAGE_TOKEN",
		"not a page token of this list: begin with the first page"},
	{admin.ErrNoUser, connect.CodeNotFound, "USER_NOT_FOUND", "no such user"},
	{admin.ErrNoSession, connect.CodeNotFound, "SESSION_NOT_FOUND", "the user has no such session"},
	{admin.ErrNoChat, connect.CodeNotFound, "CHAT_NOT_FOUND", "no such chat"},
	{admin.ErrNoService, connect.CodeNotFound, "SERVICE_NOT_FOUND", "no such service account"},
	{admin.ErrExists, connect.CodeAlreadyExists, "SERVICE_EXISTS", "there is such a service account"},
	{admin.ErrDisabled, connect.CodeFailedPrecondition, "SERVICE_DISABLED", "the service account has ended"},
	{admin.ErrTooMany, connect.CodeFailedPrecondition, "TOO_MANY_KEYS",
		"the service account has as many keys as it can have: revoke some"},
	{admin.ErrNoKey, connect.CodeNotFound, "SERVICE_KEY_NOT_FOUND", "the service account has no such key"},
	{admin.ErrNoLimit, connect.CodeNotFound, "LIMIT_NOT_FOUND", "no such limit"},
	{admin.ErrDeleted, connect.CodeFailedPrecondition, "USER_DELETED", "the account was deleted, which is for ever"},
	{admin.ErrInvalid, connect.CodeInvalidArgument, "INVALID_ARGUMENT", ""},
	{errPanic, connect.CodeInternal, "INTERNAL", "internal error"},
	{errBusy, connect.CodeResourceExhausted, "BUSY", "too many calls at once: wait for one to end"},
	{backup.ErrElsewhere, connect.CodeFailedPrecondition, "NO_DATA_DIRECTORY", ""},
	{backup.ErrRunning, connect.CodeFailedPrecondition, "BACKUP_RUNNING", "another backup is being made: wait"},
	{deadletter.ErrInvalid, connect.CodeInvalidArgument, "INVALID_ARGUMENT", ""},
	{deadletter.ErrNotFound, connect.CodeNotFound, "DEAD_LETTER_NOT_FOUND", "no such dead letter"},
	{failedrows.ErrInvalid, connect.CodeInvalidArgument, "INVALID_ARGUMENT", ""},
	{failedrows.ErrNotFound, connect.CodeNotFound, "OUTBOX_ROW_NOT_FOUND",
		"no such failed row: it was published, repaired or dropped"},
	{failedrows.ErrChanged, connect.CodeAborted, "OUTBOX_ROW_CHANGED", "the row has changed meanwhile: list it again"},
	{failedrows.ErrNoEvents, connect.CodeFailedPrecondition, "NO_EVENTS",
		"the event store has no readable events for this row: it can only be dropped"},
	{eventquery.ErrInvalid, connect.CodeInvalidArgument, "INVALID_ARGUMENT", ""},
	{eventquery.ErrNotFound, connect.CodeNotFound, "EVENT_NOT_FOUND", ""},
	{audit.ErrInvalid, connect.CodeInvalidArgument, "INVALID_ARGUMENT", ""},
	{migrate.ErrInvalid, connect.CodeInvalidArgument, "INVALID_ARGUMENT", ""},
	{migrate.ErrBusy, connect.CodeFailedPrecondition, "MIGRATION_UNDER_WAY", ""},
	{migrate.ErrTopicInUse, connect.CodeFailedPrecondition, "TOPIC_IN_USE", ""},
	{migrate.ErrTooSlow, connect.CodeAborted, "MIGRATION_TOO_SLOW", ""},
	{migrate.ErrAborted, connect.CodeAborted, "MIGRATION_ABORTED", "an operator has aborted the migration"},
	{migrate.ErrCannotAbort, connect.CodeFailedPrecondition, "NOTHING_TO_ABORT", ""},
	{migrate.ErrCannotRetire, connect.CodeFailedPrecondition, "TOPIC_IN_USE", ""},
	{versions.ErrChanged, connect.CodeAborted, "MIGRATION_CHANGED",
		"another call has changed the migration meanwhile: ask for its status"},
	{projection.ErrUnknown, connect.CodeNotFound, "PROJECTION_NOT_FOUND", "no such projection"},
	{projection.ErrRunning, connect.CodeFailedPrecondition, "REBUILD_UNDER_WAY", ""},
	{projection.ErrNothing, connect.CodeFailedPrecondition, "NO_REBUILD", ""},
	{projection.ErrAccept, connect.CodeInvalidArgument, "INVALID_ARGUMENT",
		"accept_gaps: only for REBUILD_ACTION_START and REBUILD_ACTION_RESUME"},
	{projection.ErrFirst, connect.CodeFailedPrecondition, "FIRST_BUILD", ""},
	{projection.ErrNotBuilt, connect.CodeUnavailable, "NOT_BUILT_YET",
		"the projection is built for the first time: see projections list"},
	{chatactivity.ErrInvalid, connect.CodeInvalidArgument, "INVALID_ARGUMENT", ""},
	{notifications.ErrInvalid, connect.CodeInvalidArgument, "INVALID_ARGUMENT", ""},
	{notifications.ErrToken, connect.CodeInvalidArgument, "INVALID_PAGE_TOKEN",
		"not a page token of this list: begin with the first page"},
	{replay.ErrInvalid, connect.CodeInvalidArgument, "INVALID_ARGUMENT", ""},
	{lag.ErrNoGroup, connect.CodeNotFound, "GROUP_NOT_FOUND", "no such consumer group"},
	{deadletter.ErrUnavailable, connect.CodeUnavailable, "LOG_UNAVAILABLE", "the event log cannot be read"},
	{topic.ErrNoServer, connect.CodeUnavailable, "NO_OWNER", "no server that has topics answers"},
	{errLog, connect.CodeUnavailable, "LOG_UNAVAILABLE", "the event log cannot be read"},
	{store.ErrFull, connect.CodeResourceExhausted, "STORAGE_FULL", "storage is full"},
	{store.ErrAmbiguous, connect.CodeUnavailable, "OUTCOME_UNKNOWN",
		"it is not known whether this was done: check, and repeat it"},
	{store.ErrThrottled, connect.CodeUnavailable, "UNAVAILABLE", "storage is overloaded"},
	{store.ErrConflict, connect.CodeUnavailable, "UNAVAILABLE", "storage is overloaded"},
	{store.ErrUnavailable, connect.CodeUnavailable, "UNAVAILABLE", "storage cannot be reached"},
	{store.ErrClosed, connect.CodeUnavailable, "DRAINING", "the process is going down"},
}

// public is the error that an operator sees in place of err. It logs what is hidden.
func (s *Service) public(ctx context.Context, procedure string, err error) *connect.Error {
	var out *connect.Error
	if errors.As(err, &out) {
		return out
	}
	var invalid *protovalidate.ValidationError
	if errors.As(err, &invalid) {
		return refusal(connect.CodeInvalidArgument, "INVALID_ARGUMENT", violations(invalid))
	}
	for _, m := range mappings {
		if !errors.Is(err, m.is) {
			continue
		}
		if m.code == connect.CodeUnavailable {
			s.cfg.Logger.WarnContext(ctx, "ops: call failed", slog.String("procedure", procedure), slog.Any("error", err))
		}
		text := m.text
		if text == "" {
			text = ownText(err, m.is)
		}
		return refusal(m.code, m.reason, text)
	}
	switch {
	case errors.Is(err, context.Canceled) && ctx.Err() != nil:
		return refusal(connect.CodeCanceled, "CANCELED", "the call was canceled")
	case errors.Is(err, context.DeadlineExceeded):
		return refusal(connect.CodeDeadlineExceeded, "DEADLINE_EXCEEDED", "the call took too long")
	}
	return s.internal(ctx, procedure, slog.Any("error", err))
}

func (s *Service) internal(ctx context.Context, procedure string, what ...any) *connect.Error {
	id := "err_" + rand.Text()
	s.cfg.Logger.ErrorContext(ctx, "ops: internal error",
		append([]any{slog.String("procedure", procedure), slog.String("correlation_id", id), slog.String("by", actor(ctx))},
			what...)...)
	return refusal(connect.CodeInternal, "INTERNAL", "internal error "+id)
}

func refusal(code connect.Code, reason, text string) *connect.Error {
	out := connect.NewError(code, errors.New(text))
	// only fails for what cannot be encoded
	if d, err := connect.NewErrorDetail(&errdetails.ErrorInfo{Reason: reason, Domain: errorDomain}); err == nil {
		out.AddDetail(d)
	}
	return out
}

// ownText is an error's text behind its sentinel's package and sentence.
func ownText(err, sentinel error) string {
	_, after, ok := strings.Cut(err.Error(), sentinel.Error()+": ")
	if !ok {
		_, after, _ = strings.Cut(sentinel.Error(), ": ")
	}
	return after
}

// violations lists the first few things that are wrong with a request.
func violations(e *protovalidate.ValidationError) string {
	const most = 3
	var list []string
	for i, v := range e.Violations {
		if i == most {
			list = append(list, "…")
			break
		}
		list = append(list, strings.TrimPrefix(protovalidate.FieldPathString(v.Proto.GetField())+": "+v.Proto.GetMessage(),
			": "))
	}
	return strings.Join(list, "; ")
}
