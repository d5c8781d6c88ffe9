package app_test

import (
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/parley-chat/parley/server/infra/testkit"
)

// The real binary serves REST beside the RPCs, behind the same gate, with the same
// metrics, and its description without one.
func TestREST(t *testing.T) {
	dir := t.TempDir()
	p := launch(t, dir, "127.0.0.1:0")
	alice := token(t, dir, "alice")
	do := func(method, path, bearer, body string) (status int, header http.Header, text string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+p.addr+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if body != "" {
			req.Header.Set("Content-Type", "application/json")
		}
		if bearer != "" {
			req.Header.Set("Authorization", "Bearer "+bearer)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, res.Header, string(b)
	}
	const direct = `{"type":"CHAT_TYPE_DIRECT","memberIds":["bob"]}`
	status, _, text := do("POST", "/api/v1/chats", alice, direct)
	chat := regexp.MustCompile(`chat_[0-9A-Z]{26}`).FindString(text)
	if status != 201 || chat == "" {
		t.Fatalf("%d %s", status, text)
	}
	if status, header, text := do("POST", "/api/v1/chats", alice, direct); status != 200 ||
		header.Get("X-Idempotent-Replay") != "true" {
		t.Errorf("%d %v %s", status, header, text)
	}
	if status, _, text := do("GET", "/api/v1/chats/"+chat, alice, ""); status != 200 || !strings.Contains(text, chat) {
		t.Errorf("%d %s", status, text)
	}
	if status, header, text := do("GET", "/api/v1/chats/"+chat, "x"+alice, ""); status != 401 ||
		!strings.Contains(text, "UNAUTHENTICATED") || header.Get("WWW-Authenticate") != "Bearer" {
		t.Errorf("%d %v %s", status, header, text)
	}
	if status, _, text := do("POST", "/api/v1/chats/"+chat+"/messages", alice, "{"); status != 400 ||
		!strings.Contains(text, "INVALID_ARGUMENT") {
		t.Errorf("%d %s", status, text)
	}
	for path, what := range map[string]string{"/docs/reference": "<h1>Parley REST API", "/docs": "<h1>Documents",
		"/api/v1/openapi.json": `"openapi": "3.1.0"`} {
		if status, _, text := do("GET", path, "", ""); status != 200 || !strings.Contains(text, what) {
			t.Errorf("%s: %d %.200s", path, status, text)
		}
	}
	for path, what := range map[string]string{
		"/nothing":                            "no such path; / is the chat, /try shows what there is, /docs has the documents\n",
		"/parley.chat.v2.ChatService/GetChat": "NO_SUCH_PROCEDURE", "/api/v1/x": "NO_SUCH_PATH"} {
		if status, _, text := do("POST", path, alice, "{}"); status != 404 || !strings.Contains(text, what) ||
			!strings.HasSuffix(text, "\n") {
			t.Errorf("%s: %d %q", path, status, text)
		}
	}
	_, _, metrics := do("GET", "/metrics", "", "")
	for _, line := range []string{`"ok".*CreateChat|CreateChat.*"ok"`, `"ok".*GetChat|GetChat.*"ok"`,
		`"invalid_argument".*SendMessage|SendMessage.*"invalid_argument"`} {
		if !regexp.MustCompile(line).MatchString(metrics) {
			t.Errorf("no metric matches %s", line)
		}
	}
	// L-165: each phase of the creation is timed, the last one when the event is in the log.
	for _, phase := range []string{"1", "kafka"} {
		count := `parley_chat_creation_duration_seconds_count{chat_type="direct",phase="` + phase + `"} 1`
		testkit.Eventually(t, count, func() bool {
			_, _, metrics = do("GET", "/metrics", "", "")
			return strings.Contains(metrics, count)
		})
	}
}
