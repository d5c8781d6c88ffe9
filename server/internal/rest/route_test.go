package rest

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
)

// method makes a method of a contract that is not there: it takes a
// ListMembersRequest.
func method(
	t *testing.T, rule *annotations.HttpRule, level descriptorpb.MethodOptions_IdempotencyLevel, stream bool,
) protoreflect.MethodDescriptor {
	t.Helper()
	options := &descriptorpb.MethodOptions{IdempotencyLevel: level.Enum()}
	proto.SetExtension(options, annotations.E_Http, rule)
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: proto.String("x.proto"), Syntax: proto.String("proto3"),
		Dependency: []string{"parley/chat/v1/chat_service.proto"},
		Service: []*descriptorpb.ServiceDescriptorProto{{
			Name: proto.String("X"),
			Method: []*descriptorpb.MethodDescriptorProto{{
				Name: proto.String("M"), InputType: proto.String(".parley.chat.v1.ListMembersRequest"),
				OutputType: proto.String(".parley.chat.v1.ListMembersResponse"),
				Options:    options, ServerStreaming: proto.Bool(stream),
			}},
		}},
	}, protoregistry.GlobalFiles)
	if err != nil {
		t.Fatal(err)
	}
	return file.Services().Get(0).Methods().Get(0)
}

// What cannot be served as it is written is refused at the start, not at the first
// request.
func TestAnnotations(t *testing.T) {
	get := func(path string) *annotations.HttpRule {
		return &annotations.HttpRule{Pattern: &annotations.HttpRule_Get{Get: path}}
	}
	post := func(path, body string) *annotations.HttpRule {
		return &annotations.HttpRule{Pattern: &annotations.HttpRule_Post{Post: path}, Body: body}
	}
	reads, writes := descriptorpb.MethodOptions_NO_SIDE_EFFECTS, descriptorpb.MethodOptions_IDEMPOTENCY_UNKNOWN
	for _, tt := range []struct {
		name   string
		rule   *annotations.HttpRule
		level  descriptorpb.MethodOptions_IdempotencyLevel
		stream bool
		want   string // part of the error; empty for none
	}{
		{"fine", get("/a/{chat_id}/b"), reads, false, ""},
		{"with body", post("/a/{chat_id}", "*"), writes, false, ""},
		{"put", &annotations.HttpRule{Pattern: &annotations.HttpRule_Put{Put: "/a"}, Body: "*"}, writes, false, ""},
		{"delete", &annotations.HttpRule{Pattern: &annotations.HttpRule_Delete{Delete: "/a"}}, writes, false, ""},
		{"patch", &annotations.HttpRule{Pattern: &annotations.HttpRule_Patch{Patch: "/a"}, Body: "*"}, writes, false, ""},
		{"a stream", get("/a"), reads, true, "streams"},
		{"GET that changes something", get("/a"), writes, false, "side effects"},
		{"POST that does not", post("/a", "*"), reads, false, "side effects"},
		{"a field as body", post("/a", "page_token"), writes, false, "body"},
		{"a field as answer", &annotations.HttpRule{Pattern: &annotations.HttpRule_Get{Get: "/a"}, ResponseBody: "members"},
			reads, false, "body"},
		{"a wildcard", get("/a/*"), reads, false, "segment"},
		{"a variable of many segments", get("/a/{chat_id=b/**}"), reads, false, "segment"},
		{"a verb", get("/a/{chat_id}:b"), reads, false, ""},
		{"a verb behind a word", get("/a/{chat_id}/b:c"), reads, false, "segment"},
		{"a verb in the middle", get("/a/{chat_id}:b/c"), reads, false, "segment"},
		{"an unknown variable", get("/a/{b}"), reads, false, "not a string"},
		{"a number", get("/a/{page_size}"), reads, false, "not a string"},
		{"no pattern", &annotations.HttpRule{}, reads, false, "pattern"},
		{"a pattern of its own", &annotations.HttpRule{
			Pattern: &annotations.HttpRule_Custom{Custom: &annotations.CustomHttpPattern{Kind: "X", Path: "/a"}}}, reads, false,
			"pattern"},
	} {
		r, err := newRoute(method(t, tt.rule, tt.level, tt.stream), tt.rule)
		switch {
		case tt.want == "" && err != nil:
			t.Errorf("%s: %v", tt.name, err)
		case tt.want == "" && (r.procedure != "/X/M" || r.body != (tt.rule.GetBody() == "*")):
			t.Errorf("%s: %+v", tt.name, r)
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
}

// The table of status codes names methods that there are, and codes that say
// something else than 200.
func TestStatusTable(t *testing.T) {
	table, err := outcomes()
	if err != nil {
		t.Fatal(err)
	}
	_ = chatv1.File_parley_chat_v1_chat_service_proto
	for name, o := range table {
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		m, ok := d.(protoreflect.MethodDescriptor)
		if !ok {
			t.Errorf("%s is not a method", name)
			continue
		}
		if _, ok := ruleOf(m); !ok {
			t.Errorf("%s has no REST path", name)
		}
		if o.Success == http.StatusOK || o.Success/100 != 2 || o.Replay/100 != 2 {
			t.Errorf("%s: %+v", name, o)
		}
		if empty := m.Output().Fields().Len() == 0; empty != (o.Success == http.StatusNoContent) {
			t.Errorf("%s: 204 is for answers without content, and they are for 204", name)
		}
	}
}

// Each code has a status, and what is not known or cannot be read still has an
// answer.
func TestTranslate(t *testing.T) {
	for c := connect.CodeCanceled; c <= connect.CodeUnauthenticated; c++ {
		body, err := json.Marshal(map[string]any{"code": c.String(), "message": "m"})
		if err != nil {
			t.Fatal(err)
		}
		status, s := translate(418, body)
		if status != statusOf[c] || status < 400 || s.GetCode() != int32(c) || s.GetMessage() != "m" {
			t.Errorf("%s: %d %v", c, status, s)
		}
	}
	for _, body := range []string{"", "x", "{}", `{"code":"none"}`, `{"code":7}`} {
		if status, s := translate(http.StatusBadGateway, []byte(body)); status != http.StatusBadGateway ||
			s.GetCode() != int32(connect.CodeUnknown) || s.GetMessage() == "" {
			t.Errorf("%q: %d %v", body, status, s)
		}
	}
	status, s := translate(400, []byte(
		`{"code":"not_found","details":[{"type":"no.such.Type","value":"!"},{"type":"no.such.Type","value":"AA=="}]}`))
	if status != 404 || len(s.GetDetails()) != 1 {
		t.Errorf("%d %v", status, s)
	}
	rec := &recorder{}
	writeStatus(rec, status, s)
	if rec.status != 404 || !json.Valid(rec.body) {
		t.Errorf("a detail of an unknown type: %d %s", rec.status, rec.body)
	}
}

type recorder struct {
	sink
	status int
	body   []byte
}

func (r *recorder) WriteHeader(status int)      { r.status = status }
func (r *recorder) Write(b []byte) (int, error) { r.body = append(r.body, b...); return len(b), nil }
