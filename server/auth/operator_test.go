package auth

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"
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
	odd, err := k.sign("ada", OperatorAudience, "ses_1", testTime, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	bad, err := k.sign("a b", OperatorAudience, "", testTime, time.Hour)
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
		"late":        {header("Bearer " + token), testTime.Add(time.Hour + time.Minute), ErrTokenExpired},
		"early":       {header("Bearer " + token), testTime.Add(-time.Minute), ErrInvalidToken},
		"long":        {header("Bearer " + strings.Repeat("x", maxToken+1)), testTime, ErrInvalidToken},
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
