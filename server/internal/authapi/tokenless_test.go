package authapi_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	authv1 "github.com/parley-chat/parley/gen/parley/auth/v1"
	"github.com/parley-chat/parley/gen/parley/auth/v1/authv1connect"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/internal/authapi"
)

const (
	requestCode = authv1connect.AuthServiceRequestCodeProcedure
	refresh     = authv1connect.AuthServiceRefreshProcedure
)

// Who has no token cannot make the server keep what it sends.
func TestRequestsOfStrangersAreSmall(t *testing.T) {
	f := newFixture(t)
	for procedure, limit := range authapi.Tokenless {
		body := `{"x":"` + strings.Repeat("x", int(limit)) + `"}`
		if status, text := f.post(procedure, "", body); !strings.Contains(text, "resource_exhausted") {
			t.Errorf("%s: %d %s", procedure, status, text)
		}
	}
}

// Who sends the beginning of requests and never their end keeps nobody out, in the own network or
// elsewhere.
func TestSlowBodiesTakeNoRoom(t *testing.T) {
	f := newFixture(t)
	ann := f.signIn("ann@example.com")
	before := f.begun.Load()
	for n := range 2 * room {
		r, w := io.Pipe()
		req := testkit.Value(http.NewRequestWithContext(t.Context(), http.MethodPost,
			f.url+[]string{requestCode, refresh}[n%2], r))(t)
		req.Header.Set("Content-Type", "application/json")
		go func() {
			if res, err := http.DefaultClient.Do(req); err == nil {
				_ = res.Body.Close()
			}
		}()
		if _, err := w.Write([]byte("{")); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = w.Close() })
	}
	testkit.Eventually(t, "all have begun", func() bool { return f.begun.Load()-before == 2*room })
	_, err := f.client("").Refresh(t.Context(), &authv1.RefreshRequest{RefreshToken: ann.GetRefreshToken()})
	testkit.Must(t, err)
	_ = f.signIn("bob@example.com")
}

// ask asks for codes of a number of people at the same time, and returns the statuses.
func (f *fixture) ask(people int, domain string, network func(n int) string) <-chan int {
	answers := make(chan int, people)
	for n := range people {
		go func() {
			status, _ := f.postFrom(network(n), requestCode, "", fmt.Sprintf(`{"identifier":"x%d@%s"}`, n, domain))
			answers <- status
		}()
	}
	return answers
}

// A network has 16 of the calls of a procedure at a time, and each procedure has its own: while all that ask
// for codes are waited for, sessions continue.
func TestStrangersAreBounded(t *testing.T) {
	f := newFixture(t)
	ann := f.signIn("ann@example.com")
	f.hold = make(chan struct{})
	neighbours := f.ask(room, "example.com", func(n int) string { return fmt.Sprintf("198.51.100.%d/32", n) })
	for range room - 16 {
		testkit.Equal(t, "the seventeenth of a network", <-neighbours, http.StatusTooManyRequests)
	}
	others := f.ask(room, "example.org", func(n int) string { return fmt.Sprintf("2001:db8:0:%d::/64", n) })
	for range 16 {
		testkit.Equal(t, "the last ones", <-others, http.StatusTooManyRequests)
	}
	status, text := f.postFrom("203.0.113.1/32", requestCode, "", `{"identifier":"bob@example.com"}`)
	if status != http.StatusTooManyRequests || !strings.Contains(text, "RATE_LIMITED") ||
		!strings.Contains(text, "too many are signing in") {
		t.Errorf("no room: %d %s", status, text)
	}
	_, err := f.client("").Refresh(t.Context(), &authv1.RefreshRequest{RefreshToken: ann.GetRefreshToken()})
	testkit.Must(t, err)
	close(f.hold)
	for range 16 {
		testkit.Equal(t, "neighbour", <-neighbours, http.StatusOK)
	}
	for range room - 16 {
		testkit.Equal(t, "other", <-others, http.StatusOK)
	}
	status, _ = f.postFrom("203.0.113.1/32", requestCode, "", `{"identifier":"bob@example.com"}`)
	testkit.Equal(t, "afterwards", status, http.StatusOK)
}

// A network has 256 requests under way, slow ones included, and this machine as many as it likes.
func TestRequestsOfANetworkAreBounded(t *testing.T) {
	client := netip.MustParsePrefix("2001:db8:1:2::/64")
	limiter := authapi.NewTokenlessLimiter(room, func(*http.Request) netip.Prefix { return client },
		func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) })
	var in, done sync.WaitGroup
	leave := make(chan struct{})
	slow := limiter.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { in.Done(); <-leave }))
	request := func() *http.Request { return httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil) }
	in.Add(256)
	for range 256 {
		done.Go(func() { slow.ServeHTTP(httptest.NewRecorder(), request()) })
	}
	in.Wait()
	quick := limiter.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	status := func() int {
		w := httptest.NewRecorder()
		quick.ServeHTTP(w, request())
		return w.Code
	}
	testkit.Equal(t, "one more", status(), http.StatusTooManyRequests)
	for _, other := range []netip.Prefix{netip.MustParsePrefix("2001:db8:1:3::/64"), {}} {
		client = other
		testkit.Equal(t, "from elsewhere", status(), http.StatusOK)
	}
	client = netip.MustParsePrefix("2001:db8:1:2::/64")
	close(leave)
	done.Wait()
	testkit.Equal(t, "afterwards", status(), http.StatusOK)
}

// Signing out ends the session with all its tokens, however long these are good.
func TestSignOutEndsAllTokensOfASession(t *testing.T) {
	f := newFixture(t)
	issue := func(ttl time.Duration) string {
		return testkit.Value(f.key.IssueFor("ann", "ses_1", f.clock(), ttl))(t)
	}
	short, long := issue(time.Minute), issue(24*time.Hour)
	_ = testkit.Value(f.client(short).SignOut(t.Context(), &authv1.SignOutRequest{}))(t)
	for range 24 {
		_, err := f.client(long).ListSessions(t.Context(), &authv1.ListSessionsRequest{})
		refused(t, "a token of a session that was signed out", err, connect.CodeUnauthenticated, "UNAUTHENTICATED")
		f.advance(time.Hour - time.Second)
	}
}

// Signing out everywhere is everywhere: tokens that back ends made for the user end, too.
func TestRevokeAllEndsTokensOfBackEnds(t *testing.T) {
	f := newFixture(t)
	ann := f.signIn("ann@example.com")
	foreign := func(user string) string {
		return testkit.Value(f.key.IssueThrough(auth.Principal{Service: "crm"}, user, "ses_crm_1", f.clock(), time.Hour))(t)
	}
	stolen, bobs := foreign(ann.GetUserId()), foreign("bob")
	_ = testkit.Value(f.client(ann.GetAccessToken()).RevokeAllSessions(t.Context(),
		&authv1.RevokeAllSessionsRequest{}))(t)
	for range 6 {
		_, err := f.client(stolen).ListSessions(t.Context(), &authv1.ListSessionsRequest{})
		refused(t, "a token of the user", err, connect.CodeUnauthenticated, "UNAUTHENTICATED")
		f.advance(10*time.Minute - time.Second)
		_ = testkit.Value(f.client(bobs).ListSessions(t.Context(), &authv1.ListSessionsRequest{}))(t)
	}
	next := f.signIn("ann@example.com")
	_ = testkit.Value(f.client(next.GetAccessToken()).ListSessions(t.Context(), &authv1.ListSessionsRequest{}))(t)
}

// A service account does not end its own key by signing out, nor anything else.
func TestServicesHaveNoSessions(t *testing.T) {
	f := newFixture(t)
	ann := f.signIn("ann@example.com")
	f.services = func(user string) auth.Principal {
		return auth.Principal{Kind: auth.KindService, UserID: user, SessionID: "key_1", Service: "crm",
			ExpiresAt: f.now.Add(time.Hour)}
	}
	c := f.clientAs("parley_sk_crm", ann.GetUserId())
	for range 2 { // with the same key
		_, signOut := c.SignOut(t.Context(), &authv1.SignOutRequest{})
		_, one := c.RevokeSession(t.Context(), &authv1.RevokeSessionRequest{SessionId: ann.GetSessionId()})
		_, all := c.RevokeAllSessions(t.Context(), &authv1.RevokeAllSessionsRequest{})
		for what, err := range map[string]error{"signing out": signOut, "one": one, "all": all} {
			refused(t, what, err, connect.CodePermissionDenied, "FORBIDDEN")
			if !strings.Contains(err.Error(), "a service account has no session to end") {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
	_, err := c.CreateStreamTicket(t.Context(), &authv1.CreateStreamTicketRequest{})
	refused(t, "a ticket", err, connect.CodePermissionDenied, "FORBIDDEN")
	list := testkit.Value(c.ListSessions(t.Context(), &authv1.ListSessionsRequest{}))(t)
	testkit.Equal(t, "sessions", len(list.GetSessions()), 1)
}
