package auth

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

func header(values ...string) http.Header { return http.Header{"Authorization": values} }

// Tokens of operators and of users are no good for each other's services, and nobody
// else's key makes one.
func TestOperator(t *testing.T) {
	k, other := testKey(t), testKey(t)
	token, err := k.IssueOperator("ada@example.org", testTime, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	op, err := k.Operator(header("bearer "+token), testTime.Add(time.Minute))
	if err != nil || op.Name != "ada@example.org" || !op.ExpiresAt.Equal(testTime.Add(time.Hour)) {
		t.Fatalf("%+v, %v", op, err)
	}
	if _, err := k.verify(token, testTime); !errors.Is(err, ErrInvalidToken) {
		t.Errorf("an operator is a user: %v", err)
	}
	user, err := k.Issue("ada", testTime, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := other.IssueOperator("ada", testTime, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	sign := func(c claims) (string, error) {
		c.Audience = jwt.ClaimStrings{OperatorAudience}
		return k.sign(c, testTime, time.Hour)
	}
	odd, err := sign(claims{RegisteredClaims: jwt.RegisteredClaims{Subject: "ada"}, SessionID: "ses_1"})
	if err != nil {
		t.Fatal(err)
	}
	bad, err := sign(claims{RegisteredClaims: jwt.RegisteredClaims{Subject: "a b"}})
	if err != nil {
		t.Fatal(err)
	}
	king, err := sign(claims{RegisteredClaims: jwt.RegisteredClaims{Subject: "ada"}, Role: "king"})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		header http.Header
		at     time.Time
		want   error
	}{
		"none":        {http.Header{}, testTime, ErrMissingToken},
		"a user's":    {header("Bearer " + user), testTime, ErrInvalidToken},
		"another key": {header("Bearer " + foreign), testTime, ErrInvalidToken},
		"two":         {header("Bearer "+token, "Bearer "+token), testTime, ErrInvalidToken},
		"basic":       {header("Basic " + token), testTime, ErrInvalidToken},
		"a session":   {header("Bearer " + odd), testTime, ErrInvalidToken},
		"a bad name":  {header("Bearer " + bad), testTime, ErrInvalidToken},
		"no role":     {header("Bearer " + king), testTime, ErrInvalidToken},
		"late":        {header("Bearer " + token), testTime.Add(time.Hour + time.Minute), ErrTokenExpired},
		"early":       {header("Bearer " + token), testTime.Add(-time.Minute), ErrInvalidToken},
		"long":        {header("Bearer " + strings.Repeat("x", 8<<10+1)), testTime, ErrInvalidToken},
	} {
		if op, err := k.Operator(c.header, c.at); !errors.Is(err, c.want) {
			t.Errorf("%s: %+v, %v", name, op, err)
		}
	}
	for _, name := range []string{"", "a b", "-x", "é", strings.Repeat("x", 65)} {
		if _, err := k.IssueOperator(name, testTime, time.Hour); err == nil {
			t.Errorf("%q is a name", name)
		}
	}
}

// A token has one role, which includes those below it. One of the release before has none and
// stays good for everything.
func TestRoles(t *testing.T) {
	k := testKey(t)
	old, err := k.sign(claims{RegisteredClaims: jwt.RegisteredClaims{Subject: "ada",
		Audience: jwt.ClaimStrings{OperatorAudience}}}, testTime, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	tokens := map[string]Role{old: Admin}
	for _, role := range Roles() {
		token, err := k.IssueRole("ada", role, testTime, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		tokens[token] = role
	}
	for token, want := range tokens {
		if op, err := k.Operator(header("Bearer "+token), testTime); err != nil || op.Role != want {
			t.Errorf("%+v, %v; want the role %s", op, err, want)
		}
	}
	for _, role := range []Role{"", "king", "Admin"} {
		if _, err := k.IssueRole("ada", role, testTime, time.Hour); err == nil {
			t.Errorf("%q is a role", role)
		}
	}
	for role, includes := range map[Role][]Role{
		Viewer: {Viewer}, Moderator: {Viewer, Moderator}, Admin: {Viewer, Moderator, Admin}, "": nil, "king": nil,
	} {
		for _, least := range append(Roles(), "", "king") {
			if got, want := role.Includes(least), slices.Contains(includes, least); got != want {
				t.Errorf("%q includes %q: %v", role, least, got)
			}
		}
	}
}
