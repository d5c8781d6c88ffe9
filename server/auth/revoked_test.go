package auth

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
)

// A revocation covers what it names, and no more; two of one subject both hold.
func TestRevocationsCover(t *testing.T) { // S-13
	alice := Principal{UserID: "alice", SessionID: "ses_1", Service: "crm", ServiceKey: "key_1", IssuedAt: testTime}
	hour := testTime.Add(time.Hour)
	for name, c := range map[string]struct {
		r    Revocation
		want bool
	}{
		"the session":               {Revocation{Kind: RevokedSession, ID: "ses_1"}, true},
		"the service's key":         {Revocation{Kind: RevokedSession, ID: "key_1"}, true},
		"another key":               {Revocation{Kind: RevokedSession, ID: "key_2"}, false},
		"another session":           {Revocation{Kind: RevokedSession, ID: "ses_2"}, false},
		"a session named as a user": {Revocation{Kind: RevokedUser, ID: "ses_1"}, false},
		"the user, until later":     {Revocation{Kind: RevokedUser, ID: "alice", Before: testTime.Add(time.Second)}, true},
		"the user, until then":      {Revocation{Kind: RevokedUser, ID: "alice", Before: testTime}, false},
		"the service":               {Revocation{Kind: RevokedService, ID: "crm", Before: hour}, true},
		"no subject":                {Revocation{Kind: RevokedUser}, false},
	} {
		c.r.Until = hour
		g := newFixture(t, testKey(t)).gate
		g.Apply(c.r)
		if c.r.Covers(alice) != c.want || g.Refuses(alice) != c.want {
			t.Errorf("%s: %v, %v", name, c.r.Covers(alice), g.Refuses(alice))
		}
	}
	for _, first := range []int{0, 1} {
		g := newFixture(t, testKey(t)).gate
		list := []Revocation{
			{Kind: RevokedUser, ID: "alice", Before: testTime.Add(time.Second), Until: testTime.Add(time.Minute)},
			{Kind: RevokedUser, ID: "alice", Before: testTime.Add(-time.Second), Until: hour},
		}
		g.Apply(list[first])
		g.Apply(list[1-first])
		if !g.Refuses(alice) {
			t.Errorf("the earlier time counts, order %d", first)
		}
	}
}

// Where there are too many revocations nobody who was revoked is let in: what was issued
// before is refused.
func TestRevocationsAreBounded(t *testing.T) {
	r := newRevoked()
	gone := Principal{SessionID: "ses_0", IssuedAt: testTime}
	for i := range 1 << 18 {
		r.add(Revocation{Kind: RevokedSession, ID: fmt.Sprint("ses_", i), Until: testTime.Add(2 * time.Hour)},
			testTime.Add(time.Second))
	}
	if r.overflows() != 1 {
		t.Errorf("%d times too many", r.overflows())
	}
	if len(r.of) >= 1<<18 || !r.refuses(gone, testTime.Add(time.Hour)) {
		t.Fatalf("%d are kept", len(r.of))
	}
	if r.refuses(Principal{SessionID: "ses_new", IssuedAt: testTime.Add(time.Second)}, testTime.Add(time.Hour)) {
		t.Fatal("what is issued later is refused")
	}
}

// While it is not known who was revoked nobody is admitted, remembered or not.
func TestUninformedAdmitsNobody(t *testing.T) {
	k := testKey(t)
	b := newFixture(t, k)
	informed := true
	b.gate.cfg.Informed = func(time.Time) bool { return informed }
	tok := issue(t, k, "alice")
	if _, err := b.try(t, "Bearer "+tok); err != nil {
		t.Fatal(err)
	}
	informed = false
	for _, token := range []string{tok, issue(t, k, "bob")} {
		if _, err := b.try(t, "Bearer "+token); !errors.Is(err, ErrUninformed) || errors.Is(err, ErrInvalidToken) {
			t.Fatal(err)
		}
	}
	informed = true
	if _, err := b.try(t, "Bearer "+tok); err != nil {
		t.Fatal(err)
	}
}

// A service account's key is asked about every few seconds, at once after a revocation, and never
// where nobody knows of keys.
func TestServiceKeysAtTheGate(t *testing.T) {
	b := newFixture(t, testKey(t))
	key := "Bearer parley_sk_crm"
	if _, err := b.try(t, key); !errors.Is(err, ErrInvalidToken) {
		t.Fatal(err)
	}
	asked, scopes := 0, NewScopes("b", "a", "a")
	var fail error
	b.gate.cfg.Services = func(_ context.Context, key, user string) (Principal, error) {
		asked++
		return Principal{UserID: "service:crm", SessionID: "key_1", Service: "crm", Scopes: scopes,
			ExpiresAt: testTime.Add(2 * time.Minute)}, fail
	}
	for range 3 {
		p, err := b.try(t, key)
		if err != nil || p.Kind != KindService || p.ByService() != "crm" || !p.Scopes.Has("a") || p.Scopes.Has("c") ||
			p.Scopes != "a b" {
			t.Fatal(p, err)
		}
	}
	b.now = testTime.Add(time.Second)
	b.gate.Apply(Revocation{Kind: RevokedService, ID: "crm", Before: b.now, Until: testTime.Add(time.Hour)})
	scopes = NewScopes("c")
	if p, err := b.try(t, key); err != nil || p.Scopes != "c" {
		t.Fatal("rights that were changed", p, err)
	}
	b.now = b.now.Add(5 * time.Second)
	if _, err := b.try(t, key); err != nil || asked != 3 {
		t.Fatal(asked, err)
	}
	b.gate.Revoke("key_1", testTime.Add(time.Hour))
	if _, err := b.try(t, key); !errors.Is(err, ErrRevoked) {
		t.Fatal(err)
	}
	fail = ErrInvalidToken
	if _, err := b.try(t, key+"2"); !errors.Is(err, ErrInvalidToken) {
		t.Fatal(err)
	}
	b.now = testTime.Add(2 * time.Minute)
	fail = nil
	if _, err := b.try(t, key+"3"); !errors.Is(err, ErrTokenExpired) {
		t.Fatal(err)
	}
}

// A call in a user's name makes the user only where the service account may make users.
func TestNoUserIsMadeWithoutTheRight(t *testing.T) {
	for scopes, made := range map[Scopes]bool{"users:*": false, "users.write users:*": true} {
		b := newFixture(t, testKey(t))
		b.gate.cfg.Services = func(_ context.Context, _, user string) (Principal, error) {
			p := Principal{UserID: "service:crm", SessionID: "key_1", Service: "crm", Scopes: scopes,
				ExpiresAt: testTime.Add(time.Hour)}
			if user != "" {
				p.UserID = user
			}
			return p, nil
		}
		for _, user := range []string{"ghost", ""} {
			r := httptest.NewRequest(http.MethodPost, "/x", nil)
			r.Header.Set("Authorization", "Bearer parley_sk_crm")
			if user != "" {
				r.Header.Set(UserHeader, user)
			}
			b.gate.Wrap(http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), r)
		}
		if b.refused != nil || slices.Contains(b.ensured, "ghost") != made || !slices.Contains(b.ensured, "service:crm") {
			t.Errorf("with %q: %q, %v", scopes, b.ensured, b.refused)
		}
	}
}

// A key that was ended and is still in use somewhere does not cost a reading for each request;
// what may be otherwise the next moment does, and what is remembered is bounded.
func TestRefusedKeysAreRemembered(t *testing.T) {
	for refusal, want := range map[error]int{ErrRevoked: 2, ErrTokenExpired: 2, ErrOtherUser: 200, ErrInvalidToken: 200} {
		b := newFixture(t, testKey(t))
		asked := 0
		b.gate.cfg.Services = func(context.Context, string, string) (Principal, error) {
			asked++
			return Principal{}, refusal
		}
		for range 2 {
			for range 100 {
				if _, err := b.try(t, "Bearer parley_sk_crm"); !errors.Is(err, refusal) {
					t.Fatal(err)
				}
			}
			b.now = b.now.Add(2 * time.Second)
		}
		if asked != want {
			t.Errorf("%v: the store was asked %d times", refusal, asked)
		}
		for i := range 2000 {
			_, _ = b.try(t, fmt.Sprint("Bearer parley_sk_", i))
		}
		if len(b.gate.refused) > 1024 {
			t.Errorf("%d are remembered", len(b.gate.refused))
		}
	}
}

// A user who cannot be named is refused, and no fault of the server's.
func TestUsersThatCannotBeNamed(t *testing.T) {
	b := newFixture(t, testKey(t))
	b.gate.cfg.Services = func(context.Context, string, string) (Principal, error) {
		t.Error("asked for")
		return Principal{}, ErrInvalidToken
	}
	for _, user := range []string{"a\xff", "\xc3", "a b", "..", strings.Repeat("x", 65)} {
		r := httptest.NewRequest(http.MethodPost, "/x", nil)
		r.Header.Set("Authorization", "Bearer parley_sk_crm")
		r.Header[UserHeader] = []string{user}
		b.gate.Wrap(http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), r)
		if !errors.Is(b.refused, ErrOtherUser) {
			t.Errorf("%q: %v", user, b.refused)
		}
	}
	for _, session := range []string{"ses_\xff", "", strings.Repeat("x", 65)} {
		if _, err := b.gate.cfg.Key.IssueFor("ann", session, testTime, time.Hour); err == nil {
			t.Errorf("%q is a session", session)
		}
	}
}

// A token that a service account asks for ends within an hour, and says by which key.
func TestTokensOfServices(t *testing.T) {
	k := testKey(t)
	token, err := k.IssueThrough(Principal{Service: "crm", SessionID: "key_1"}, "ann", "ses_crm_1", testTime, 5*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	g := newFixture(t, k).gate
	p, err := g.Verify(token)
	if err != nil || p.Service != "crm" || p.ServiceKey != "key_1" || p.SigningKey != k.id || p.SessionID != "ses_crm_1" ||
		!p.ExpiresAt.Equal(testTime.Add(time.Hour)) || p.Kind != KindUser {
		t.Fatalf("%+v, %v", p, err)
	}
	g.Revoke("key_1", testTime.Add(time.Hour))
	if _, err := g.Verify(token); !errors.Is(err, ErrRevoked) {
		t.Fatal(err)
	}
}

// BenchmarkVerifyBesideRevocations is what a request costs that shows a remembered token,
// while many others are revoked.
func BenchmarkVerifyBesideRevocations(b *testing.B) {
	k := testKey(b)
	tok := issue(b, k, "alice")
	g := newFixture(b, k).gate
	g.cfg.Informed = func(time.Time) bool { return true }
	for i := range 100_000 {
		g.Revoke(fmt.Sprint("ses_", i), testTime.Add(time.Hour))
	}
	for b.Loop() {
		if _, err := g.Verify(tok); err != nil {
			b.Fatal(err)
		}
	}
}
