package rest_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
)

const key = "3b241101-e2bb-4255-8caf-4136c566a962"

// L-013, L-016, L-018, L-154: 201 for the one that creates, 200 and the header for
// those that find it there.
func TestCreate(t *testing.T) {
	w := newFixture(t)
	direct := `{"type":"CHAT_TYPE_DIRECT","memberIds":["bob"]}`
	first := w.do("ann", "POST", chats, direct).want(201, "")
	testkit.Equal(t, "new", first.header.Get("X-Idempotent-Replay"), "")
	testkit.Equal(t, "type", first.header.Get("Content-Type"), "application/json")
	for _, again := range []answer{w.do("ann", "POST", chats, direct),
		w.do("bob", "POST", chats, `{"type":"CHAT_TYPE_DIRECT","member_ids":["ann"]}`)} {
		again.want(200, "")
		testkit.Equal(t, "found", again.header.Get("X-Idempotent-Replay"), "true")
		testkit.Equal(t, "chat", again.at("overview", "chat", "chatId"), first.at("overview", "chat", "chatId"))
	}
	group := `{"type":"CHAT_TYPE_GROUP","name":"Tea","memberIds":["bob"]}`
	made := w.do("ann", "POST", chats, group, "Idempotency-Key", "k").want(201, "")
	again := w.do("ann", "POST", chats, group, "Idempotency-Key", "k").want(200, "")
	testkit.Equal(t, "replay", again.header.Get("X-Idempotent-Replay"), "true")
	testkit.Equal(t, "chat", again.at("overview", "chat", "chatId"), made.at("overview", "chat", "chatId"))
	w.do("ann", "POST", chats, strings.Replace(group, "Tea", "Pie", 1), "Idempotency-Key", "k").want(400,
		"IDEMPOTENCY_KEY_REUSED")

	w.do("ann", "POST", chats, `{"type":"CHAT_TYPE_DIRECT","memberIds":["nobody"]}`).want(404, "USER_NOT_FOUND")
	w.do("ann", "POST", chats, `{"type":"CHAT_TYPE_DIRECT","memberIds":["ann"]}`).want(400, "INVALID_OPERATION")
	// L-022
	w.do("ann", "POST", chats, `{"type":"CHAT_TYPE_DIRECT","memberIds":["bob","cid"]}`).want(400, "INVALID_ARGUMENT")
	w.do("ann", "POST", chats, `{"type":"CHAT_TYPE_DIRECT","memberIds":["ann","bob"]}`).want(200, "")
}

// A client_message_id is the same in upper and in lower case, as a field and as a header.
func TestMessageIDInEitherCase(t *testing.T) {
	w := newFixture(t)
	id := w.do("ann", "POST", chats, `{"type":"CHAT_TYPE_GROUP","name":"Tea","memberIds":["bob"]}`).want(201,
		"").at("overview", "chat", "chatId").(string)
	path := chats + "/" + id + "/messages"
	first := w.do("ann", "POST", path, `{"content":"x"}`, "Idempotency-Key", strings.ToUpper(key)).want(201, "")
	testkit.Equal(t, "stored as", first.at("clientMessageId"), key)
	for name, again := range map[string]answer{
		"header": w.do("ann", "POST", path, `{"content":"x"}`, "Idempotency-Key", key),
		"field":  w.do("ann", "POST", path, `{"content":"x","clientMessageId":"`+strings.ToUpper(key)+`"}`),
		"both": w.do("ann", "POST", path, `{"content":"x","client_message_id":"`+key+`"}`, "Idempotency-Key",
			strings.ToUpper(key)),
	} {
		again.want(200, "")
		testkit.Equal(t, name, again.at("messageId"), first.at("messageId"))
	}
}

func TestMessages(t *testing.T) {
	w := newFixture(t)
	path := w.group("bob")
	sent := w.do("ann", "POST", path+"/messages", `{"content":"one"}`, "Idempotency-Key", key).want(201, "")
	again := w.do("ann", "POST", path+"/messages", `{"content":"one","clientMessageId":"`+key+`"}`).want(200, "")
	testkit.Equal(t, "K-071", again.at("messageId"), sent.at("messageId"))
	testkit.Equal(t, "replay", again.header.Get("X-Idempotent-Replay"), "true")
	w.do("bob", "POST", path+"/messages", `{"content":"two","content_type":"CONTENT_TYPE_TEXT","unknown":{"a":[1]}}`).want(
		201, "")

	all := w.do("bob", "GET", path+"/messages", "").want(200, "")
	testkit.Equal(t, "first", all.at("messages", 0, "content"), "one")
	testkit.Equal(t, "second", all.at("messages", 1, "content"), "two")
	for _, query := range []string{"?afterSequence=1&pageSize=1", "?after_sequence=1&page_size=1",
		"?afterSequence=1&no_such=x"} {
		testkit.Equal(t, query, w.do("bob", "GET", path+"/messages"+query, "").want(200, "").at("messages", 0, "content"),
			"two")
	}
	testkit.Equal(t, "changes",
		w.do("bob", "GET", path+"/changes?afterVersion=3", "").want(200, "").at("changes", 0, "message",
			"content"), "two")
	testkit.Equal(t, "read", w.do("ann", "POST", path+"/read", `{"sequence":2}`).want(200, "").at("state", "readSequence"),
		"2")
	testkit.Equal(t, "head", w.do("bob", "GET", path, "").want(200, "").at("overview", "head", "sequence"), "2")
	testkit.Equal(t, "sync", w.do("bob", "GET", "/api/v1/sync", "").want(200, "").at("full"), true)
	testkit.Equal(t, "members",
		w.do("bob", "GET", path+"/members?pageSize=1", "").want(200, "").at("members", 0, "userId"), "ann")
	testkit.Equal(t, "list", w.do("bob", "GET", chats, "").want(200, "").at("overviews", 0, "state",
		"ownUnreadCount"), "1")
	w.do("cid", "GET", path+"/messages", "").want(403, "NOT_A_MEMBER")
	w.do("cid", "POST", path+"/messages", `{"content":"x"}`).want(403, "NOT_A_MEMBER")
	w.do("cid", "GET", chats+"/chat_01ARZ3NDEKTSV4RRFFQ69G5FAV", "").want(403, "NOT_A_MEMBER")
}

func TestTags(t *testing.T) {
	w := newFixture(t)
	path := w.group("bob")
	first := w.do("ann", "GET", path, "").want(200, "")
	tag := first.header.Get("ETag")
	if tag == "" || first.header.Get("Cache-Control") != "private, no-cache" {
		t.Fatalf("headers: %v", first.header)
	}
	same := w.do("ann", "GET", path, "", "If-None-Match", tag)
	testkit.Equal(t, "status", same.status, 304)
	testkit.Equal(t, "body", len(same.body), 0)
	w.do("ann", "POST", path+"/messages", `{"content":"x"}`).want(201, "")
	w.do("ann", "GET", path, "", "If-None-Match", tag).want(200, "")
	testkit.Equal(t, "HEAD", w.do("ann", "HEAD", path, "").status, 200)
}

// Long answers are compressed as those of RPCs; errors never are.
func TestCompression(t *testing.T) {
	w := newFixture(t)
	path := w.group("bob")
	w.do("ann", "POST", path+"/messages", `{"content":"`+strings.Repeat("x", 4000)+`"}`, "Accept-Encoding",
		"gzip").want(201, "")
	long := w.do("ann", "GET", path+"/messages", "", "Accept-Encoding", "gzip")
	testkit.Equal(t, "encoding", long.header.Get("Content-Encoding"), "gzip")
	if len(long.body) > 2000 {
		t.Fatalf("%d bytes", len(long.body))
	}
	w.do("ann", "GET", path+"/messages", "").want(200, "")
	testkit.Equal(t, "error", w.do("cid", "GET", path, "", "Accept-Encoding", "gzip").want(403,
		"NOT_A_MEMBER").header.Get("Content-Encoding"), "")
}

func TestBadRequests(t *testing.T) {
	w := newFixture(t)
	path := w.group("bob")
	for _, tt := range []struct {
		name, method, target, body string
		status                     int
		reason                     string
		headers                    []string
	}{
		{"not JSON", "POST", chats, `{bad`, 400, "INVALID_ARGUMENT", nil},
		{"an array", "POST", chats, `[]`, 400, "INVALID_ARGUMENT", nil},
		{"no body where one is needed", "POST", chats, ``, 400, "INVALID_ARGUMENT", nil},
		{"breaks a rule", "POST", chats, `{"type":"CHAT_TYPE_GROUP","memberIds":["bob"]}`, 400, "INVALID_ARGUMENT", nil},
		{"two objects", "POST", chats, `{}{}`, 400, "INVALID_ARGUMENT", nil},
		{"deep", "POST", chats, strings.Repeat("[", 100<<10), 400, "INVALID_ARGUMENT", nil},
		{"not UTF-8", "POST", chats, "{\"name\":\"\xff\"}", 400, "INVALID_ARGUMENT", nil},
		{"too large", "POST", chats, `{"name":"` + strings.Repeat("x", 128<<10) + `"}`, 413, "REQUEST_TOO_LARGE", nil},
		{"a form", "POST", chats, `a=b`, 415, "UNSUPPORTED_MEDIA_TYPE",
			[]string{"Content-Type", "application/x-www-form-urlencoded"}},
		{"gRPC", "POST", chats, `{}`, 415, "UNSUPPORTED_MEDIA_TYPE",
			[]string{"Content-Type", "application/grpc", "Authorization", ""}},
		{"other charset", "POST", chats, `{}`, 415, "UNSUPPORTED_MEDIA_TYPE",
			[]string{"Content-Type", "application/json; charset=latin1"}},
		{"no type at all", "POST", chats, `{}`, 415, "UNSUPPORTED_MEDIA_TYPE", []string{"Content-Type", "/"}},
		{"gzip", "POST", chats, `{}`, 415, "UNSUPPORTED_MEDIA_TYPE", []string{"Content-Encoding", "gzip"}},
		{"no method", "PUT", chats, `{}`, 405, "METHOD_NOT_ALLOWED", nil},
		{"no path", "GET", "/api/v1/none", ``, 404, "NO_SUCH_PATH", nil},
		{"slash at the end", "GET", chats + "/", ``, 404, "NO_SUCH_PATH", nil},
		{"an RPC", "POST", "/parley.chat.v1.ChatService/ListChats", `{}`, 404, "NO_SUCH_PATH", nil},
		{"not a number", "GET", chats + "?pageSize=x", ``, 400, "INVALID_ARGUMENT", nil},
		{"a large number", "GET", chats + "?pageSize=99999999999", ``, 400, "INVALID_ARGUMENT", nil},
		{"no value", "GET", chats + "?pageSize", ``, 400, "INVALID_ARGUMENT", nil},
		{"below the rule", "GET", chats + "?pageSize=-1", ``, 400, "INVALID_ARGUMENT", nil},
		{"twice", "GET", chats + "?pageSize=1&pageSize=2", ``, 400, "INVALID_ARGUMENT", nil},
		{"by both names", "GET", chats + "?pageSize=1&page_size=1", ``, 400, "INVALID_ARGUMENT", nil},
		{"not escaped", "GET", chats + "?pageToken=%zz", ``, 400, "INVALID_ARGUMENT", nil},
		{"query is not UTF-8", "GET", chats + "?pageToken=%ff", ``, 400, "INVALID_ARGUMENT", nil},
		{"path is not UTF-8", "GET", chats + "/%ff", ``, 400, "INVALID_ARGUMENT", nil},
		{"path breaks a rule", "GET", chats + "/chat_1", ``, 400, "INVALID_ARGUMENT", nil},
		{"slash in a segment", "GET", chats + "/chat%2F1", ``, 400, "INVALID_ARGUMENT", nil},
		{"GET with a body", "GET", chats, `{}`, 400, "INVALID_ARGUMENT", nil},
		{"DELETE with a body", "DELETE", path + "/members/bob", `{}`, 400, "INVALID_ARGUMENT", nil},
		{"body differs from the path", "POST", path + "/messages",
			`{"chatId":"chat_01ARZ3NDEKTSV4RRFFQ69G5FAV","content":"x"}`, 400, "INVALID_ARGUMENT", nil},
		{"token missing", "GET", chats, ``, 401, "UNAUTHENTICATED", []string{"Authorization", ""}},
		{"token missing, unknown path", "GET", "/api/v1/none", ``, 404, "NO_SUCH_PATH", []string{"Authorization", ""}},
		{"page token", "GET", chats + "?pageToken=x", ``, 400, "INVALID_PAGE_TOKEN", nil},
		{"sync token", "GET", "/api/v1/sync?token=x", ``, 400, "INVALID_TOKEN", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := &fixture{TB: t, handler: w.handler}
			a := w.do("ann", tt.method, tt.target, tt.body, tt.headers...).want(tt.status, tt.reason)
			testkit.Equal(t, "type", a.header.Get("Content-Type"), "application/json")
			testkit.Equal(t, "sniffing", a.header.Get("X-Content-Type-Options"), "nosniff")
			s, err := a.problem()
			w.must(err)
			if s.GetMessage() == "" || strings.ContainsAny(s.GetMessage(), "\u00a0") ||
				strings.Contains(s.GetMessage(), "chatv1") {
				t.Errorf("message: %q", s.GetMessage())
			}
			switch tt.status {
			case 401:
				testkit.Equal(t, "challenge", a.header.Get("WWW-Authenticate"), "Bearer")
			case 405:
				testkit.Equal(t, "allow", a.header.Get("Allow"), "GET, HEAD, POST")
			}
		})
	}
	testkit.Equal(t, "counted", w.count("/parley.chat.v1.ChatService/CreateChat", "resource_exhausted"), 1)
}

// What is wrong is said by field, wherever it was found.
func TestViolations(t *testing.T) {
	w := newFixture(t)
	for target, field := range map[string]string{chats + "?pageSize=-1": "page_size", chats + "?pageSize=x": "pageSize"} {
		s, err := w.do("ann", "GET", target, "").want(400, "INVALID_ARGUMENT").problem()
		w.must(err)
		var bad errdetails.BadRequest
		for _, d := range s.GetDetails() {
			_ = d.UnmarshalTo(&bad)
		}
		if len(bad.GetFieldViolations()) != 1 || bad.GetFieldViolations()[0].GetField() != field {
			t.Errorf("%s: %v", target, s)
		}
	}
}

// Headers that belong to protocols of RPCs have no effect here.
func TestHeadersOfRPCs(t *testing.T) {
	w := newFixture(t)
	headers := []string{"Connect-Timeout-Ms", "x", "Connect-Protocol-Version", "7", "Connect-Content-Encoding", "br",
		"Grpc-Encoding", "br", "Grpc-Timeout", "x", "Te", "trailers"}
	w.do("ann", "GET", chats, "", headers...).want(200, "")
	w.do("ann", "POST", chats, `{"type":"CHAT_TYPE_DIRECT","memberIds":["bob"]}`, headers...).want(201, "")
}

// unread is a body that must not be read.
type unread struct{ t *testing.T }

func (u unread) Read([]byte) (int, error) {
	u.t.Error("the body was read")
	return 0, io.EOF
}

func TestGateBeforeBody(t *testing.T) {
	w := newFixture(t)
	r := httptest.NewRequest("POST", chats, unread{t})
	rec := httptest.NewRecorder()
	w.handler.ServeHTTP(rec, r)
	testkit.Equal(t, "status", rec.Code, 401)
}

// late is a body that does not come in time.
type late struct{}

func (late) Read([]byte) (int, error) { return 0, os.ErrDeadlineExceeded }

func TestSlowBody(t *testing.T) {
	w := newFixture(t)
	r := httptest.NewRequest("POST", chats, late{})
	r.Header.Set("Authorization", "Bearer ann")
	rec := httptest.NewRecorder()
	w.handler.ServeHTTP(rec, r)
	answer{t, rec.Code, rec.Result().Header, rec.Body.Bytes()}.want(408, "DEADLINE_EXCEEDED")
}

func TestStoreTroubles(t *testing.T) {
	w := newFixture(t)
	path := w.group("bob")
	w.store.fail(store.ErrFull)
	w.do("ann", "POST", path+"/messages", `{"content":"x"}`).want(507, "STORAGE_FULL")
	w.store.fail(store.ErrUnavailable)
	down := w.do("ann", "POST", path+"/messages", `{"content":"y"}`)
	testkit.Equal(t, "status", down.status, 503)
	if down.header.Get("Retry-After") == "" {
		t.Error("it is not said when to try again")
	}
	w.store.fail(nil)
	w.do("ann", "GET", path+"/messages", "").want(200, "")
}

// The same over a connection: lengths, keep-alive and answers without bodies.
func TestOverTheWire(t *testing.T) {
	w := newFixture(t)
	path := w.group("bob")
	srv := httptest.NewServer(w.handler)
	defer srv.Close()
	for range 3 {
		for _, method := range []string{"GET", "HEAD"} {
			req, err := http.NewRequestWithContext(t.Context(), method, srv.URL+path, http.NoBody)
			w.must(err)
			req.Header.Set("Authorization", "Bearer ann")
			res, err := srv.Client().Do(req)
			w.must(err)
			b, err := io.ReadAll(res.Body)
			w.must(err)
			w.must(res.Body.Close())
			testkit.Equal(t, method, res.StatusCode, 200)
			testkit.Equal(t, method+" has a body", len(b) > 0, method == "GET")
		}
	}
	res, err := srv.Client().Post(srv.URL+chats, "application/json", strings.NewReader("{}"))
	w.must(err)
	w.must(res.Body.Close())
	testkit.Equal(t, "status", res.StatusCode, 401)
}

// Where it is not known whether something was done, the answer has the key to repeat
// it with, also one that the server made.
func TestUnknownOutcome(t *testing.T) {
	w := newFixture(t)
	path := w.group("bob")
	do := func(method, path, body string) map[string]string {
		t.Helper()
		w.store.fail(store.ErrAmbiguous, store.ErrClosed) // and then nobody can be asked any more
		s, err := w.do("ann", method, path, body).want(503, "OUTCOME_UNKNOWN").problem()
		w.must(err)
		for _, d := range s.GetDetails() {
			var info errdetails.ErrorInfo
			if d.UnmarshalTo(&info) == nil {
				return info.GetMetadata()
			}
		}
		return nil
	}
	testkit.Equal(t, "given",
		do("POST", path+"/messages", `{"content":"x","clientMessageId":"`+key+`"}`)["client_message_id"],
		key)
	made := do("POST", path+"/messages", `{"content":"made"}`)["client_message_id"]
	testkit.Equal(t, "command", do("POST", path+"/members", `{"userId":"cid","requestId":"k"}`)["request_id"], "k")
	testkit.Equal(t, "without a key", len(do("POST", path+"/members", `{"userId":"dan"}`)), 0)
	w.store.fail(nil)
	sent := w.do("ann", "POST", path+"/messages", `{"content":"made","clientMessageId":"`+made+`"}`).want(201, "")
	testkit.Equal[any](t, "sent with it", sent.at("clientMessageId"), made)
}
