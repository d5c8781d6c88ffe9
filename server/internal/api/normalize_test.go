package api_test

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/parley-chat/parley/server/infra/testkit"
)

const subscribe = "/parley.delivery.v1.DeliveryService/Subscribe"

// envelope is a message of gRPC and of Connect's streams.
func envelope(flags byte, length int, body string) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{flags}, uint32(length)), body...)
}

// grpcReason reads the error of gRPC from trailers, or from headers where there is
// no body.
func grpcReason(t *testing.T, h http.Header) (code connect.Code, reason string) {
	t.Helper()
	n, err := strconv.Atoi(h.Get("Grpc-Status"))
	if err != nil {
		t.Fatalf("no status in %v", h)
	}
	b, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(h.Get("Grpc-Status-Details-Bin"), "="))
	if err != nil {
		t.Fatal(err)
	}
	var s spb.Status
	if err := proto.Unmarshal(b, &s); err != nil {
		t.Fatal(err)
	}
	if int(s.GetCode()) != n || s.GetMessage() == "" {
		t.Fatalf("details differ from the status %d: %v", n, &s)
	}
	for _, d := range s.GetDetails() {
		var info errdetails.ErrorInfo
		if d.UnmarshalTo(&info) == nil {
			reason = info.GetReason()
		}
	}
	return connect.Code(n), reason
}

// Requests that cannot be read are answered with a reason, and counted, in every
// protocol and format, though they end before any interceptor runs.
func TestUnreadableRequests(t *testing.T) {
	const tooLarge = 200 << 10
	for _, tt := range []struct {
		name   string
		json   string // the message, or with length set its beginning
		proto  string
		length int
		gzip   bool // says so, and is not
		code   connect.Code
		reason string
	}{
		{name: "malformed", json: `{"chatId":`, proto: "\xff\xff\xff", code: connect.CodeInvalidArgument,
			reason: "INVALID_ARGUMENT"},
		{name: "wrong type", json: `{"chatId":[1]}`, proto: "\x0a\x7f", code: connect.CodeInvalidArgument,
			reason: "INVALID_ARGUMENT"},
		{name: "not UTF-8", json: "{\"chatId\":\"\xff\"}", proto: "\x0a\x01\xff", code: connect.CodeInvalidArgument,
			reason: "INVALID_ARGUMENT"},
		{name: "neither", json: "\xff\xfe", proto: "\x0a\xff", code: connect.CodeInvalidArgument, reason: "INVALID_ARGUMENT"},
		{name: "too large", json: strings.Repeat(" ", tooLarge), proto: "\x0a" + strings.Repeat("\x80", tooLarge),
			code: connect.CodeResourceExhausted, reason: "REQUEST_TOO_LARGE"},
		{name: "not gzip", json: "{}", proto: "", gzip: true, code: connect.CodeInvalidArgument, reason: "INVALID_ARGUMENT"},
	} {
		for _, format := range []string{"json", "proto"} {
			body := tt.json
			if format == "proto" {
				body = tt.proto
			}
			if tt.gzip {
				body = "this is not gzip"
			}
			t.Run(tt.name+"/connect/"+format, func(t *testing.T) {
				s := newServer(t)
				var header []string
				if tt.gzip {
					header = []string{"Content-Encoding", "gzip"}
				}
				a := s.do(http.MethodPost, getChat, "application/"+format, []byte(body), header...)
				code, reason, text := a.error()
				testkit.Equal(t, "error", code+" "+reason, tt.code.String()+" "+tt.reason)
				if strings.Contains(text, "chatv1") || text == "" {
					t.Errorf("text: %q", text)
				}
				testkit.Equal(t, "counted", s.count(getChat, tt.code.String()), 1)
				testkit.Equal(t, "type", a.header.Get("Content-Type"), "application/json")
			})
			for _, protocol := range []string{"grpc", "grpc-web"} {
				t.Run(tt.name+"/"+protocol+"/"+format, func(t *testing.T) {
					s := newServer(t)
					flags := byte(0)
					if tt.gzip {
						flags = 1
					}
					req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+getChat,
						bytes.NewReader(envelope(flags, len(body), body)))
					s.must(err)
					req.Header.Set("X-User", "ann")
					req.Header.Set("Content-Type", "application/"+protocol+"+"+format)
					req.Header.Set("Te", "trailers")
					if tt.gzip {
						req.Header.Set("Grpc-Encoding", "gzip")
					}
					res, err := h2c(t).Do(req)
					s.must(err)
					defer res.Body.Close()
					b := new(bytes.Buffer)
					_, err = b.ReadFrom(res.Body)
					s.must(err)
					testkit.Equal(t, "status", res.StatusCode, 200)
					where := res.Header
					if protocol == "grpc" {
						where = res.Trailer
					}
					code, reason := grpcReason(t, where)
					testkit.Equal(t, "error", code.String()+" "+reason, tt.code.String()+" "+tt.reason)
					testkit.Equal(t, "counted", s.count(getChat, tt.code.String()), 1)
					testkit.Equal(t, "body", b.Len(), 0)
				})
			}
		}
	}
}

// The same on a stream, whose requests are read behind the interceptor.
func TestUnreadableStreamRequests(t *testing.T) {
	s := newServer(t)
	for body, want := range map[string]string{
		string(envelope(0, 1, "{")):                   "INVALID_ARGUMENT",
		string(envelope(0, 200<<10, "{")):             "REQUEST_TOO_LARGE",
		string(envelope(0, 17, `{"token":"\uD800"}`)): "INVALID_ARGUMENT",
	} {
		a := s.do(http.MethodPost, subscribe, "application/connect+json", []byte(body))
		if !strings.Contains(string(a.body), `"`+want+`"`) {
			t.Errorf("%q: %s", body[:6], a.body)
		}
	}
	testkit.Equal(t, "counted", s.count(subscribe, "invalid_argument")+s.count(subscribe, "resource_exhausted"), 3)
}

// Envelopes of a stream's request that are broken, too few or too many are the
// request's fault.
func TestBrokenEnvelopes(t *testing.T) {
	s := newServer(t)
	cases := map[string][]byte{
		"nothing":                        {},
		"a cut prefix":                   {0, 0, 0},
		"a cut message":                  envelope(0, 10, "{}"),
		"two messages":                   append(envelope(0, 2, "{}"), envelope(0, 2, "{}")...),
		"an unknown flag":                envelope(0x40, 2, "{}"),
		"compressed, without saying how": envelope(1, 2, "{}"),
		"an end of a stream":             envelope(2, 2, "{}"),
		"no JSON":                        envelope(0, 2, "{]"),
		"plain JSON":                     []byte(`{"token":"x"}`),
	}
	n := 0
	for name, body := range cases {
		for _, kind := range []string{"application/connect+json", "application/grpc-web+json", "application/grpc+json"} {
			if (name == "plain JSON" && kind != "application/connect+json") ||
				(name == "an end of a stream" && kind == "application/grpc-web+json") {
				continue // the prefix is another length; the end is an end
			}
			n++
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+subscribe, bytes.NewReader(body))
			s.must(err)
			req.Header.Set("X-User", "ann")
			req.Header.Set("Content-Type", kind)
			req.Header.Set("Te", "trailers")
			res, err := h2c(t).Do(req)
			s.must(err)
			b := new(bytes.Buffer)
			_, err = b.ReadFrom(res.Body)
			s.must(err)
			res.Body.Close()
			text := b.String()
			if kind != "application/connect+json" {
				where := res.Trailer
				if where.Get("Grpc-Status") == "" {
					where = res.Header
				}
				code, reason := grpcReason(t, where)
				text = `"` + code.String() + `" "` + reason + `" ` + where.Get("Grpc-Message")
			}
			want := "INVALID_ARGUMENT"
			if name == "plain JSON" { // its text is read as a length
				want = "REQUEST_TOO_LARGE"
			}
			if !strings.Contains(text, `"`+want+`"`) ||
				!strings.Contains(text, `"`+strings.ToLower(strings.Replace(want, "REQUEST_TOO_LARGE", "resource_exhausted", 1))+
					`"`) {
				t.Errorf("%s as %s: %s", name, kind, text)
			}
		}
	}
	testkit.Equal(t, "counted", s.count(subscribe, "invalid_argument")+s.count(subscribe, "resource_exhausted"), n)
}

// A body that is shorter than announced is the request's fault, in each protocol.
func TestCutBodies(t *testing.T) {
	s := newServer(t)
	for _, kind := range []string{"application/json", "application/proto"} {
		c, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
		s.must(err)
		defer c.Close()
		_, err = fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nX-User: ann\r\nContent-Type: %s\r\nContent-Length: 100\r\n\r\n{", getChat, kind)
		s.must(err)
		s.must(c.(*net.TCPConn).CloseWrite())
		b, err := io.ReadAll(c)
		s.must(err)
		if text := string(b); !strings.Contains(text, "400 Bad Request") || !strings.Contains(text, `"invalid_argument"`) ||
			!strings.Contains(text, "INVALID_ARGUMENT") {
			t.Errorf("%s: %s", kind, text)
		}
	}
}

// What connect refuses by a status alone has words and a reason.
func TestRefusalsHaveWords(t *testing.T) {
	s := newServer(t)
	const chats = "/parley.chat.v1.ChatService/"
	for _, tt := range []struct {
		name, method, path, kind string
		status                   int
		code, reason, text       string
	}{
		{"no such method", "POST", chats + "Destroy", "application/json", 404, "unimplemented", "NO_SUCH_PROCEDURE",
			"there is no procedure \"" + chats + "Destroy\""},
		{"a longer path", "POST", getChat + "/x", "application/json", 404, "unimplemented", "NO_SUCH_PROCEDURE", "GetChat/x"},
		{"no method, no type", "POST", chats, "", 404, "unimplemented", "NO_SUCH_PROCEDURE", "there is no procedure"},
		{"no type of content", "POST", getChat, "", 415, "invalid_argument", "UNSUPPORTED_MEDIA_TYPE",
			"the Content-Type is missing: this procedure takes application/json, application/proto, application/grpc"},
		{"a form", "POST", getChat, "application/x-www-form-urlencoded", 415, "invalid_argument", "UNSUPPORTED_MEDIA_TYPE",
			"this Content-Type is not taken: this procedure takes application/json, "},
		{"a stream without a type", "POST", subscribe, "", 415, "invalid_argument", "UNSUPPORTED_MEDIA_TYPE",
			"the Content-Type is missing: this procedure takes application/connect+json, application/connect+proto, application/grpc"},
		{"a stream in plain JSON", "POST", subscribe, "application/json", 415, "invalid_argument", "UNSUPPORTED_MEDIA_TYPE",
			"because it answers with a stream"},
		{"PUT", "PUT", getChat, "application/json", 405, "unimplemented", "METHOD_NOT_ALLOWED",
			"this procedure takes POST and GET"},
		{"GET of a change", "GET", createChat + "?connect=v1&encoding=json&message=%7B%7D", "", 405, "unimplemented",
			"METHOD_NOT_ALLOWED", "this procedure takes POST"},
		{"GET of a stream", "GET", subscribe + "?connect=v1", "", 405, "unimplemented", "METHOD_NOT_ALLOWED",
			"this procedure takes POST"},
		{"GET in no encoding", "GET", getChat + "?connect=v1&encoding=xml&message=x", "", 415, "invalid_argument",
			"UNSUPPORTED_MEDIA_TYPE", "encoding=json"},
	} {
		a := s.do(tt.method, tt.path, tt.kind, []byte("{}"))
		if tt.method == "GET" {
			a = s.do(tt.method, tt.path, tt.kind, nil)
		}
		code, reason, text := a.error()
		if a.status != tt.status || code != tt.code || reason != tt.reason || !strings.Contains(text, tt.text) {
			t.Errorf("%s: %d %s %s %q", tt.name, a.status, code, reason, text)
		}
		if a.header.Get("Content-Type") != "application/json" || !bytes.HasSuffix(a.body, []byte("}\n")) {
			t.Errorf("%s: %v %q", tt.name, a.header, a.body)
		}
		if (tt.status == 405) != (a.header.Get("Allow") != "") || (tt.status == 415) != (a.header.Get("Accept-Post") != "") {
			t.Errorf("%s: %v", tt.name, a.header)
		}
	}
	a := s.do("POST", getChat, "application/connect+json", envelope(0, 2, "{}"))
	if a.status != 200 || !strings.Contains(string(a.body), `"UNSUPPORTED_MEDIA_TYPE"`) {
		t.Errorf("a unary procedure as a stream: %d %q", a.status, a.body)
	}
	for _, kind := range []string{"application/grpc", "application/grpc-web"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+chats+"Destroy",
			bytes.NewReader(envelope(0, 0, "")))
		s.must(err)
		req.Header.Set("X-User", "ann")
		req.Header.Set("Content-Type", kind)
		res, err := h2c(t).Do(req)
		s.must(err)
		_, err = io.Copy(io.Discard, res.Body)
		s.must(err)
		res.Body.Close()
		where := res.Header
		if kind == "application/grpc" {
			where = res.Trailer
		}
		code, reason := grpcReason(t, where)
		testkit.Equal(t, kind, fmt.Sprint(res.StatusCode, code, reason), "200 unimplementedNO_SUCH_PROCEDURE")
	}
}

// JSON that people read ends with a line end and shows zeros.
func TestJSONForReaders(t *testing.T) {
	s := newServer(t)
	id := s.group("bob")
	for what, a := range map[string]answer{
		"answer": s.post(getChat, `{"chatId":"`+id+`"}`),
		"error":  s.post(getChat, `{"chatId":"x"}`),
		"denied": s.post(getChat, `{}`, "X-User", ""),
	} {
		if !bytes.HasSuffix(a.body, []byte("}\n")) || bytes.HasSuffix(a.body, []byte("\n\n")) {
			t.Errorf("%s: %q", what, a.body)
		}
	}
	text := string(s.post(getChat, `{"chatId":"`+id+`"}`).body)
	if !strings.Contains(text, `"unreadCount":"0"`) || strings.Contains(text, "null") {
		t.Errorf("%s", text)
	}
}

// Procedures that there are not make no metrics.
func TestUnknownProceduresAreNotCounted(t *testing.T) {
	s := newServer(t)
	for _, method := range []string{"Destroy", "GetChat/x", "getchat"} {
		s.post("/parley.chat.v1.ChatService/"+method, "{")
	}
	testkit.Equal(t, "counted", len(s.codes), 0)
}
