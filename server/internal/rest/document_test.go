package rest_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/internal/api"
	"github.com/parley-chat/parley/server/internal/docsite"
	"github.com/parley-chat/parley/server/internal/topicrpc"
)

// methods of the services that have a REST path, and those that have none.
func (w *fixture) methods() (with, without []protoreflect.MethodDescriptor) {
	w.Helper()
	for _, name := range w.api.Names() {
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
		w.must(err)
		methods := d.(protoreflect.ServiceDescriptor).Methods()
		for i := range methods.Len() {
			if m := methods.Get(i); proto.HasExtension(m.Options(), annotations.E_Http) {
				with = append(with, m)
			} else {
				without = append(without, m)
			}
		}
	}
	return with, without
}

// binding is the path and method of a REST call, and whether it has a body: fields that
// the path does not have.
func binding(m protoreflect.MethodDescriptor) (verb, path string, body bool) {
	rule := proto.GetExtension(m.Options(), annotations.E_Http).(*annotations.HttpRule)
	switch p := rule.GetPattern().(type) {
	case *annotations.HttpRule_Get:
		verb, path = "GET", p.Get
	case *annotations.HttpRule_Post:
		verb, path = "POST", p.Post
	case *annotations.HttpRule_Patch:
		verb, path = "PATCH", p.Patch
	case *annotations.HttpRule_Put:
		verb, path = "PUT", p.Put
	case *annotations.HttpRule_Delete:
		verb, path = "DELETE", p.Delete
	}
	return verb, path, rule.GetBody() == "*" && m.Input().Fields().Len() > strings.Count(path, "{")
}

// Everything but what belongs to a stream can be had by REST.
func TestEveryCallHasAPath(t *testing.T) {
	w := newFixture(t)
	_, without := w.methods()
	for _, m := range without {
		if m.IsStreamingServer() || m.IsStreamingClient() {
			continue
		}
		if m.Input().Fields().ByName("stream_id") == nil {
			t.Errorf("%s has no REST path", m.FullName())
		}
	}
}

// The document lists what is served and nothing else, with the codes that are
// answered.
func TestDocument(t *testing.T) {
	w := newFixture(t)
	a := w.do("", "GET", "/api/v1/openapi.json", "")
	testkit.Equal(t, "status", a.status, 200)
	testkit.Equal(t, "type", a.header.Get("Content-Type"), "application/json")
	testkit.Equal(t, "cached", w.do("", "GET", "/api/v1/openapi.json", "", "If-None-Match", a.header.Get("ETag")).status,
		304)
	var doc struct {
		OpenAPI string
		Paths   map[string]map[string]struct {
			Responses   map[string]any
			RequestBody any
		}
		Components struct{ Schemas map[string]any }
	}
	w.must(json.Unmarshal(a.body, &doc))
	testkit.Equal(t, "version", doc.OpenAPI, "3.1.0")
	with, _ := w.methods()
	listed := 0
	for _, operations := range doc.Paths {
		listed += len(operations)
	}
	testkit.Equal(t, "operations", listed, len(with)+2)
	for _, path := range []string{api.EventsPath, topicrpc.EventsPath} { // of no annotation
		if _, ok := doc.Paths[path]["get"]; !ok {
			t.Errorf("%s is not listed", path)
		}
	}
	for _, m := range with {
		verb, path, body := binding(m)
		op, ok := doc.Paths[path][strings.ToLower(verb)]
		if !ok {
			t.Errorf("%s %s is not listed", verb, path)
			continue
		}
		testkit.Equal(t, path+" has a body", op.RequestBody != nil, body)
		if _, ok := op.Responses["default"]; !ok {
			t.Errorf("%s %s: no errors", verb, path)
		}
	}
	for _, call := range []struct {
		user, method, path, body, doc string
	}{
		{"ann", "POST", chats, `{"type":"CHAT_TYPE_DIRECT","memberIds":["bob"]}`, chats},
		{"ann", "POST", chats, `{"type":"CHAT_TYPE_DIRECT","memberIds":["bob"]}`, chats},
		{"ann", "GET", chats, "", chats},
		{"ann", "POST", w.group("bob") + "/messages", `{"content":"x"}`, chats + "/{chat_id}/messages"},
	} {
		got := strconv.Itoa(w.do(call.user, call.method, call.path, call.body).status)
		if _, ok := doc.Paths[call.doc][strings.ToLower(call.method)].Responses[got]; !ok {
			t.Errorf("%s %s answered %s, which is not in the document", call.method, call.path, got)
		}
	}
	for _, ref := range regexp.MustCompile(`"\$ref": "#/components/schemas/([^"]*)"`).FindAllSubmatch(a.body, -1) {
		if doc.Components.Schemas[string(ref[1])] == nil {
			t.Errorf("%s is referred to and not there", ref[1])
		}
	}
}

// Every body and every answer has an example that is one of its message, with
// 64-bit integers as the text that they are answered as.
func TestExamples(t *testing.T) {
	w := newFixture(t)
	type content map[string]struct{ Example json.RawMessage }
	var doc struct {
		Servers []struct{ URL string }
		Paths   map[string]map[string]struct {
			RequestBody struct{ Content content }
			Responses   map[string]struct {
				Ref     string `json:"$ref"`
				Content content
			}
		}
	}
	w.must(json.Unmarshal(w.do("", "GET", "/api/v1/openapi.json", "").body, &doc))
	if len(doc.Servers) == 0 {
		t.Error("no server is named")
	}
	with, _ := w.methods()
	for _, m := range with {
		verb, path, body := binding(m)
		op := doc.Paths[path][strings.ToLower(verb)]
		check := func(of string, c content, d protoreflect.MessageDescriptor) {
			t.Helper()
			media, ok := c["application/json"]
			if !ok {
				return // a stream of another kind
			}
			example := media.Example
			if err := protojson.Unmarshal(example, dynamicpb.NewMessage(d)); err != nil {
				t.Errorf("%s %s, example of %s: %v", verb, path, of, err)
			}
			if found := regexp.MustCompile(`"(version|[a-z]*[sS]equence|revision|unreadCount)":\s*[0-9]`).Find(
				example); found != nil {
				t.Errorf("%s %s, example of %s: %s is a number", verb, path, of, found)
			}
		}
		if body {
			testkit.Equal(t, path+" has a JSON body", len(op.RequestBody.Content), 1)
			check("the body", op.RequestBody.Content, m.Input())
		}
		for status, r := range op.Responses {
			if r.Content != nil {
				check(status, r.Content, m.Output())
			}
		}
		if op.Responses["4XX"].Ref == "" {
			t.Errorf("%s %s: no refusals", verb, path)
		}
	}
}

// The page of the REST API lists every call, and each of its links leads somewhere.
func TestPage(t *testing.T) {
	w := newFixture(t)
	got := httptest.NewRecorder()
	docsite.New().ServeHTTP(got, httptest.NewRequestWithContext(t.Context(), "GET", "/docs/reference", http.NoBody))
	testkit.Equal(t, "status", got.Code, 200)
	page := got.Body.String()
	with, _ := w.methods()
	for _, m := range with {
		verb, path, _ := binding(m)
		if !strings.Contains(page, `<span class="verb">`+verb+`</span> <code>`+path+`</code></h2>`) {
			t.Errorf("%s %s is not on the page", verb, path)
		}
	}
	ids := regexp.MustCompile(`\sid="([^"]*)"`).FindAllStringSubmatch(page, -1)
	for _, ref := range regexp.MustCompile(`href="#([^"]*)"`).FindAllStringSubmatch(page, -1) {
		if !slices.ContainsFunc(ids, func(id []string) bool { return id[1] == ref[1] }) {
			t.Errorf("a link to %q leads nowhere", ref[1])
		}
	}
}
