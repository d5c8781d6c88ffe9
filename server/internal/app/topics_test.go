package app_test

import (
	"bufio"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/parley-chat/parley/gen/parley/topic/v1/topicv1connect"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/infra/testkit"

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
	consumeEvents(t, "http://"+p.addr+"/api/v1", tokens["alice"], do)
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

// consumeEvents consumes a topic with server-sent events, and calls beside them: only as much comes as
// there are credits for, an acknowledgement brings more, and what a stream leaves comes on the next one.
func consumeEvents(
	t *testing.T, api, token string, do func(user, method, path, body string) (status int, text string),
) {
	t.Helper()
	must := func(method, path, body string) {
		t.Helper()
		if status, text := do("alice", method, path, body); status >= 300 {
			t.Fatalf("%s %s: %d %s", method, path, status, text)
		}
	}
	must("PUT", "/topics/events", `{"config":{"semantics":"SEMANTICS_PUB_SUB"}}`)
	must("POST", "/topics/events/subscriptions", `{"group":"g","config":{"retry":{"lease":"1s"}}}`)
	must("POST", "/topics/events/messages",
		`{"messages":[{"payload":"MA=="},{"payload":"MQ=="},{"payload":"Mg=="}]}`)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	open := func(query string) (next func() *topicv1.ConsumeResponse, end func()) {
		url := api + "/topics/events/subscriptions/g/stream" + query
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		testkit.Must(t, err)
		req.Header.Set("Authorization", "Bearer "+token)
		res, err := http.DefaultClient.Do(req)
		testkit.Must(t, err)
		testkit.Equal(t, "type", res.Header.Get("Content-Type"), "text/event-stream")
		lines := bufio.NewScanner(res.Body)
		return func() *topicv1.ConsumeResponse {
			for lines.Scan() {
				if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
					m := &topicv1.ConsumeResponse{}
					if testkit.Must(t, protojson.Unmarshal([]byte(data), m)); m.GetAlive() == nil {
						return m
					}
				} else if lines.Text() != "" {
					t.Fatalf("line %q", lines.Text())
				}
			}
			t.Fatal("the stream has ended: ", lines.Err())
			return nil
		}, func() { testkit.Must(t, res.Body.Close()) }
	}
	next, end := open("?member=m&messages=2&bytes=100000")
	session := next().GetAttached()
	testkit.Equal(t, "member", session.GetMember(), "m")
	var got string
	for len(got) < 2 {
		for _, m := range next().GetDelivery().GetMessages() {
			got += string(m.GetPayload())
		}
	}
	testkit.Equal(t, "as many as there are credits for", got, "01")
	must("POST", "/topic-sessions/"+session.GetSession()+":ack", `{"set":{"positions":[{"base":"0"}]}}`)
	testkit.Equal(t, "after the acknowledgement", next().GetDelivery().GetBase(), 2)
	end()
	next, end = open("")
	defer end()
	session = next().GetAttached()
	for left := map[int64]bool{1: true, 2: true}; len(left) > 0; { // they come one by one: the first stream broke
		if d := next().GetDelivery(); d != nil {
			delete(left, d.GetBase())
			must("POST", "/topic-sessions/"+session.GetSession()+":ack",
				fmt.Sprintf(`{"set":{"positions":[{"base":"%d"}]}}`, d.GetBase()))
		}
	}
	for query, want := range map[string]string{
		"?messages=x": "messages is not a number", "?member=a&member=b": "member is given twice",
		"?messages=-1": "messages", "?member=" + strings.Repeat("m", 300): "member",
	} {
		if status, text := do("alice", "GET", "/topics/events/subscriptions/g/stream"+query, ""); status != 400 ||
			!strings.Contains(text, want) {
			t.Errorf("%s: %d %s", query, status, text)
		}
	}
	if status, text := do("bob", "GET", "/topics/events/subscriptions/g/stream", ""); status != 403 {
		t.Errorf("another user: %d %s", status, text)
	}
}
