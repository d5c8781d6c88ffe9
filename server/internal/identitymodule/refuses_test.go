package identitymodule

import (
	"testing"
	"time"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/identity/service"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// A user who is suspended or deleted, and a service account that has ended, are refused for good: also when all of
// their tokens have expired. Signing out everywhere refuses no user.
func TestRefuses(t *testing.T) {
	p := newProcess(t)
	want := func(user string, want bool) {
		t.Helper()
		got, err := p.Refuses(t.Context(), user)
		testkit.Must(t, err)
		testkit.Equal(t, user+" is refused", got, want)
	}
	for _, user := range []string{"ann", "bob", "cem"} {
		testkit.Must(t, p.cfg.Chats.EnsureUser(t.Context(), user))
		want(user, false)
	}
	want("never-there", false)
	_, err := p.accounts.Create(t.Context(), service.Account{ID: "hooks", Scopes: []string{string(service.ScopeUsers)}})
	testkit.Must(t, err)
	want(auth.ServiceUserPrefix+"hooks", false)
	want(auth.ServiceUserPrefix+"none", true)

	testkit.Must(t, p.people.Suspend(t.Context(), "ann"))
	testkit.Must(t, p.people.Delete(t.Context(), "bob", "bob"))
	_, err = p.accounts.Disable(t.Context(), "hooks")
	testkit.Must(t, err)
	token := testkit.Value(p.cfg.Key.IssueFor("cem", "ses_1", p.clock(), time.Hour))(t)
	testkit.Must(t, p.call("auth.v1.AuthService/RevokeAllSessions", token, `{}`))
	for range 2 {
		want("ann", true)
		want("bob", true)
		want("cem", false)
		want(auth.ServiceUserPrefix+"hooks", true)
		p.now.Add(int64(1000 * time.Hour))
	}
	testkit.Must(t, p.people.Restore(t.Context(), "ann"))
	want("ann", false)
}
