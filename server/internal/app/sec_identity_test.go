package app

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/identity/admin"
	"github.com/parley-chat/parley/server/identity/identifier"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// secAccounts are service accounts with their scopes: two back ends that speak for customers of their own,
// and one that can make users and nothing else.
var secAccounts = map[string][]string{
	"shop":  {"tokens.issue", "users.write", "users:customer-"},
	"rival": {"tokens.issue", "users.write", "users:guest-"},
	"idle":  {"users.write", "users:idle-"},
}

// accounts makes the service accounts, with a key each. The first call writes the row of the user that it is.
func (w *secWorld) accounts() {
	w.Helper()
	services := w.p.identity.Parts().Services
	for id, scopes := range secAccounts {
		_, err := services.Create(w.Context(), admin.Service{ID: id, Description: "of a test", Scopes: scopes,
			CreatedBy: "ada"})
		w.must(err)
		_, secret, err := services.CreateKey(w.Context(), id, "ada", time.Now().Add(time.Hour))
		w.must(err)
		w.tokens[id] = secret
		w.result("service.v1.BackendService/CreateUser", id, map[string]any{
			"userId": strings.TrimPrefix(scopes[len(scopes)-1], auth.ScopeUsers) + "1"})
	}
}

// caller is who calls a procedure that is tried with nonsense: a back end where users may not call at all.
func (m secMethod) caller() string {
	if strings.HasPrefix(m.procedure, "/parley.service.") {
		return "shop"
	}
	return "ann"
}

// secCaller takes who calls off a body of the table.
func secCaller(template string) (user, body string) {
	if strings.HasPrefix(template, "{") {
		return "ann", template
	}
	user, body, _ = strings.Cut(template, ":")
	return user, body
}

// secCode is the line of the log that has a code. It is there for developers on their own machine, who get codes
// this way.
var secCode = regexp.MustCompile(`msg="a code to sign in with" identifier=(\S+) code=(\d{6})[^\n]*`)

// code asks for a code, once for each address, and returns it with the id of its request.
func (w *secWorld) code(address string) (request, code string) {
	w.Helper()
	answer := w.result("auth.v1.AuthService/RequestCode", "ann", map[string]any{"identifier": address})
	testkit.Eventually(w, "the code is in the log", func() bool {
		for _, m := range secCode.FindAllStringSubmatch(w.log.String(), -1) {
			if m[1] == address {
				code = m[2]
			}
		}
		return code != ""
	})
	return answer["requestId"].(string), code
}

// signIn begins a session of a user, once for each, whose access token is the user's from then on.
func (w *secWorld) signIn(user string) (session, refresh string) {
	w.Helper()
	id, err := identifier.Parse(user + "@example.com")
	w.must(err)
	w.must(w.p.chats.EnsureUser(w.Context(), user))
	w.must(identifier.NewDirectory(w.p.backend.Store, time.Now).Bind(w.Context(), user, id))
	request, code := w.code(id.Value())
	tokens := w.result("auth.v1.AuthService/VerifyCode", "ann", map[string]any{"identifier": id.Value(),
		"requestId": request, "code": code})["tokens"].(map[string]any)
	if tokens["userId"] != user {
		w.Fatalf("%s signs in as %v", user, tokens["userId"])
	}
	w.tokens[user], w.tokens["refresh of "+user] = tokens["accessToken"].(string), tokens["refreshToken"].(string)
	return tokens["sessionId"].(string), tokens["refreshToken"].(string)
}

// people adds what procedures of people are tried on: somebody who has signed in just now, whom nobody
// misses afterwards; somebody else who has; codes, sessions, invitations.
func (w *secWorld) people(t secThings, n int) {
	w.Helper()
	gone, host := fmt.Sprintf("gone-%d", n), fmt.Sprintf("host-%d", n)
	t.own["gone"], t.own["proof"] = gone, fmt.Sprintf("proof-%d@example.com", n)
	t.own["fresh"], t.own["handle"] = fmt.Sprintf("fresh.%d", n), fmt.Sprintf("host.%d", n)
	t.own["host"] = host + "@example.com"
	t.own["session"], t.own["refresh"] = w.signIn(gone)
	t.own["request"], t.own["code"] = w.code(t.own["proof"])
	t.theirs["session"], _ = w.signIn(host)
	t.none["session"] = "ses_" + strings.Repeat("0", 26)
	w.result("user.v1.UserService/UpdateSettings", host, map[string]any{"findableByIdentifier": true})
	w.result("user.v1.UserService/SetHandle", host, map[string]any{"handle": t.own["handle"]})
	for _, i := range []struct{ by, chat, user string }{{"ann", t.own["chat"], gone}, {"yan", t.theirs["chat"], "new"}} {
		w.result("user.v1.UserService/InviteToChat", i.by, map[string]any{"chatId": i.chat, "userId": i.user})
	}
}

// customers adds what procedures of back ends are tried on: sessions that the shop began, and those of its rival.
func (w *secWorld) customers(t secThings) {
	w.Helper()
	session := func(of, user string) string {
		return w.result("service.v1.BackendService/IssueUserToken", of,
			map[string]any{"userId": user})["sessionId"].(string)
	}
	t.own["customer"], t.own["session"] = "customer-1", session("shop", "customer-1")
	t.theirs["session"], t.none["session"] = session("rival", "guest-1"), "ses_rival_NONE"
}

// codesOfOthers tries codes with what belongs to others: the id of a request, the identifier. All is answered like a
// wrong code, and the codes are good afterwards.
func (w *secWorld) codesOfOthers() {
	w.Helper()
	type proof struct{ identifier, request, code string }
	var ann, yan proof
	ann.identifier, yan.identifier = "ann.code@example.com", "yan.code@example.com"
	ann.request, ann.code = w.code(ann.identifier)
	yan.request, yan.code = w.code(yan.identifier)
	verify := func(p proof) secAnswer {
		return w.send("/parley.auth.v1.AuthService/VerifyCode", "application/json", fmt.Appendf(nil,
			`{"identifier":%q,"requestId":%q,"code":%q}`, p.identifier, p.request, p.code), "")
	}
	var missing secAnswer
	for i, p := range []proof{{ann.identifier, "NONE", ann.code}, {ann.identifier, yan.request, ann.code},
		{ann.identifier, yan.request, yan.code}, {yan.identifier, ann.request, ann.code},
		{"nobody.code@example.com", yan.request, yan.code}} {
		a := verify(p)
		if i == 0 {
			missing = a
		}
		if a.reason != "INVALID_CODE" || a.said("") != missing.said("") {
			w.Errorf("a code of others, %d: %d %s %s", i, a.status, a.reason, a.body)
		}
	}
	for _, p := range []proof{ann, yan} {
		if a := verify(p); a.status != http.StatusOK {
			w.Errorf("the own code of %s: %d %s", p.identifier, a.status, a.body)
		}
		if a := verify(p); a.reason != "INVALID_CODE" {
			w.Errorf("the code of %s again: %d %s", p.identifier, a.status, a.body)
		}
	}
}
