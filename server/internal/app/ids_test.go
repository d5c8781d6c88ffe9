package app_test

import (
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// Users of other systems keep their ids (L-011): subjects of identity providers, e-mail
// addresses, UUIDs. They get tokens, are added, write, are shown and removed, by RPC and,
// percent-encoded in the path, by REST.
func TestForeignUserIDs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := launch(t, dir, "127.0.0.1:0")
	ids := []string{
		"alice@example.com", "auth0|123", "3b241101-e2bb-4255-8caf-4136c566a962", "urn:user:7", "100%", "a%2Fb?c=d&e", "...",
		"Łukasz", `"q"`,
	}
	alice := newUser(ids[0], token(t, dir, ids[0]), p.addr, newTransport(t, false))
	created, err := alice.chats.CreateChat(t.Context(),
		&chatv1.CreateChatRequest{Type: chatv1.ChatType_CHAT_TYPE_GROUP, Name: "Tea", MemberIds: []string{"bob"}})
	if err != nil {
		t.Fatal(err)
	}
	chat := created.GetOverview().GetChat().GetChatId()
	rest := func(verb, path, body string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), verb, "http://"+p.addr+"/api/v1/chats/"+chat+path,
			strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token(t, dir, ids[0]))
		req.Header.Set("Content-Type", "application/json")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		text, _ := io.ReadAll(res.Body)
		return res.StatusCode, string(text)
	}
	for i, id := range ids[1:] {
		u := newUser(id, token(t, dir, id), p.addr, newTransport(t, true))
		if _, err := u.delivery.Sync(t.Context(), &deliveryv1.SyncRequest{}); err != nil { // now the user is there
			t.Fatalf("%s: %v", id, err)
		}
		member := "/members/" + url.PathEscape(id)
		byREST := i%2 == 0
		if byREST {
			if status, text := rest("POST", "/members", `{"userId":`+strconv.Quote(id)+`}`); status != http.StatusCreated {
				t.Errorf("%s is not added: %d %s", id, status, text)
			}
			if status, text := rest("PATCH", member, `{"role":"MEMBER_ROLE_ADMIN"}`); status != http.StatusOK ||
				!strings.Contains(text, strconv.Quote(id)) {
				t.Errorf("%s does not become an administrator: %d %s", id, status, text)
			}
		} else if _, err := alice.chats.AddMember(t.Context(),
			&chatv1.AddMemberRequest{ChatId: chat, UserId: id}); err != nil {
			t.Errorf("%s is not added: %v", id, err)
		}
		if _, err := u.messages.SendMessage(t.Context(),
			&messagev1.SendMessageRequest{ChatId: chat, Content: "I am " + id}); err != nil {
			t.Errorf("%s does not write: %v", id, err)
		}
		list, err := u.messages.ListMessages(t.Context(), &messagev1.ListMessagesRequest{ChatId: chat})
		if n := len(list.GetMessages()); err != nil || n != i+1 {
			t.Fatalf("%s reads %d messages, %v", id, n, err)
		}
		if last := list.GetMessages()[i]; last.GetSenderId() != id {
			t.Errorf("%s is shown as %s", id, last.GetSenderId())
		}
		if byREST {
			if status, text := rest("DELETE", member, ""); status != http.StatusNoContent {
				t.Errorf("%s is not removed: %d %s", id, status, text)
			}
		} else if _, err := alice.chats.RemoveMember(t.Context(),
			&chatv1.RemoveMemberRequest{ChatId: chat, UserId: id}); err != nil {
			t.Errorf("%s is not removed: %v", id, err)
		}
		direct, err := u.chats.CreateChat(t.Context(),
			&chatv1.CreateChatRequest{Type: chatv1.ChatType_CHAT_TYPE_DIRECT, MemberIds: []string{ids[0]}})
		if err != nil || direct.GetOverview().GetChat().GetType() != chatv1.ChatType_CHAT_TYPE_DIRECT {
			t.Errorf("%s makes no direct chat: %v", id, err)
		}
	}
	// Their events go through Kafka and its rules: chats, members, messages, a direct chat each.
	handled := regexp.MustCompile(`(?m)^parley_fanout_handled_total (\d+)$`)
	var metrics string
	testkit.Eventually(t, "fanout has handled the events of all users", func() bool {
		_, metrics = get(t, "http://"+p.addr+"/metrics")
		n, _ := strconv.Atoi(handled.FindStringSubmatch(metrics)[1])
		return n >= 5*len(ids[1:])
	})
	if !strings.Contains(metrics, "\nparley_fanout_dead_letters_total 0\n") {
		t.Error("events of these users are dead letters")
	}
	for _, id := range []string{"a b", "a#b", "a/b", ".."} {
		if code, _, stderr := run(t.Context(), nil, "--data-dir", dir, "token", id); code != 2 ||
			strings.Count(stderr, "\n") != 1 {
			t.Errorf("a token for %q: %d %s", id, code, stderr)
		}
		if status, text := rest("POST", "/members", `{"userId":`+strconv.Quote(id)+`}`); status != http.StatusBadRequest {
			t.Errorf("%q is added: %d %s", id, status, text)
		}
	}
}

// A newcomer's first mistakes with tokens are told apart, over REST and RPC alike.
func TestTokenMistakes(t *testing.T) {
	t.Parallel()
	dir, other := t.TempDir(), t.TempDir()
	_, _, stop := greeted(t, "127.0.0.1:0", other)
	foreign := token(t, other, "alice")
	stop()
	greeting, _, _ := greeted(t, "127.0.0.1:0", dir)
	addr := listening.FindStringSubmatch(greeting)[1]
	good := token(t, dir, "alice")
	for header, says := range map[string]string{
		"":                          "an access token is required: Authorization: Bearer",
		"Bearer ":                   "an access token is required", // of a shell's variable that is not set
		good:                        "the header must be one: Authorization: Bearer",
		"Token " + good:             "the header must be one: Authorization: Bearer",
		"Bearer " + foreign:         "another server's, or of an older data directory",
		"Bearer x" + good:           "the access token is not valid",
		"Bearer " + good[:40]:       "the access token is not valid",
		"Bearer " + good + "x":      "the access token is not valid",
		"Bearer $ALICE":             "the access token is not valid",
		"Bearer (user id is not …)": "the access token is not valid",
		"Bearer \"" + good + "\"":   "the access token is not valid",
	} {
		for _, path := range []string{"/api/v1/chats", "/parley.chat.v1.ChatService/ListChats"} {
			method := http.MethodGet
			if path[1] == 'p' {
				method = http.MethodPost
			}
			req, err := http.NewRequestWithContext(t.Context(), method, "http://"+addr+path, strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			if method == http.MethodGet {
				req.Body, req.ContentLength = http.NoBody, 0
			}
			req.Header.Set("Content-Type", "application/json")
			if header != "" {
				req.Header.Set("Authorization", header)
			}
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			text, _ := io.ReadAll(res.Body)
			_ = res.Body.Close()
			if res.StatusCode != http.StatusUnauthorized || !strings.Contains(string(text), says) ||
				!strings.Contains(string(text), "UNAUTHENTICATED") {
				t.Errorf("%.30s at %s: %s %s", header, path, res.Status, text)
			}
		}
	}
}
