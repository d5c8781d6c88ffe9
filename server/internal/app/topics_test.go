package app_test

import (
	"encoding/base64"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/gen/parley/topic/v1/topicv1connect"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/testkit"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
)

// The real binary serves topics to users by REST, with bodies of megabytes, and to
// operators on their own listener.
func TestTopics(t *testing.T) {
	dir := t.TempDir()
	p := launch(t, dir, "127.0.0.1:0", "--ops-listen", "127.0.0.1:0", "--topic-creators", "alice,carol")
	tokens := map[string]string{"alice": token(t, dir, "alice"), "bob": token(t, dir, "bob")}
	do := func(user, method, path, body string) (status int, text string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+p.addr+"/api/v1"+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if body != "" {
			req.Header.Set("Content-Type", "application/json")
		}
		req.Header.Set("Authorization", "Bearer "+tokens[user])
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		// The library writes a space behind some of the marks, or not, as it likes.
		return res.StatusCode, strings.NewReplacer(`": `, `":`, `, "`, `,"`).Replace(string(b))
	}
	large := base64.StdEncoding.EncodeToString(make([]byte, 1<<20))
	three := `{"messages":[{"payload":"` + large + `"},{"payload":"` + large + `"},{"key":"k","payload":"` + large + `"}]}`
	session := ""
	for _, tt := range []struct {
		user, method, path, body string
		status                   int
		text                     string
	}{
		{"alice", "PUT", "/topics/work", `{}`, 200, `"created":true`},
		{"alice", "PUT", "/topics/work", `{}`, 200, `"created":false`},
		{"alice", "PUT", "/topics/-work", `{}`, 400, "a name is 1 to 255 letters, digits, dots, hyphens or underscores"},
		{"bob", "PUT", "/topics/mine", `{}`, 403, "TOPIC_FORBIDDEN"},
		{"bob", "POST", "/topics/work/messages", `{"messages":[{"payload":"eA=="}]}`, 403, "TOPIC_FORBIDDEN"},
		{"alice", "PUT", "/topics/work/bindings/bob", `{"role":"ROLE_PUBLISHER"}`, 204, ""},
		{"bob", "POST", "/topics/work/messages", three, 200, `"messageId":"0-2"`},
		{"bob", "POST", "/topics/work/messages", three + strings.Repeat(" ", 6<<20), 413, "REQUEST_TOO_LARGE"},
		{"alice", "PUT", "/topics/work", `{` + strings.Repeat(" ", 128<<10) + `}`, 413, "REQUEST_TOO_LARGE"},
		{"alice", "GET", "/topics/work/subscriptions/$queue", "", 200, `"pending":"3"`},
		{"alice", "PATCH", "/topics/work/subscriptions/$queue", `{"config":{"retry":{"lease":"120s"}},"updateMask":"retry.lease"}`, 200,
			`"lease":"120s"`},
		{"alice", "PATCH", "/topics/work/subscriptions/$queue", `{"config":{"retry":{"lease":"60s"}},"etag":"x"}`, 409,
			"its etag is not"},
		{"alice", "PATCH", "/topics/work/subscriptions/$queue", `{"config":{"retry":{"laese":"60s"}}}`, 400, "laese"},
		{"bob", "PATCH", "/topics/work/subscriptions/$queue", `{"config":{"retry":{"lease":"60s"}}}`, 403,
			"TOPIC_FORBIDDEN"},
		{"alice", "POST", "/topics/work/subscriptions/$queue:pull", `{"maxMessages":2}`, 200, `"session":"`},
		{"alice", "POST", "/topic-sessions/{session}:ack", `{"set":{"positions":[{"base":"0"}]}}`, 200, `"refusals":[]`},
		{"alice", "POST", "/topic-sessions/{session}:extend", ``, 200, `"refusals":[]`},
		{"alice", "POST", "/topic-sessions/{session}:detach", ``, 204, ""},
		{"alice", "POST", "/topic-sessions/{session}:ack", `{"set":{"positions":[{"base":"0"}]}}`, 404, "SESSION_GONE"},
		{"alice", "GET", "/topics/work/messages/0-0/status", "", 200, "MESSAGE_STATUS_COMPLETED"},
		{"alice", "POST", "/topics/work/subscriptions/$queue:dance", `{}`, 404, "NO_SUCH_PATH"},
		{"alice", "POST", "/topics/work/subscriptions/:pause", `{}`, 404, "NO_SUCH_PATH"},
		{"alice", "GET", "/topic-modes?groups=20", "", 200, "COMPLETION_MODE_OFFSET_WATERMARK"},
		{"alice", "DELETE", "/topics/work/bindings/bob", "", 204, ""},
		{"alice", "DELETE", "/topics/work", "", 204, ""},
		{"alice", "GET", "/topics/work", "", 404, "TOPIC_NOT_FOUND"},
	} {
		status, text := do(tt.user, tt.method, strings.ReplaceAll(tt.path, "{session}", session), tt.body)
		if status != tt.status || !strings.Contains(text, tt.text) {
			t.Errorf("%s %s of %s: %d %.300s; want %d %s", tt.method, tt.path, tt.user, status, text, tt.status, tt.text)
		}
		if m := regexp.MustCompile(`"session":"([^"]+)"`).FindStringSubmatch(text); m != nil {
			session = m[1]
		}
	}

	key, err := auth.ReadKey(filepath.Join(dir, "auth.key"))
	if err != nil {
		t.Fatal(err)
	}
	ada, err := key.IssueOperator("ada", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	base := "http://" + opsOf(t, p)
	operator := topicv1connect.NewTopicServiceClient(&http.Client{Transport: bearer{ada, newTransport(t, true)}}, base)
	if _, err := operator.ConfigureTopic(t.Context(), &topicv1.ConfigureTopicRequest{Topic: "ops"}); err != nil {
		t.Errorf("an operator: %v", err)
	}
	user := topicv1connect.NewTopicServiceClient(
		&http.Client{Transport: bearer{tokens["alice"], newTransport(t, true)}}, base)
	if _, err := user.GetTopic(t.Context(), &topicv1.GetTopicRequest{Topic: "ops"}); err == nil {
		t.Error("the listener of operators serves users")
	}
	status, _ := do("alice", "GET", "/topics/ops", "")
	testkit.Equal(t, "another's topic", status, 403)

	code, _, stderr := run(t.Context(), nil, "--topic-creators", "not a user", "--data-dir", t.TempDir())
	if code == 0 || !strings.Contains(stderr, "topic-creators: ") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}
