package app_test

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"testing"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/client/topic"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// A schema goes from the registry's HTTP to a topic, by REST, by the command line and by the Go client:
// what is published by any of them must be as it says, also after a restart. The topic keeps it from being
// deleted for good.
func TestTopicSchemas(t *testing.T) { topicSchemas(t, alone(t)) }

func topicSchemas(t *testing.T, w *topicHarness) {
	first := w.register("orders", "message Order { string id = 1; Line line = 2; } message Line { int32 n = 1; }")
	grown := w.register("orders", "message Order { string id = 1; Line line = 2; string note = 3; } message Line { int32 n = 1; }")
	other := w.register("others", "message Order { int64 id = 1; }")
	schema := func(id int) string {
		return fmt.Sprintf(`{"config":{"semantics":"SEMANTICS_PUB_SUB","schema":{"id":%d}}}`, id)
	}
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
		{"POST", "/topics/orders/subscriptions", `{"group":"g"}`, 200, `"group":"g"`},
		{"POST", "/topics/orders/messages", message(fine), 200, `"messageId":"0-0"`},
		{"POST", "/topics/orders/messages", message("hello"), 400, "SCHEMA_MISMATCH"},
		{"POST", "/topics/orders/messages", message(unknown), 400, "messages[0]: the payload is not shop.v1.Order of schema"},
		{"POST", "/topics/orders/messages", message(within), 400, "shop.v1.Line has no field 9"},
		{"POST", "/topics/orders/messages", message(later), 400, "has no field 3"},
		{"PUT", "/topics/orders", schema(other), 400, "SCHEMA_INCOMPATIBLE"},
		{"PUT", "/topics/orders", schema(grown), 200, fmt.Sprintf(`"earlierIds":[%d]`, first)},
		{"POST", "/topics/orders/messages", message(later), 200, `"messageId":"0-`},
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
		{`publish bills {"m":1}`, "0-", 0},
	} {
		code, out, errs := w.line(tt.line)
		if code != tt.code || !strings.Contains(out+errs, tt.says) {
			t.Errorf("%s: %d %s%s, want %d with %q", tt.line, code, out, errs, tt.code, tt.says)
		}
	}
	testkit.Equal(t, "soft deletion", w.deletes("/subjects/orders"), 200)
	testkit.Equal(t, "deletion for good", w.deletes("/subjects/orders?permanent=true"), 422)

	w.replace("orders", false)
	p, err := w.client().Publisher("orders", topic.PublisherConfig{})
	testkit.Must(t, err)
	_, err = p.Publish(t.Context(), &topic.Message{Payload: []byte(later)})
	testkit.Must(t, err)
	_, err = p.Publish(t.Context(), &topic.Message{Payload: []byte("hello")})
	testkit.Equal(t, "reason", topic.Reason(err), "SCHEMA_MISMATCH")
	testkit.Must(t, p.Close(t.Context()))
	if status, text := w.rest("PUT", "/topics/orders", schema(other)); !strings.Contains(text, "SCHEMA_INCOMPATIBLE") {
		t.Errorf("an incompatible schema after the owner has changed: %d %s", status, text)
	}
	got, err := w.client().Topics().BrowseMessages(t.Context(), &topicv1.BrowseMessagesRequest{Topic: "orders"})
	testkit.Must(t, err)
	var stored []string
	for _, m := range got.GetMessages() {
		stored = append(stored, string(m.GetMessage().GetPayload()))
	}
	testkit.Equal(t, "what is stored", fmt.Sprintf("%q", stored), fmt.Sprintf("%q", []string{fine, later, later}))
	_, err = w.client().Topics().DeleteTopic(t.Context(), &topicv1.DeleteTopicRequest{Topic: "orders"})
	testkit.Must(t, err)
	testkit.Equal(t, "deletion for good without the topic", w.deletes("/subjects/orders?permanent=true"), 200)
}

// deletes deletes something in the registry, and returns the status.
func (w *topicHarness) deletes(path string) int {
	w.t.Helper()
	status, _ := w.schemas(http.MethodDelete, path, "")
	return status
}
