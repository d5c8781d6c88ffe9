package authapi_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/reflect/protoreflect"

	authv1 "github.com/parley-chat/parley/gen/parley/auth/v1"
	"github.com/parley-chat/parley/gen/parley/auth/v1/authv1connect"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/identity/identifier"
	"github.com/parley-chat/parley/server/identity/otp"
	"github.com/parley-chat/parley/server/identity/securitylog"
	"github.com/parley-chat/parley/server/identity/session"
	"github.com/parley-chat/parley/server/identity/signin"
	"github.com/parley-chat/parley/server/identity/ticket"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/internal/api"
	"github.com/parley-chat/parley/server/internal/authapi"
	"github.com/parley-chat/parley/server/store/storetest"
)

// fixture is the service as it is served: behind the gate, but for what needs no token.
type fixture struct {
	t    *testing.T
	url  string
	key  *auth.Key
	gate *auth.Gate

	mu      sync.Mutex
	now     time.Time
	codes   map[string]string
	clients []string
	hold    chan struct{} // what the outbox waits for, nil: nothing
	begun   atomic.Int64  // requests whose headers have come
	// services are service accounts, by the user in whose name they call; nil: there are none.
	services func(user string) auth.Principal
}

func (f *fixture) clock() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now
}

func (f *fixture) advance(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = f.now.Add(d)
}

// outbox is the fixture as the way to people, by mail.
type outbox struct{ *fixture }

func (outbox) Takes(k identifier.Kind) bool { return k == identifier.Email }
func (o outbox) Room() bool {
	if o.hold != nil {
		<-o.hold
	}
	return true
}

func (o outbox) Send(m otp.Message) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.codes[m.To.Value()] = m.Code
}

// RevokeSession makes the fixture a revoker.
func (f *fixture) RevokeSession(_ context.Context, session string, until time.Time) error {
	f.gate.Revoke(session, until)
	return nil
}

// RevokeUser makes it one of users.
func (f *fixture) RevokeUser(_ context.Context, user string, issuedBefore, until time.Time) error {
	f.gate.Apply(auth.Revocation{Kind: auth.RevokedUser, ID: user, Before: issuedBefore, Until: until})
	return nil
}

const room = 20 // calls of each procedure without a token at a time

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, now: time.Unix(1_900_000_000, 0), codes: map[string]string{}}
	f.key = testkit.Value(auth.LoadKey(t.TempDir()))(t)
	store := storetest.NewMemory(f.clock)
	record := func(_ context.Context, e securitylog.Event) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.clients = append(f.clients, e.Client)
	}
	sessions := testkit.Value(session.New(session.Config{Store: store, Clock: f.clock, Pepper: make([]byte, 32),
		Revoker: f, Record: record, Issue: func(user, session string, now time.Time) (string, error) {
			return f.key.IssueFor(user, session, now, 15*time.Minute)
		}}))(t)
	n := 0
	people := testkit.Value(signin.New(signin.Config{Store: store, Clock: f.clock, Pepper: make([]byte, 32),
		Outbox: outbox{f}, SignUp: true, Sessions: sessions, Record: record,
		NewID: func(prefix string) string { n++; return fmt.Sprint(prefix, n) }}))(t)
	tickets := testkit.Value(ticket.New(store, make([]byte, ticket.KeySize), f.clock))(t)
	served := testkit.Value(api.New(api.Config{Store: store, Logger: slog.New(slog.DiscardHandler), Enter: authapi.Enter,
		Permit:  func(auth.Principal, string) error { return nil },
		Observe: func(string, string, time.Duration) {}, More: []api.Service{authapi.New(people, f, tickets).Service()}}))(t)
	f.gate = testkit.Value(auth.NewGate(auth.Config{Key: f.key, Clock: f.clock, Refuse: served.Refuse,
		EnsureUser: func(context.Context, string) error { return nil },
		Services: func(_ context.Context, _, user string) (auth.Principal, error) {
			if f.services == nil {
				return auth.Principal{}, auth.ErrInvalidToken
			}
			return f.services(user), nil
		}}))(t)
	limiter := authapi.NewTokenlessLimiter(room, func(r *http.Request) netip.Prefix {
		return netip.MustParsePrefix(cmp.Or(r.Header.Get("Network"), "192.0.2.7/32"))
	},
		func(w http.ResponseWriter, r *http.Request) {
			served.Reject(w, r, http.StatusTooManyRequests, "RATE_LIMITED", "full")
		})
	mux := http.NewServeMux()
	for path, h := range served.Handlers() {
		mux.Handle(path, f.gate.Wrap(h))
		for procedure := range authapi.Tokenless {
			mux.Handle(procedure, limiter.Wrap(h))
		}
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.begun.Add(1)
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	f.url = srv.URL
	return f
}

// client calls with a token, "" for none.
func (f *fixture) client(token string) authv1connect.AuthServiceClient { return f.clientAs(token, "") }

// clientAs calls with a key in the name of a user.
func (f *fixture) clientAs(token, user string) authv1connect.AuthServiceClient {
	return authv1connect.NewAuthServiceClient(http.DefaultClient, f.url,
		connect.WithInterceptors(connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
			return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
				if token != "" {
					req.Header().Set("Authorization", "Bearer "+token)
				}
				if user != "" {
					req.Header().Set(auth.UserHeader, user)
				}
				return next(ctx, req)
			}
		})))
}

// signIn begins a session.
func (f *fixture) signIn(who string) *authv1.Tokens {
	f.t.Helper()
	f.advance(time.Minute)
	c := f.client("")
	r := testkit.Value(c.RequestCode(f.t.Context(), &authv1.RequestCodeRequest{Identifier: who}))(f.t)
	return testkit.Value(c.VerifyCode(f.t.Context(), &authv1.VerifyCodeRequest{Identifier: who,
		RequestId: r.GetRequestId(), Code: f.codes[who], Device: "phone"}))(f.t).GetTokens()
}

// refused checks the code and the reason of an error.
func refused(t *testing.T, what string, err error, code connect.Code, reason string) {
	t.Helper()
	got, _ := errorInfo(err)
	if connect.CodeOf(err) != code || got != reason {
		t.Errorf("%s: %v with %s, expected %v with %s", what, err, got, code, reason)
	}
}

func errorInfo(err error) (reason string, retry bool) {
	var e *connect.Error
	if !errors.As(err, &e) {
		return "", false
	}
	for _, d := range e.Details() {
		v, err := d.Value()
		if err != nil {
			continue
		}
		switch m := v.ProtoReflect(); m.Descriptor().Name() {
		case "ErrorInfo":
			reason = m.Get(m.Descriptor().Fields().ByName("reason")).String()
		case "RetryInfo":
			retry = true
		}
	}
	return reason, retry
}

// A person signs in, refreshes, checks their sessions and ends them.
func TestSession(t *testing.T) {
	f := newFixture(t)
	phone := f.signIn("ann@example.com")
	laptop := f.signIn("ann@example.com")
	if phone.GetUserId() != laptop.GetUserId() || phone.GetSessionId() == laptop.GetSessionId() ||
		!phone.GetAccessTokenExpiresAt().AsTime().Equal(f.now.Add(14*time.Minute)) {
		t.Fatalf("%v\n%v", phone, laptop)
	}
	f.advance(time.Minute)
	next := testkit.Value(f.client("").Refresh(t.Context(),
		&authv1.RefreshRequest{RefreshToken: phone.GetRefreshToken()}))(t).GetTokens()
	c := f.client(next.GetAccessToken())
	list := testkit.Value(c.ListSessions(t.Context(), &authv1.ListSessionsRequest{}))(t).GetSessions()
	if len(list) != 2 || list[0].GetSessionId() != phone.GetSessionId() || !list[0].GetCurrent() || list[1].GetCurrent() ||
		list[0].GetDevice() != "phone" || !list[0].GetLastUsedAt().AsTime().Equal(f.now) {
		t.Fatalf("%v", list)
	}
	_ = testkit.Value(c.RevokeSession(t.Context(),
		&authv1.RevokeSessionRequest{SessionId: laptop.GetSessionId()}))(t)
	_, err := f.client(laptop.GetAccessToken()).ListSessions(t.Context(), &authv1.ListSessionsRequest{})
	refused(t, "access of an ended session", err, connect.CodeUnauthenticated, "UNAUTHENTICATED")
	_, err = c.RevokeSession(t.Context(), &authv1.RevokeSessionRequest{SessionId: "ses_NONE"})
	refused(t, "no session", err, connect.CodeNotFound, "SESSION_NOT_FOUND")
	_ = testkit.Value(c.SignOut(t.Context(), &authv1.SignOutRequest{}))(t)
	_, err = c.ListSessions(t.Context(), &authv1.ListSessionsRequest{})
	refused(t, "after signing out", err, connect.CodeUnauthenticated, "UNAUTHENTICATED")
	_, err = f.client("").Refresh(t.Context(), &authv1.RefreshRequest{RefreshToken: next.GetRefreshToken()})
	refused(t, "after signing out", err, connect.CodeUnauthenticated, "INVALID_REFRESH_TOKEN")
}

// All sessions end at once, or all but the caller's.
func TestRevokeAllSessions(t *testing.T) {
	f := newFixture(t)
	own, other := f.signIn("ann@example.com"), f.signIn("ann@example.com")
	bob := f.signIn("bob@example.com")
	c := f.client(own.GetAccessToken())
	res := testkit.Value(c.RevokeAllSessions(t.Context(), &authv1.RevokeAllSessionsRequest{KeepCurrent: true}))(t)
	testkit.Equal(t, "others", res.GetRevoked(), 1)
	_, err := f.client(other.GetAccessToken()).ListSessions(t.Context(), &authv1.ListSessionsRequest{})
	refused(t, "another session", err, connect.CodeUnauthenticated, "UNAUTHENTICATED")
	res = testkit.Value(c.RevokeAllSessions(t.Context(), &authv1.RevokeAllSessionsRequest{}))(t)
	testkit.Equal(t, "all", res.GetRevoked(), 1)
	_, err = c.ListSessions(t.Context(), &authv1.ListSessionsRequest{})
	refused(t, "the own session", err, connect.CodeUnauthenticated, "UNAUTHENTICATED")
	_ = testkit.Value(f.client(bob.GetAccessToken()).ListSessions(t.Context(), &authv1.ListSessionsRequest{}))(t)
}

// Somebody else's session is like none, whatever is done to it.
func TestForeignSession(t *testing.T) {
	f := newFixture(t)
	ann, bob := f.signIn("ann@example.com"), f.signIn("bob@example.com")
	_, err := f.client(bob.GetAccessToken()).RevokeSession(t.Context(),
		&authv1.RevokeSessionRequest{SessionId: ann.GetSessionId()})
	refused(t, "somebody else's", err, connect.CodeNotFound, "SESSION_NOT_FOUND")
	_ = testkit.Value(f.client(ann.GetAccessToken()).ListSessions(t.Context(), &authv1.ListSessionsRequest{}))(t)
}

// A token that an operator made is of a session that no table has, and can be ended as well.
func TestSessionOfAnOperatorsToken(t *testing.T) {
	for name, end := range map[string]func(c authv1connect.AuthServiceClient, id string) error{
		"sign out": func(c authv1connect.AuthServiceClient, _ string) error {
			_, err := c.SignOut(t.Context(), &authv1.SignOutRequest{})
			return err
		},
		"revoke": func(c authv1connect.AuthServiceClient, id string) error {
			_, err := c.RevokeSession(t.Context(), &authv1.RevokeSessionRequest{SessionId: id})
			return err
		},
		"revoke all": func(c authv1connect.AuthServiceClient, _ string) error {
			_, err := c.RevokeAllSessions(t.Context(), &authv1.RevokeAllSessionsRequest{})
			return err
		},
	} {
		f := newFixture(t)
		token := testkit.Value(f.key.Issue("ann", f.now, 24*time.Hour))(t)
		c := f.client(token)
		testkit.Must(t, end(c, testkit.Value(f.gate.Verify(token))(t).SessionID))
		if _, err := c.ListSessions(t.Context(), &authv1.ListSessionsRequest{}); connect.CodeOf(err) !=
			connect.CodeUnauthenticated {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// S-04: a refresh token is no access token, and an access token refreshes nothing.
func TestSec_S_04_TokensAreNotExchanged(t *testing.T) {
	f := newFixture(t)
	ann := f.signIn("ann@example.com")
	_, err := f.client(ann.GetRefreshToken()).ListSessions(t.Context(), &authv1.ListSessionsRequest{})
	refused(t, "a refresh token as access", err, connect.CodeUnauthenticated, "UNAUTHENTICATED")
	_, err = f.client("").Refresh(t.Context(), &authv1.RefreshRequest{RefreshToken: ann.GetAccessToken()})
	refused(t, "an access token as refresh", err, connect.CodeUnauthenticated, "INVALID_REFRESH_TOKEN")
}

// What goes wrong has a reason that does not change, and says when to try again.
func TestReasons(t *testing.T) {
	f := newFixture(t)
	c := f.client("")
	request := func(id string) error {
		_, err := c.RequestCode(t.Context(), &authv1.RequestCodeRequest{Identifier: id})
		return err
	}
	refused(t, "no identifier", request("ann"), connect.CodeInvalidArgument, "INVALID_ARGUMENT")
	refused(t, "no way there", request("+49 151 2345678"), connect.CodeFailedPrecondition, "IDENTIFIER_NOT_SERVED")
	testkit.Must(t, request("ann@example.com"))
	err := request("ann@example.com")
	refused(t, "too often", err, connect.CodeResourceExhausted, "RATE_LIMITED")
	if _, retry := errorInfo(err); !retry {
		t.Errorf("when to try again: %v", err)
	}
	verify := func(change func(*authv1.VerifyCodeRequest)) error {
		req := &authv1.VerifyCodeRequest{Identifier: "ann@example.com", RequestId: "X", Code: "000000"}
		change(req)
		_, err := c.VerifyCode(t.Context(), req)
		return err
	}
	refused(t, "wrong code", verify(func(*authv1.VerifyCodeRequest) {}), connect.CodePermissionDenied, "INVALID_CODE")
	refused(t, "unknown identifier", verify(func(r *authv1.VerifyCodeRequest) { r.Identifier = "bob@example.com" }),
		connect.CodePermissionDenied, "INVALID_CODE")
	for what, change := range map[string]func(*authv1.VerifyCodeRequest){
		"letters":      func(r *authv1.VerifyCodeRequest) { r.Code = "00000a" },
		"long":         func(r *authv1.VerifyCodeRequest) { r.Code = "0000000" },
		"other digits": func(r *authv1.VerifyCodeRequest) { r.Code = "٠٠٠٠٠٠" },
		"no request":   func(r *authv1.VerifyCodeRequest) { r.RequestId = "" },
		"device":       func(r *authv1.VerifyCodeRequest) { r.Device = "a\x1b[2J" },
		"long device":  func(r *authv1.VerifyCodeRequest) { r.Device = strings.Repeat("x", 65) },
	} {
		refused(t, what, verify(change), connect.CodeInvalidArgument, "INVALID_ARGUMENT")
	}
	_, err = c.Refresh(t.Context(), &authv1.RefreshRequest{RefreshToken: "x"})
	refused(t, "a refresh token", err, connect.CodeUnauthenticated, "INVALID_REFRESH_TOKEN")
	_, err = c.ExchangeToken(t.Context(), &authv1.ExchangeTokenRequest{Token: "x"})
	refused(t, "no issuer", err, connect.CodeFailedPrecondition, "NO_ISSUER")
	if !slices.Contains(f.clients, "192.0.2.7/32") {
		t.Errorf("events name no client: %v", f.clients)
	}
}

// Four procedures need no token, which means nothing there; all others do.
func TestWhoNeedsAToken(t *testing.T) {
	f := newFixture(t)
	methods := authv1.File_parley_auth_v1_auth_service_proto.Services().ByName("AuthService").Methods()
	var open []string
	for i := range methods.Len() {
		m := methods.Get(i)
		procedure := "/" + string(m.Parent().FullName()) + "/" + string(m.Name())
		for _, token := range []string{"", "nonsense"} {
			status, text := f.post(procedure, token, "{}")
			switch {
			case status != http.StatusUnauthorized && token == "":
				open = append(open, procedure)
			case status == http.StatusUnauthorized && !strings.Contains(text, "UNAUTHENTICATED"):
				t.Errorf("%s: %d %s", procedure, status, text)
			}
		}
	}
	slices.Sort(open)
	testkit.Equal(t, "without a token", open, slices.Sorted(maps.Keys(authapi.Tokenless)))
	testkit.Equal(t, "number", len(open), 4)
}

func (f *fixture) post(procedure, token, body string) (status int, text string) {
	f.t.Helper()
	return f.postFrom("", procedure, token, body)
}

// postFrom is post from a network.
func (f *fixture) postFrom(network, procedure, token, body string) (status int, text string) {
	f.t.Helper()
	req := testkit.Value(http.NewRequestWithContext(f.t.Context(), http.MethodPost, f.url+procedure,
		strings.NewReader(body)))(f.t)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Network", network)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res := testkit.Value(http.DefaultClient.Do(req))(f.t)
	defer res.Body.Close()
	b := testkit.Value(io.ReadAll(res.Body))(f.t)
	return res.StatusCode, string(b)
}

// No answer has a code, and tokens are only in the answers that give them.
func TestSecretsStandInFewMessages(t *testing.T) {
	allowed := map[protoreflect.FullName]bool{
		"parley.auth.v1.Tokens.access_token": true, "parley.auth.v1.Tokens.refresh_token": true,
		"parley.auth.v1.VerifyCodeRequest.code": true, "parley.auth.v1.RefreshRequest.refresh_token": true,
		"parley.auth.v1.ExchangeTokenRequest.token": true,
	}
	messages := authv1.File_parley_auth_v1_auth_service_proto.Messages()
	for i := range messages.Len() {
		for j := range messages.Get(i).Fields().Len() {
			field := messages.Get(i).Fields().Get(j)
			name := string(field.Name())
			if field.Kind() == protoreflect.StringKind && !allowed[field.FullName()] &&
				(strings.Contains(name, "token") || strings.Contains(name, "code")) {
				t.Errorf("%s", field.FullName())
			}
		}
	}
}
