package ops

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"strings"
	"time"

	"buf.build/go/protovalidate"
	"connectrpc.com/connect"

	"github.com/parley-chat/parley/server/audit"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/backup"
	"github.com/parley-chat/parley/server/identity/admin"
	"github.com/parley-chat/parley/server/infra/rpc"
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

// Errors of the service itself.
var (
	errLog      = errors.New("ops: the event log cannot be read")
	errBusy     = errors.New("ops: too many calls at once")
	errArgument = errors.New("ops: invalid argument")
	errRole     = errors.New("ops: the role is too small")
	errPanic    = errors.New("ops: panic") // recorded in the audit; the interceptor answers the call
)

// refusals is the table of errors. Errors that are not in it are
// internal, and their text is hidden.
var refusals = rpc.Refusals{
	{Is: auth.ErrMissingToken, Code: connect.CodeUnauthenticated, Reason: "UNAUTHENTICATED",
		Text: "an operator's token is required: Authorization: Bearer <token>"},
	{Is: auth.ErrInvalidToken, Code: connect.CodeUnauthenticated, Reason: "UNAUTHENTICATED",
		Text: "not an operator's token of this installation"},
	{Is: auth.ErrTokenExpired, Code: connect.CodeUnauthenticated, Reason: "TOKEN_EXPIRED",
		Text: "the operator's token has expired"},
	{Is: errRole, Code: connect.CodePermissionDenied, Reason: "ROLE_REQUIRED"},
	{Is: errArgument, Code: connect.CodeInvalidArgument, Reason: "INVALID_ARGUMENT"},
	{Is: pagetoken.ErrInvalid, Code: connect.CodeInvalidArgument, Reason: "INVALID_PAGE_TOKEN",
		Text: "not a page token of this list: begin with the first page"},
	{Is: admin.ErrNoUser, Code: connect.CodeNotFound, Reason: "USER_NOT_FOUND", Text: "no such user"},
	{Is: admin.ErrNoSession, Code: connect.CodeNotFound, Reason: "SESSION_NOT_FOUND",
		Text: "the user has no such session"},
	{Is: admin.ErrNoChat, Code: connect.CodeNotFound, Reason: "CHAT_NOT_FOUND", Text: "no such chat"},
	{Is: admin.ErrNoService, Code: connect.CodeNotFound, Reason: "SERVICE_NOT_FOUND",
		Text: "no such service account"},
	{Is: admin.ErrExists, Code: connect.CodeAlreadyExists, Reason: "SERVICE_EXISTS",
		Text: "there is such a service account"},
	{Is: admin.ErrDisabled, Code: connect.CodeFailedPrecondition, Reason: "SERVICE_DISABLED",
		Text: "the service account has ended"},
	{Is: admin.ErrTooMany, Code: connect.CodeFailedPrecondition, Reason: "TOO_MANY_KEYS",
		Text: "the service account has as many keys as it can have: revoke some"},
	{Is: admin.ErrNoKey, Code: connect.CodeNotFound, Reason: "SERVICE_KEY_NOT_FOUND",
		Text: "the service account has no such key"},
	{Is: admin.ErrNoLimit, Code: connect.CodeNotFound, Reason: "LIMIT_NOT_FOUND", Text: "no such limit"},
	{Is: admin.ErrDeleted, Code: connect.CodeFailedPrecondition, Reason: "USER_DELETED",
		Text: "the account was deleted, which is for ever"},
	{Is: admin.ErrInvalid, Code: connect.CodeInvalidArgument, Reason: "INVALID_ARGUMENT"},
	{Is: errBusy, Code: connect.CodeResourceExhausted, Reason: "BUSY",
		Text: "too many calls at once: wait for one to end"},
	{Is: backup.ErrElsewhere, Code: connect.CodeFailedPrecondition, Reason: "NO_DATA_DIRECTORY"},
	{Is: backup.ErrRunning, Code: connect.CodeFailedPrecondition, Reason: "BACKUP_RUNNING",
		Text: "another backup is being made: wait"},
	{Is: deadletter.ErrInvalid, Code: connect.CodeInvalidArgument, Reason: "INVALID_ARGUMENT"},
	{Is: deadletter.ErrNotFound, Code: connect.CodeNotFound, Reason: "DEAD_LETTER_NOT_FOUND",
		Text: "no such dead letter"},
	{Is: failedrows.ErrInvalid, Code: connect.CodeInvalidArgument, Reason: "INVALID_ARGUMENT"},
	{Is: failedrows.ErrNotFound, Code: connect.CodeNotFound, Reason: "OUTBOX_ROW_NOT_FOUND",
		Text: "no such failed row: it was published, repaired or dropped"},
	{Is: failedrows.ErrChanged, Code: connect.CodeAborted, Reason: "OUTBOX_ROW_CHANGED",
		Text: "the row has changed meanwhile: list it again"},
	{Is: failedrows.ErrNoEvents, Code: connect.CodeFailedPrecondition, Reason: "NO_EVENTS",
		Text: "the event store has no readable events for this row: it can only be dropped"},
	{Is: eventquery.ErrInvalid, Code: connect.CodeInvalidArgument, Reason: "INVALID_ARGUMENT"},
	{Is: eventquery.ErrNotFound, Code: connect.CodeNotFound, Reason: "EVENT_NOT_FOUND"},
	{Is: audit.ErrInvalid, Code: connect.CodeInvalidArgument, Reason: "INVALID_ARGUMENT"},
	{Is: migrate.ErrInvalid, Code: connect.CodeInvalidArgument, Reason: "INVALID_ARGUMENT"},
	{Is: migrate.ErrBusy, Code: connect.CodeFailedPrecondition, Reason: "MIGRATION_UNDER_WAY"},
	{Is: migrate.ErrTopicInUse, Code: connect.CodeFailedPrecondition, Reason: "TOPIC_IN_USE"},
	{Is: migrate.ErrTooSlow, Code: connect.CodeAborted, Reason: "MIGRATION_TOO_SLOW"},
	{Is: migrate.ErrAborted, Code: connect.CodeAborted, Reason: "MIGRATION_ABORTED",
		Text: "an operator has aborted the migration"},
	{Is: migrate.ErrCannotAbort, Code: connect.CodeFailedPrecondition, Reason: "NOTHING_TO_ABORT"},
	{Is: migrate.ErrCannotRetire, Code: connect.CodeFailedPrecondition, Reason: "TOPIC_IN_USE"},
	{Is: versions.ErrChanged, Code: connect.CodeAborted, Reason: "MIGRATION_CHANGED",
		Text: "another call has changed the migration meanwhile: ask for its status"},
	{Is: projection.ErrUnknown, Code: connect.CodeNotFound, Reason: "PROJECTION_NOT_FOUND",
		Text: "no such projection"},
	{Is: projection.ErrRunning, Code: connect.CodeFailedPrecondition, Reason: "REBUILD_UNDER_WAY"},
	{Is: projection.ErrNothing, Code: connect.CodeFailedPrecondition, Reason: "NO_REBUILD"},
	{Is: projection.ErrAccept, Code: connect.CodeInvalidArgument, Reason: "INVALID_ARGUMENT",
		Text: "accept_gaps: only for REBUILD_ACTION_START and REBUILD_ACTION_RESUME"},
	{Is: projection.ErrFirst, Code: connect.CodeFailedPrecondition, Reason: "FIRST_BUILD"},
	{Is: projection.ErrNotBuilt, Code: connect.CodeUnavailable, Reason: "NOT_BUILT_YET",
		Text: "the projection is built for the first time: see projections list"},
	{Is: chatactivity.ErrInvalid, Code: connect.CodeInvalidArgument, Reason: "INVALID_ARGUMENT"},
	{Is: notifications.ErrInvalid, Code: connect.CodeInvalidArgument, Reason: "INVALID_ARGUMENT"},
	{Is: notifications.ErrToken, Code: connect.CodeInvalidArgument, Reason: "INVALID_PAGE_TOKEN",
		Text: "not a page token of this list: begin with the first page"},
	{Is: replay.ErrInvalid, Code: connect.CodeInvalidArgument, Reason: "INVALID_ARGUMENT"},
	{Is: lag.ErrNoGroup, Code: connect.CodeNotFound, Reason: "GROUP_NOT_FOUND", Text: "no such consumer group"},
	{Is: deadletter.ErrUnavailable, Code: connect.CodeUnavailable, Reason: "LOG_UNAVAILABLE",
		Text: "the event log cannot be read"},
	{Is: topic.ErrNoServer, Code: connect.CodeUnavailable, Reason: "NO_OWNER",
		Text: "no server that has topics answers"},
	{Is: errLog, Code: connect.CodeUnavailable, Reason: "LOG_UNAVAILABLE", Text: "the event log cannot be read"},
	// As users read them, in package api.
	{Is: store.ErrFull, Code: connect.CodeResourceExhausted, Reason: "STORAGE_FULL",
		Text: "storage is full: reads still work, writes do not"},
	{Is: store.ErrAmbiguous, Code: connect.CodeUnavailable, Reason: "OUTCOME_UNKNOWN",
		Text: "it is not known whether this was done: check, and repeat it", Retry: time.Second},
	{Is: store.ErrThrottled, Code: connect.CodeUnavailable, Reason: "UNAVAILABLE", Text: "overloaded",
		Retry: 2 * time.Second},
	{Is: store.ErrConflict, Code: connect.CodeUnavailable, Reason: "UNAVAILABLE",
		Text: "others are changing the same rows", Retry: time.Second},
	{Is: store.ErrUnavailable, Code: connect.CodeUnavailable, Reason: "UNAVAILABLE",
		Text:  "storage cannot be reached",
		Retry: time.Second},
	{Is: store.ErrClosed, Code: connect.CodeUnavailable, Reason: "DRAINING", Text: "the process is going down",
		Retry: time.Second},
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
	if r := refusals.Explain(err); r != nil {
		if r.Code == connect.CodeUnavailable {
			s.cfg.Logger.WarnContext(ctx, "ops: call failed", slog.String("procedure", procedure), slog.Any("error", err))
		}
		return r.Error(nil)
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
	return rpc.Refusal{Code: code, Reason: reason, Text: text}.Error(nil)
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
