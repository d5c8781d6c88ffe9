package serviceapi

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"connectrpc.com/connect"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	servicev1 "github.com/parley-chat/parley/gen/parley/service/v1"
	"github.com/parley-chat/parley/server/auth"
)

// An account that loses a right loses what it has open, and the tokens that it asked for.
func TestLostScopes(t *testing.T) {
	i := install(t)
	bot := i.as(i.account("bot", "api", "tokens.issue", "users:*"), "")
	issued, err := bot.backend.IssueUserToken(t.Context(), &servicev1.IssueUserTokenRequest{UserId: "ann"})
	i.must(err)
	stream, err := bot.delivery.Subscribe(t.Context(), &deliveryv1.SubscribeRequest{})
	i.must(err)
	defer stream.Close()
	if !stream.Receive() {
		t.Fatal(stream.Err())
	}
	time.Sleep(time.Second) // tokens say their time to the second
	_, err = i.accounts.SetScopes(t.Context(), "bot", []string{"topics"})
	i.must(err)
	for stream.Receive() { // until the server ends it
	}
	_, err = i.as(issued.GetAccessToken(), "").chats.ListChats(t.Context(), &chatv1.ListChatsRequest{})
	if code(err) != connect.CodeUnauthenticated {
		t.Error(err)
	}
}

// suspension is a user who is suspended just after having been active.
type suspension func()

// Active implements Config.Users.
func (s suspension) Active(context.Context, string) (bool, error) {
	s()
	return true, nil
}

// A token of who is suspended while it is made is of before, and ends with all others; a
// session is revoked for as long as its tokens may live, and not longer.
func TestTokenOfWhoIsBeingSuspended(t *testing.T) {
	key, err := auth.LoadKey(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	gate, err := auth.NewGate(auth.Config{Key: key, Clock: func() time.Time { return now },
		EnsureUser: func(context.Context, string) error { return nil },
		Refuse:     func(http.ResponseWriter, *http.Request, error) {}})
	if err != nil {
		t.Fatal(err)
	}
	ended := time.Time{}
	s := New(Config{Key: key, Clock: func() time.Time { return now },
		Revoker: revoker(func(until time.Time) { ended = until }),
		Users: suspension(func() {
			now = now.Add(2 * time.Second)
			gate.Apply(auth.Revocation{Kind: auth.RevokedUser, ID: "ann", Before: now, Until: now.Add(time.Hour)})
			now = now.Add(2 * time.Second)
		})})
	ctx := auth.WithPrincipal(t.Context(), auth.Principal{Kind: auth.KindService, Service: "shop", SessionID: "key_1",
		Scopes: "tokens.issue users:*"})
	issued, err := s.IssueUserToken(ctx, &servicev1.IssueUserTokenRequest{UserId: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := gate.Verify(issued.GetAccessToken()); !errors.Is(err, auth.ErrRevoked) {
		t.Error("the token outlives the suspension:", err)
	}
	_, err = s.EndUserSession(ctx, &servicev1.EndUserSessionRequest{SessionId: issued.GetSessionId()})
	if life := ended.Sub(now); err != nil || life < time.Hour || life > time.Hour+5*time.Minute {
		t.Error(life, err)
	}
}

// revoker notes until when a session is revoked.
type revoker func(until time.Time)

// RevokeSession implements Config.Revoker.
func (r revoker) RevokeSession(_ context.Context, _ string, until time.Time) error {
	r(until)
	return nil
}
