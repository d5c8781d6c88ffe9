package app_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	userv1 "github.com/parley-chat/parley/gen/parley/user/v1"
	"github.com/parley-chat/parley/gen/parley/user/v1/userv1connect"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// Who calls without a token that anybody issued is refused by the address after a while, whatever
// the protocol; others from there are not, nor is an old token answered by anything else.
func TestStrangersOfAnAddress(t *testing.T) {
	dir := t.TempDir()
	p := launch(t, dir, "127.0.0.1:0", "--limits", "strangers=1/h:3", "--behind-proxy", "1",
		"--metrics-listen", "127.0.0.1:0")
	tr := newTransport(t, false)
	call := func(path, address, token string) (int, string) {
		return ask(t, &http.Client{Transport: tr}, http.MethodPost, "http://"+p.addr+path, func(r *http.Request) {
			r.Body = io.NopCloser(strings.NewReader(`{}`))
			r.Header.Set("Content-Type", "application/json")
			r.Header.Set("X-Forwarded-For", address)
			if token != "" {
				r.Header.Set("Authorization", "Bearer "+token)
			}
		})
	}
	const list = "/parley.chat.v1.ChatService/ListChats"
	for _, s := range []struct {
		path, address, token string
		want                 int
	}{
		{list, "198.51.100.1", "", 401}, {list, "198.51.100.1", "guess", 401}, {"/api/v1/chats", "198.51.100.1", "", 401},
		{list, "198.51.100.1", "", 429}, {list, "198.51.100.1", "guess", 429}, {"/api/v1/chats", "198.51.100.1", "", 429},
		{list, "198.51.100.2", "", 401}, {list, "198.51.100.1", token(t, dir, "alice"), 200},
	} {
		if status, body := call(s.path, s.address, s.token); status != s.want ||
			s.want == 429 && !strings.Contains(body, "RATE_LIMITED") {
			t.Errorf("%s from %s with %.8q: %d %s, want %d", s.path, s.address, s.token, status, body, s.want)
		}
	}
	if n := scrape(t, p.metricsListener(t), `parley_limits_refused_total{limit="strangers"}`); n != 3 {
		t.Errorf("%v refusals are counted", n)
	}
}

// What is more at once than a rule lets through is refused for good, and takes nothing; what
// people do with their accounts has limits.
func TestLimitsOfAccounts(t *testing.T) {
	dir := t.TempDir()
	p := launch(t, dir, "127.0.0.1:0", "--limits", "add_member=1/h:2,new_add_member=off,new_create_group=1/d:1,lookup_identifier=1/d:2")
	tr := newTransport(t, false)
	names := []string{"b", "c", "d"}
	for _, name := range names {
		_, err := newUser(name, token(t, dir, name), p.addr, tr).chats.ListChats(t.Context(), &chatv1.ListChatsRequest{})
		testkit.Must(t, err)
	}
	alice := newUser("alice", token(t, dir, "alice"), p.addr, tr)
	group := func(members ...string) error {
		_, err := alice.chats.CreateChat(t.Context(), &chatv1.CreateChatRequest{Name: "group",
			Type: chatv1.ChatType_CHAT_TYPE_GROUP, MemberIds: members})
		return err
	}
	over := new(connect.Error)
	if err := group(names...); !asError(err, &over) || reasonOf(over) != "TOO_LARGE" ||
		!strings.Contains(over.Message(), "2 at most") || over.Meta().Get("Retry-After") != "" {
		t.Errorf("three members where two may be: %v", err)
	}
	testkit.Must(t, group("b", "c"))

	people := userv1connect.NewUserServiceClient(&http.Client{Transport: bearer{token(t, dir, "alice"), tr}},
		"http://"+p.addr)
	for i := range 3 {
		_, err := people.LookupByIdentifier(t.Context(), &userv1.LookupByIdentifierRequest{Identifier: "x@example.com"})
		if limited := asError(err, &over) && reasonOf(over) == "RATE_LIMITED"; limited != (i == 2) {
			t.Errorf("look-up %d: %v", i, err)
		}
	}
}

// Operators see the limits, and what somebody has left of one, which stays.
func TestOperatorsReadLimits(t *testing.T) {
	dir := t.TempDir()
	p := launch(t, dir, "127.0.0.1:0", "--ops-listen", "127.0.0.1:0", "--limits", "lookup_identifier=1/d:3")
	alice := userv1connect.NewUserServiceClient(&http.Client{Transport: bearer{token(t, dir, "alice"),
		newTransport(t, false)}}, "http://"+p.addr)
	_, err := alice.LookupByIdentifier(t.Context(), &userv1.LookupByIdentifierRequest{Identifier: "x@example.com"})
	if connect.CodeOf(err) != connect.CodeNotFound {
		t.Fatal(err)
	}
	for range 10 {
		out, ok := operatorRuns(t, p, dir, "limits", "show", "lookup_identifier", "alice")
		if fields := strings.Fields(out); !ok || len(fields) < 2 || fields[0] != "left" || fields[1] != "2" {
			t.Fatalf("%t: %s", ok, out)
		}
	}
	if out, ok := operatorRuns(t, p, dir, "limits", "list"); !ok || !strings.Contains(out, "otp_network") ||
		!strings.Contains(out, "is refused") {
		t.Errorf("%t: %s", ok, out)
	}
	if out, ok := operatorRuns(t, p, dir, "limits", "show", "made up", "alice"); ok {
		t.Error(out)
	}
}

// Chats without an answer are not hidden by a hundred others with newer messages.
func TestUnansweredBehindOthers(t *testing.T) {
	dir := t.TempDir()
	p := launch(t, dir, "127.0.0.1:0", "--limits", "unanswered=1/d:1,create_group=off,new_create_group=off,"+
		"add_member=off,new_add_member=off,user_requests=off,session_requests=off")
	tr := newTransport(t, false)
	for _, name := range []string{"b", "c"} {
		_, err := newUser(name, token(t, dir, name), p.addr, tr).chats.ListChats(t.Context(), &chatv1.ListChatsRequest{})
		testkit.Must(t, err)
	}
	alice := newUser("alice", token(t, dir, "alice"), p.addr, tr)
	create := func(kind chatv1.ChatType, name, member string) error {
		_, err := alice.chats.CreateChat(t.Context(), &chatv1.CreateChatRequest{Name: name, Type: kind,
			MemberIds: []string{member}})
		return err
	}
	testkit.Must(t, create(chatv1.ChatType_CHAT_TYPE_DIRECT, "", "b"))
	var groups errgroup.Group
	for range 101 {
		groups.Go(func() error { return create(chatv1.ChatType_CHAT_TYPE_GROUP, "group", "b") })
	}
	testkit.Must(t, groups.Wait())
	over := new(connect.Error)
	if err := create(chatv1.ChatType_CHAT_TYPE_DIRECT, "", "c"); !asError(err, &over) || reasonOf(over) != "RATE_LIMITED" {
		t.Errorf("a second chat without an answer: %v", err)
	}
}
