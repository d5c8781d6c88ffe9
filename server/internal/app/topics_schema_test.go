package app_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/parley-chat/parley/server/client/topic"
	"github.com/parley-chat/parley/server/testkit"
	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
)

// A schema goes from the registry's HTTP to a topic, by REST, by the command line and by the Go client:
// what is published by any of them must be as it says, also after a restart. The topic keeps it from being
// deleted for good.
func TestTopicSchemas(t *testing.T) {
	dir := t.TempDir()
	w := newSchemaWorld(t, dir)
	first := w.register("orders", "message Order { string id = 1; Line line = 2; } message Line { int32 n = 1; }")
	grown := w.register("orders", "message Order { string id = 1; Line line = 2; string note = 3; } message Line { int32 n = 1; }")
	other := w.register("others", "message Order { int64 id = 1; }")
	schema := func(id int) string { return fmt.Sprintf(`{"config":{"schema":{"id":%d}}}`, id) }
	message := func(payload string) string {
		return `{"messages":[{"payload":"` + base64.StdEncoding.EncodeToString([]byte(payload)) + `"}]}`
	}
	const fine, unknown, within, later = "\x0a\x01a", "\x48\x01", "\x12\x02\x48\x01", "\x0a\x01a\x1a\x01x"
	for _, tt := range []struct {
		method, path, body string
		status             int
		text               string
	}{
		{"PUT", "/topics/orders", schema(999), 404, "SCHEMA_NOT_FOUND"},
		{"PUT", "/topics/orders", `{"config":{"schema":{"idd":1}}}`, 400, "idd"},
		{"PUT", "/topics/orders", `{"config":{"schema":{"id":-1}}}`, 400, "INVALID_ARGUMENT"},
		{"PUT", "/topics/orders", schema(first), 200, `"message":"shop.v1.Order","encoding":"ENCODING_BINARY"`},
		{"GET", "/topics/orders", "", 200, fmt.Sprintf(`"schema":{"id":%d`, first)},
		{"GET", "/topics", "", 200, fmt.Sprintf(`"schema":{"id":%d`, first)},
		{"POST", "/topics/orders/messages", message(fine), 200, `"messageId":"0-0"`},
		{"POST", "/topics/orders/messages", message("hello"), 400, "SCHEMA_MISMATCH"},
		{"POST", "/topics/orders/messages", message(unknown), 400, "messages[0]: the payload is not shop.v1.Order of schema"},
		{"POST", "/topics/orders/messages", message(within), 400, "shop.v1.Line has no field 9"},
		{"POST", "/topics/orders/messages", message(later), 400, "has no field 3"},
		{"PUT", "/topics/orders", schema(other), 400, "SCHEMA_INCOMPATIBLE"},
		{"PUT", "/topics/orders", schema(grown), 200, fmt.Sprintf(`"earlierIds":[%d]`, first)},
		{"POST", "/topics/orders/messages", message(later), 200, `"messageId":"0-1"`},
	} {
		status, text := w.rest(tt.method, tt.path, tt.body)
		if status != tt.status || !strings.Contains(text, tt.text) {
			t.Errorf("%s %s %s: %d %s, want %d with %q", tt.method, tt.path, tt.body, status, text, tt.status, tt.text)
		}
	}
	for _, tt := range []struct {
		line, says string
		code       int
	}{
		{"describe orders", fmt.Sprintf("%d, shop.v1.Order in binary (before: %d)", grown, first), 0},
		{fmt.Sprintf("create bills --schema %d --schema-message shop.v1.Line --schema-encoding json", first), "shop.v1.Line in json", 0},
		{`publish bills {"n":1}`, "0-0", 0},
		{`publish bills {"m":1}`, "SCHEMA_MISMATCH", 1},
		{"create bills --schema 0", "must be the id of a schema", 2},
		{"create bills --schema-message x", "belong to --schema", 2},
		{"create bills --schema-encoding json", "belong to --schema", 2},
		{"create bills --schema 1 --no-schema", "takes --no-schema, or --schema", 2},
		{fmt.Sprintf("create bills --schema %d --dry-run", other), "SCHEMA_NOT_FOUND", 1},
		{"create bills --no-schema", "no longer checked", 0},
		{`publish bills {"m":1}`, "0-1", 0},
	} {
		code, out, errs := w.line(tt.line)
		if code != tt.code || !strings.Contains(out+errs, tt.says) {
			t.Errorf("%s: %d %s%s, want %d with %q", tt.line, code, out, errs, tt.code, tt.says)
		}
	}
	deletion := func(path string) int { return w.registry(http.MethodDelete, path, "") }
	testkit.Equal(t, "soft deletion", deletion("/subjects/orders"), 200)
	testkit.Equal(t, "deletion for good", deletion("/subjects/orders?permanent=true"), 422)

	w.stop()
	w = newSchemaWorld(t, dir)
	client, err := topic.Dial(topic.Config{BaseURL: "http://" + w.addr,
		Token: func(context.Context, bool) (string, error) { return w.alice, nil }})
	testkit.Must(t, err)
	p, err := client.Publisher("orders", topic.PublisherConfig{})
	testkit.Must(t, err)
	_, err = p.Publish(t.Context(), &topic.Message{Payload: []byte(later)})
	testkit.Must(t, err)
	_, err = p.Publish(t.Context(), &topic.Message{Payload: []byte("hello")})
	testkit.Equal(t, "reason", topic.Reason(err), "SCHEMA_MISMATCH")
	testkit.Must(t, p.Close(t.Context()))
	_, err = client.Topics().DeleteTopic(t.Context(), &topicv1.DeleteTopicRequest{Topic: "orders"})
	testkit.Must(t, err)
	deletion = func(path string) int { return w.registry(http.MethodDelete, path, "") }
	testkit.Equal(t, "deletion for good without the topic", deletion("/subjects/orders?permanent=true"), 200)
}

// schemaWorld is a server with its registry, as an operator and alice, who may make topics, reach it.
type schemaWorld struct {
	t                  *testing.T
	dir, addr, ops, at string
	alice, operator    string
	stop               func()
}

func newSchemaWorld(t *testing.T, dir string) *schemaWorld {
	t.Helper()
	greeting, logs, stop := greeted(t, "127.0.0.1:0", dir, "--topic-creators", "alice")
	w := &schemaWorld{t: t, dir: dir, alice: token(t, dir, "alice"),
		addr: listening.FindStringSubmatch(greeting)[1], ops: opsAddress.FindStringSubmatch(logs.String())[1],
		at:   regexp.MustCompile(`registry at (http://\S+)`).FindStringSubmatch(greeting)[1],
		stop: func() { testkit.Equal(t, "exit code", stop(), 0) }}
	code, operator, stderr := run(t.Context(), nil, "--data-dir", dir, "operators", "token", "ada")
	if code != 0 {
		t.Fatal(stderr)
	}
	w.operator = strings.TrimSpace(operator)
	return w
}

func (w *schemaWorld) do(req *http.Request) (int, string) {
	w.t.Helper()
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	var compact bytes.Buffer
	if json.Compact(&compact, b) != nil {
		return res.StatusCode, string(b)
	}
	return res.StatusCode, compact.String()
}

// rest calls the REST API as alice.
func (w *schemaWorld) rest(method, path, body string) (int, string) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, "http://"+w.addr+"/api/v1"+path, strings.NewReader(body))
	testkit.Must(w.t, err)
	req.Header.Set("Authorization", "Bearer "+w.alice)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	return w.do(req)
}

// registry calls the registry as an operator.
func (w *schemaWorld) registry(method, path, body string) int {
	w.t.Helper()
	status, _ := w.registryText(method, path, body)
	return status
}

func (w *schemaWorld) registryText(method, path, body string) (int, string) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, w.at+path, strings.NewReader(body))
	testkit.Must(w.t, err)
	req.SetBasicAuth("ada", w.operator)
	return w.do(req)
}

// register registers messages of package shop.v1, and returns the schema's id.
func (w *schemaWorld) register(subject, messages string) int {
	w.t.Helper()
	body, err := json.Marshal(map[string]string{"schemaType": "PROTOBUF",
		"schema": "syntax = \"proto3\"; package shop.v1; " + messages})
	testkit.Must(w.t, err)
	status, text := w.registryText(http.MethodPost, "/subjects/"+subject+"/versions", string(body))
	var answer struct{ ID int }
	if err := json.Unmarshal([]byte(text), &answer); err != nil || status != 200 {
		w.t.Fatal(status, text, err)
	}
	return answer.ID
}

// line runs a command on topics as an operator.
func (w *schemaWorld) line(args string) (code int, stdout, stderr string) {
	return run(w.t.Context(), map[string]string{"PARLEY_OPERATOR": "ada"},
		append([]string{"--data-dir", w.dir, "--ops-address", w.ops, "topics"}, strings.Fields(args)...)...)
}
