package api

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"log/slog"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/limit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/view"
)

// sentinels are all that the packages export, with what a client must see.
var sentinels = map[string]struct {
	err    error
	code   connect.Code
	reason string
}{
	"auth.ErrMissingToken": {auth.ErrMissingToken, connect.CodeUnauthenticated, "UNAUTHENTICATED"},
	"auth.ErrInvalidToken": {auth.ErrInvalidToken, connect.CodeUnauthenticated, "UNAUTHENTICATED"},
	"auth.ErrNotBearer":    {auth.ErrNotBearer, connect.CodeUnauthenticated, "UNAUTHENTICATED"},
	"auth.ErrOtherKey":     {auth.ErrOtherKey, connect.CodeUnauthenticated, "UNAUTHENTICATED"},
	"auth.ErrRevoked":      {auth.ErrRevoked, connect.CodeUnauthenticated, "UNAUTHENTICATED"},
	"auth.ErrOtherUser":    {auth.ErrOtherUser, connect.CodePermissionDenied, "FORBIDDEN"},
	"auth.ErrScope":        {auth.ErrScope, connect.CodePermissionDenied, "FORBIDDEN"},
	"auth.ErrUninformed":   {auth.ErrUninformed, connect.CodeUnavailable, "UNAVAILABLE"},
	"auth.ErrTokenExpired": {auth.ErrTokenExpired, connect.CodeUnauthenticated, "TOKEN_EXPIRED"},

	"chat.ErrNotAMember":       {chat.ErrNotAMember, connect.CodePermissionDenied, "NOT_A_MEMBER"},
	"chat.ErrForbidden":        {chat.ErrForbidden, connect.CodePermissionDenied, "FORBIDDEN"},
	"chat.ErrTooManyChats":     {chat.ErrTooManyChats, connect.CodeFailedPrecondition, "TOO_MANY_CHATS"},
	"chat.ErrChatFull":         {chat.ErrChatFull, connect.CodeFailedPrecondition, "CHAT_FULL"},
	"chat.ErrInvalidOperation": {chat.ErrInvalidOperation, connect.CodeFailedPrecondition, "INVALID_OPERATION"},
	"chat.ErrAlreadyMember":    {chat.ErrAlreadyMember, connect.CodeAlreadyExists, "ALREADY_MEMBER"},
	"chat.ErrMemberNotFound":   {chat.ErrMemberNotFound, connect.CodeNotFound, "MEMBER_NOT_FOUND"},
	"chat.ErrUserNotFound":     {chat.ErrUserNotFound, connect.CodeNotFound, "USER_NOT_FOUND"},
	"chat.ErrKeyReused":        {chat.ErrKeyReused, connect.CodeInvalidArgument, "IDEMPOTENCY_KEY_REUSED"},
	"chat.ErrVersionMismatch":  {chat.ErrVersionMismatch, connect.CodeAborted, "VERSION_MISMATCH"},
	"chat.ErrBusy":             {chat.ErrBusy, connect.CodeResourceExhausted, "RATE_LIMITED"},
	"chat.ErrInvalidArgument":  {chat.ErrInvalidArgument, connect.CodeInvalidArgument, "INVALID_ARGUMENT"},
	"chat.ErrPanic":            {chat.ErrPanic, connect.CodeInternal, "INTERNAL"},

	"view.ErrInvalidToken":     {view.ErrInvalidToken, connect.CodeInvalidArgument, "INVALID_TOKEN"},
	"internal/api.ErrHistory":  {ErrHistory, connect.CodeAborted, "HISTORY_CHANGED"},
	"view.ErrInvalidPageToken": {view.ErrInvalidPageToken, connect.CodeInvalidArgument, "INVALID_PAGE_TOKEN"},

	"delivery.ErrStreamGone":     {delivery.ErrStreamGone, connect.CodeNotFound, "STREAM_GONE"},
	"delivery.ErrPosition":       {delivery.ErrPosition, connect.CodeOutOfRange, "POSITION_NOT_SENT"},
	"delivery.ErrNotYours":       {delivery.ErrNotYours, connect.CodePermissionDenied, "FORBIDDEN"},
	"delivery.ErrDraining":       {delivery.ErrDraining, connect.CodeUnavailable, "DRAINING"},
	"delivery.ErrSlow":           {delivery.ErrSlow, connect.CodeUnavailable, "SLOW"},
	"delivery.ErrResync":         {delivery.ErrResync, connect.CodeUnavailable, "RESYNC"},
	"delivery.ErrTokenExpired":   {delivery.ErrTokenExpired, connect.CodeUnauthenticated, "TOKEN_EXPIRED"},
	"delivery.ErrSessionRevoked": {delivery.ErrSessionRevoked, connect.CodeUnauthenticated, "SESSION_REVOKED"},
	"delivery.ErrReplaced":       {delivery.ErrReplaced, connect.CodeResourceExhausted, "REPLACED"},

	"limit.ErrNoRule":      {limit.ErrNoRule, connect.CodeInternal, "INTERNAL"},
	"limit.ErrOverloaded":  {limit.ErrOverloaded, connect.CodeUnavailable, "UNAVAILABLE"},
	"limit.ErrStreams":     {limit.ErrStreams, connect.CodeResourceExhausted, "RATE_LIMITED"},
	"limit.ErrUnavailable": {limit.ErrUnavailable, connect.CodeUnavailable, "UNAVAILABLE"},

	"internal/api.ErrPeersUnavailable": {ErrPeersUnavailable, connect.CodeUnavailable, "UNAVAILABLE"},

	"store.ErrClosed":      {store.ErrClosed, connect.CodeUnavailable, "DRAINING"},
	"store.ErrConflict":    {store.ErrConflict, connect.CodeUnavailable, "UNAVAILABLE"},
	"store.ErrThrottled":   {store.ErrThrottled, connect.CodeUnavailable, "UNAVAILABLE"},
	"store.ErrUnavailable": {store.ErrUnavailable, connect.CodeUnavailable, "UNAVAILABLE"},
	"store.ErrAmbiguous":   {store.ErrAmbiguous, connect.CodeUnavailable, "OUTCOME_UNKNOWN"},
	"store.ErrInvalid":     {store.ErrInvalid, connect.CodeInternal, "INTERNAL"},
	"store.ErrCorrupt":     {store.ErrCorrupt, connect.CodeInternal, "INTERNAL"},
	"store.ErrFull":        {store.ErrFull, connect.CodeResourceExhausted, "STORAGE_FULL"},
}

// exported lists the sentinels that a package's source declares.
func exported(t *testing.T, pkg string) []string {
	t.Helper()
	sources, err := filepath.Glob("../../" + pkg + "/*.go")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, source := range sources {
		if strings.HasSuffix(source, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), source, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.VAR {
				continue
			}
			for _, s := range g.Specs {
				for _, n := range s.(*ast.ValueSpec).Names {
					if strings.HasPrefix(n.Name, "Err") {
						names = append(names, pkg+"."+n.Name)
					}
				}
			}
		}
	}
	if len(names) == 0 {
		t.Fatalf("no sentinels in %s", pkg)
	}
	return names
}

func TestEverySentinelStandsInTheTable(t *testing.T) {
	n := 0
	for _, pkg := range []string{"auth", "chat", "view", "delivery", "internal/api", "limit", "store"} {
		for _, name := range exported(t, pkg) {
			n++
			if _, ok := sentinels[name]; !ok {
				t.Errorf("%s has no row", name)
			}
		}
	}
	if n != len(sentinels) || n != len(refusals) {
		t.Errorf("%d sentinels, %d expectations, %d rows", n, len(sentinels), len(refusals))
	}
}

func details(t *testing.T, err *connect.Error) (info *errdetails.ErrorInfo, retry *errdetails.RetryInfo) {
	t.Helper()
	for _, d := range err.Details() {
		m, err := d.Value()
		if err != nil {
			t.Fatal(err)
		}
		switch m := m.(type) {
		case *errdetails.ErrorInfo:
			info = m
		case *errdetails.RetryInfo:
			retry = m
		}
	}
	return info, retry
}

func TestErrorTable(t *testing.T) {
	r := reporter{log: slog.New(slog.DiscardHandler)}
	name := regexp.MustCompile(`^[A-Z_]+$`)
	for what, want := range sentinels {
		for _, err := range []error{want.err, fmt.Errorf("read head: %w", want.err), errors.Join(errors.New("x"), want.err)} {
			got := r.public(t.Context(), "/p", err)
			info, retry := details(t, got)
			if got.Code() != want.code || info.GetReason() != want.reason || info.GetDomain() != "parley" ||
				!name.MatchString(info.GetReason()) {
				t.Errorf("%s: %v %s, want %v %s", what, got.Code(), info.GetReason(), want.code, want.reason)
			}
			for _, word := range []string{"read head", "chat: ", "store: ", "view: ", "delivery: ", "auth: ", "limit: "} {
				if strings.Contains(got.Message(), word) {
					t.Errorf("%s: %q shows %q", what, got.Message(), word)
				}
			}
			if got.Message() == "" || (want.code == connect.CodeInternal && got.Message() != "internal error") {
				t.Errorf("%s: text %q", what, got.Message())
			}
			unavailable := want.code == connect.CodeUnavailable || want.reason == "RATE_LIMITED" // try again later
			if unavailable != (retry.GetRetryDelay().AsDuration() > 0) || unavailable != (got.Meta().Get("Retry-After") != "") {
				t.Errorf("%s: retry %v, %q", what, retry, got.Meta().Get("Retry-After"))
			}
		}
	}
	over := r.public(t.Context(), "/p", fmt.Errorf("send: %w", &limit.Refused{Rule: limit.Send,
		RetryAfter: 2500 * time.Millisecond}))
	info, retry := details(t, over)
	if over.Code() != connect.CodeResourceExhausted || info.GetReason() != "RATE_LIMITED" ||
		info.GetMetadata()["limit"] != "send" || retry.GetRetryDelay().AsDuration() != 2500*time.Millisecond ||
		over.Meta().Get("Retry-After") != "3" {
		t.Errorf("over a limit: %v, %v, %v, %q", over, info, retry, over.Meta().Get("Retry-After"))
	}
	never := r.public(t.Context(), "/p", &limit.Refused{Rule: limit.AddMember, AtOnce: 100})
	info, retry = details(t, never)
	if never.Code() != connect.CodeResourceExhausted || info.GetReason() != "TOO_LARGE" || retry != nil ||
		info.GetMetadata()["at_once"] != "100" || never.Meta().Get("Retry-After") != "" {
		t.Errorf("more than a limit ever lets through: %v, %v, %v", never, info, retry)
	}
	got := r.public(t.Context(), "/p", fmt.Errorf("create: %w: name must be short", chat.ErrInvalidArgument))
	if got.Message() != "name must be short" {
		t.Errorf("own text: %q", got.Message())
	}
}

func TestErrorsOutsideOfTheTable(t *testing.T) {
	r := reporter{log: slog.New(slog.DiscardHandler)}
	done, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer cancel()
	bad := invalidField("a", "first")
	for i := range 7 {
		bad.add("b", fmt.Sprint(i), "rule")
	}
	for name, tt := range map[string]struct {
		ctx    context.Context
		err    error
		code   connect.Code
		reason string
		text   string
	}{
		"canceled by the client": {done, fmt.Errorf("read: %w", context.Canceled), connect.CodeCanceled, "CANCELED",
			"the request was canceled"},
		"the client's deadline": {late, context.DeadlineExceeded, connect.CodeDeadlineExceeded, "DEADLINE_EXCEEDED",
			"the request took too long"},
		"a deadline further down": {t.Context(), context.DeadlineExceeded, connect.CodeUnavailable, "UNAVAILABLE",
			"storage cannot be reached"},
		"lost to the end": {t.Context(), &store.ConditionError{}, connect.CodeUnavailable, "UNAVAILABLE",
			"storage cannot be reached"},
		"unknown": {t.Context(), errors.New("secret"), connect.CodeInternal, "INTERNAL", "internal error"},
		"fields": {t.Context(), bad, connect.CodeInvalidArgument, "INVALID_ARGUMENT",
			"a: first; b: 0; b: 1; b: 2; b: 3; …"},
		"of connect": {t.Context(), connect.NewError(connect.CodeDataLoss, errors.New("as it is")),
			connect.CodeDataLoss, "", "as it is"},
	} {
		got := r.public(tt.ctx, "/p", tt.err)
		info, _ := details(t, got)
		if got.Code() != tt.code || info.GetReason() != tt.reason || got.Message() != tt.text {
			t.Errorf("%s: %v %s %q", name, got.Code(), info.GetReason(), got.Message())
		}
	}
	info, _ := details(t, r.public(t.Context(), "/p", errors.New("secret")))
	if !strings.HasPrefix(info.GetMetadata()["correlation_id"], "err_") {
		t.Error("no correlation id")
	}
}

// Where it is not known what happened the answer has the key to repeat with.
func TestKeyOfUnknownOutcome(t *testing.T) {
	r := reporter{log: slog.New(slog.DiscardHandler)}
	lost := fmt.Errorf("send: %w", store.ErrAmbiguous)
	slow, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer cancel()
	for name, tt := range map[string]struct {
		err  error
		req  any
		want string
		text string
	}{
		"send": {lost, &messagev1.SendMessageRequest{ClientMessageId: "id"}, "map[client_message_id:id]",
			"it is not known whether this was done: repeat it with the same client_message_id"},
		"command": {lost, &chatv1.RemoveMemberRequest{RequestId: "k"}, "map[request_id:k]",
			"it is not known whether this was done: repeat it with the same request_id"},
		"no key": {lost, &chatv1.RemoveMemberRequest{}, "map[]",
			"it is not known whether this was done: look before doing it again; requests with an id can be repeated"},
		"too slow": {fmt.Errorf("send: %w", context.DeadlineExceeded), &messagev1.SendMessageRequest{ClientMessageId: "id"},
			"map[client_message_id:id]", "the request took too long"},
		"known": {chat.ErrChatFull, &chatv1.RemoveMemberRequest{RequestId: "k"}, "map[]",
			"the chat has as many members as it can have"},
	} {
		got := r.public(slow, "/p", withKey(tt.err, tt.req))
		info, _ := details(t, got)
		if fmt.Sprint(info.GetMetadata()) != tt.want || got.Message() != tt.text {
			t.Errorf("%s: %v %q", name, info.GetMetadata(), got.Message())
		}
	}
}

func TestTraceID(t *testing.T) {
	for in, want := range map[string]string{
		"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01": "4bf92f3577b34da6a3ce929d0e0e4736",
		"":  "",
		"x": "",
		"00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01": "",
		"00-00000000000000000000000000000000-00f067aa0ba902b7-01": "",
		"00_4bf92f3577b34da6a3ce929d0e0e4736_00f067aa0ba902b7_01": "",
	} {
		if got := traceID(in); got != want {
			t.Errorf("%q: %q", in, got)
		}
	}
}

func FuzzText(f *testing.F) {
	for _, s := range []string{"", "plain", "a\x00", "👩‍👩‍👧", "\u202e", "\xff", "\ufeff", "\u200d"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		content, name := checkContent("c", s), checkName("n", s)
		if name == nil && (content != nil || strings.ContainsAny(s, "\r\n\t\x00\u202e\u200b\ufeff")) {
			t.Fatalf("%q passes as a name", s)
		}
	})
}
