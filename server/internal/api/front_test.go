package api_test

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
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
		{name: "malformed", json: `{"chatId":`, proto: "\xff\xff\xff", code: connect.CodeInvalidArgument, reason: "INVALID_ARGUMENT"},
		{name: "wrong type", json: `{"chatId":[1]}`, proto: "\x0a\x7f", code: connect.CodeInvalidArgument, reason: "INVALID_ARGUMENT"},
		{name: "not UTF-8", json: "{\"chatId\":\"\xff\"}", proto: "\x0a\x01\xff", code: connect.CodeInvalidArgument, reason: "INVALID_ARGUMENT"},
		{name: "neither", json: "\xff\xfe", proto: "\x0a\xff", code: connect.CodeInvalidArgument, reason: "INVALID_ARGUMENT"},
		{name: "too large", json: strings.Repeat(" ", tooLarge), proto: "\x0a" + strings.Repeat("\x80", tooLarge), code: connect.CodeResourceExhausted, reason: "REQUEST_TOO_LARGE"},
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
				equal(t, "error", code+" "+reason, tt.code.String()+" "+tt.reason)
				if strings.Contains(text, "chatv1") || text == "" {
					t.Errorf("text: %q", text)
				}
				equal(t, "counted", s.count(getChat, tt.code.String()), 1)
				equal(t, "type", a.header.Get("Content-Type"), "application/json")
			})
			for _, protocol := range []string{"grpc", "grpc-web"} {
				t.Run(tt.name+"/"+protocol+"/"+format, func(t *testing.T) {
					s := newServer(t)
					flags := byte(0)
					if tt.gzip {
						flags = 1
					}
					req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+getChat, bytes.NewReader(envelope(flags, len(body), body)))
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
					equal(t, "status", res.StatusCode, 200)
					where := res.Header
					if protocol == "grpc" {
						where = res.Trailer
					}
					code, reason := grpcReason(t, where)
					equal(t, "error", code.String()+" "+reason, tt.code.String()+" "+tt.reason)
					equal(t, "counted", s.count(getChat, tt.code.String()), 1)
					equal(t, "body", b.Len(), 0)
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
	equal(t, "counted", s.count(subscribe, "invalid_argument")+s.count(subscribe, "resource_exhausted"), 3)
}

// Procedures that there are not make no metrics.
func TestUnknownProceduresAreNotCounted(t *testing.T) {
	s := newServer(t)
	for _, method := range []string{"Destroy", "GetChat/x", "getchat"} {
		s.post("/parley.chat.v1.ChatService/"+method, "{")
	}
	equal(t, "counted", len(s.codes), 0)
}
