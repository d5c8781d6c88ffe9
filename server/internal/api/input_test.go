package api_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/infra/testkit"
)

const (
	createChat   = "/parley.chat.v1.ChatService/CreateChat"
	getChat      = "/parley.chat.v1.ChatService/GetChat"
	sendMessage  = "/parley.message.v1.MessageService/SendMessage"
	listMessages = "/parley.message.v1.MessageService/ListMessages"
)

func quote(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// Limits, at them and one beyond (S-21).
func TestSec_S_21_Limits(t *testing.T) {
	s := newServer(t)
	id := s.group("bob")
	send := func(content string) string {
		return `{"chatId":"` + id + `","content":` + quote(content) + `}`
	}
	group := func(name string, members int) string {
		list := make([]string, members)
		for i := range list {
			list[i] = fmt.Sprintf("u%d", i)
			s.must(s.chats.EnsureUser(t.Context(), list[i]))
		}
		b, err := json.Marshal(map[string]any{"type": "CHAT_TYPE_GROUP", "name": name, "memberIds": list})
		s.must(err)
		return string(b)
	}
	for _, tt := range []struct {
		name, procedure, body string
		ok                    bool
	}{
		{"text of 16 KiB - 1", sendMessage, send(strings.Repeat("x", 16<<10-1)), true},
		{"text of 16 KiB", sendMessage, send(strings.Repeat("x", 16<<10)), true},
		{"text of 16 KiB + 1", sendMessage, send(strings.Repeat("x", 16<<10+1)), false},
		{"text of 16 KiB in 3-byte characters", sendMessage, send(strings.Repeat("€", 5461)), true},
		{"more of them", sendMessage, send(strings.Repeat("€", 5462)), false},
		{"no text", sendMessage, send(""), false},
		{"name of 128 characters", createChat, group(strings.Repeat("ü", 128), 1), true},
		{"name of 129 characters", createChat, group(strings.Repeat("ü", 129), 1), false},
		{"no name", createChat, group("", 1), false},
		{"99 others", createChat, group("g", 99), true},
		{"100 others", createChat, group("g", 100), false},
		{"101 others", createChat, group("g", 101), false},
		{"no others", createChat, group("g", 0), false},
		{"page of 100", listMessages, `{"chatId":"` + id + `","pageSize":100}`, true},
		{"page of 101", listMessages, `{"chatId":"` + id + `","pageSize":101}`, true},
		{"page of 2147483647", listMessages, `{"chatId":"` + id + `","pageSize":2147483647}`, true},
		{"page of -1", listMessages, `{"chatId":"` + id + `","pageSize":-1}`, false},
		{"both directions", listMessages, `{"chatId":"` + id + `","beforeSequence":"1","afterSequence":"0"}`, false},
		{"direct chat with a name", createChat, `{"type":"CHAT_TYPE_DIRECT","name":"n","memberIds":["bob"]}`, false},
		{"direct chat with two", createChat, `{"type":"CHAT_TYPE_DIRECT","memberIds":["ann","bob","cid"]}`, false},
		{"L-022: direct chat that names the caller too", createChat,
			`{"type":"CHAT_TYPE_DIRECT","memberIds":["bob","ann","bob"]}`, true},
		{"no type", createChat, `{"name":"n","memberIds":["bob"]}`, false},
		{"unknown type", createChat, `{"type":9,"name":"n","memberIds":["bob"]}`, false},
		{"request id of 64", createChat, `{"type":1,"memberIds":["bob"],"requestId":"` + strings.Repeat("a", 64) + `"}`,
			true},
		{"request id of 65", createChat, `{"type":1,"memberIds":["bob"],"requestId":"` + strings.Repeat("a", 65) + `"}`,
			false},
		{"client message id", sendMessage, `{"chatId":"` + id + `","content":"x","clientMessageId":"1"}`, false},
		{"user id", createChat, `{"type":1,"memberIds":["b#ob"]}`, false},
		{"user id with CRLF", createChat, `{"type":1,"memberIds":["bob\r\n"]}`, false},
		{"empty chat id", getChat, `{}`, false},
		{"chat id", getChat, `{"chatId":"chat_1"}`, false},
		{"chat id in lower case", getChat, `{"chatId":"` + strings.ToLower(id) + `"}`, false},
		{"chat id with a newline", getChat, `{"chatId":"` + id + `\n"}`, false},
		{"chat id of another type", getChat, `{"chatId":7}`, false},
	} {
		a := s.post(tt.procedure, tt.body)
		code, reason, text := a.error()
		if tt.ok {
			testkit.Equal(t, tt.name+" "+text, a.status, http.StatusOK)
			continue
		}
		testkit.Equal(t, tt.name, fmt.Sprint(a.status, code), fmt.Sprint(http.StatusBadRequest, "invalid_argument"))
		if reason != "INVALID_ARGUMENT" && tt.name != "chat id of another type" {
			t.Fatalf("%s: reason %q", tt.name, reason)
		}
		if text == "" || strings.Contains(text, "chat: ") {
			t.Fatalf("%s: text %q", tt.name, text)
		}
	}
	a := s.post(createChat, `{"type":1,"memberIds":["ann"]}`)
	_, reason, _ := a.error()
	testkit.Equal(t, "with oneself", reason, "INVALID_OPERATION")
	a = s.post(createChat, `{"type":1,"memberIds":["bob","cid"]}`)
	_, reason, _ = a.error()
	testkit.Equal(t, "L-022: direct chat of others", reason, "INVALID_ARGUMENT")
	a = s.post(createChat, `{"type":1,"memberIds":["nobody_here"]}`)
	_, reason, text := a.error()
	testkit.Equal(t, "L-023: unknown user", reason+" "+text, `USER_NOT_FOUND there is no user "nobody_here"`)
}

// A page may be asked to be larger than it gets.
func TestLargePages(t *testing.T) {
	s := newServer(t)
	id := s.group("bob")
	for i := range 101 {
		_, err := s.chats.Send(t.Context(), chat.Send{Caller: "ann", ChatID: id, Content: fmt.Sprint(i)})
		s.must(err)
	}
	zero := int64(0)
	res, err := s.ann().message.ListMessages(t.Context(),
		&messagev1.ListMessagesRequest{ChatId: id, PageSize: 2147483647, AfterSequence: &zero})
	s.must(err)
	testkit.Equal(t, "messages", len(res.GetMessages()), 100)
}

// Wherever an enum is refused, the answer says what it takes.
func TestEnumsAreExplained(t *testing.T) {
	s := newServer(t)
	id := s.group("bob")
	const types = "must be one of CHAT_TYPE_DIRECT, CHAT_TYPE_GROUP"
	for _, tt := range []struct{ procedure, body, want string }{
		{createChat, `{"type":"GROUP","memberIds":["bob"]}`, "type " + types + ", not \"GROUP\""},
		{createChat, `{"type":"GROUP","memberIds":["bob"],"later":1}`, "type " + types + ", not \"GROUP\""},
		{createChat, `{"type":9,"memberIds":["bob"]}`, "type: " + types},
		{createChat, `{"memberIds":["bob"]}`, "type: " + types},
		{"/parley.chat.v1.ChatService/UpdateMemberRole", `{"chatId":"` + id + `","userId":"bob","role":"BOSS"}`,
			"role must be one of MEMBER_ROLE_OWNER, MEMBER_ROLE_ADMIN, MEMBER_ROLE_MEMBER, not \"BOSS\""},
	} {
		code, reason, text := s.post(tt.procedure, tt.body).error()
		if code != "invalid_argument" || reason != "INVALID_ARGUMENT" || !strings.HasSuffix(text, tt.want) {
			t.Errorf("%s: %s %s %q", tt.body, code, reason, text)
		}
	}
}

// What is wrong is said by field, in details that programs can read.
func TestFieldViolations(t *testing.T) {
	s := newServer(t)
	_, err := s.ann().message.SendMessage(t.Context(),
		&messagev1.SendMessageRequest{ChatId: "x", Content: "y", ClientMessageId: "z"})
	wantCode(t, "send", err, connect.CodeInvalidArgument, "INVALID_ARGUMENT")
	var fields []string
	for _, d := range connectError(t, err).Details() {
		m, err := d.Value()
		s.must(err)
		if bad, ok := m.(*errdetails.BadRequest); ok {
			for _, v := range bad.GetFieldViolations() {
				fields = append(fields, v.GetField()+" "+v.GetReason())
			}
		}
	}
	testkit.Equal(t, "violations", fields, []string{"chat_id string.pattern", "client_message_id string.uuid"})
}

// Text is stored byte for byte, what could harm its readers refused (S-23).
func TestSec_S_23_Text(t *testing.T) {
	s := newServer(t)
	id := s.group("bob")
	for name, content := range map[string]string{
		"emoji with joiners":   "👩‍👩‍👧‍👦 ❤️‍🔥",
		"not normalised":       "e\u0301 é",
		"lines":                "a\r\nb\tc\n",
		"bidi in a message":    "abc \u202eתשרק\u202c",
		"noncharacter":         "\ufffe\uffff",
		"many combining marks": "z" + strings.Repeat("\u0301", 5000),
		"markup":               `<script>alert("1")</script> {{.}} ${x} '; --`,
		"delete and C1":        "\u007f\u0085",
	} {
		res, err := s.ann().message.SendMessage(t.Context(), &messagev1.SendMessageRequest{ChatId: id, Content: content})
		s.must(err)
		list, err := s.ann().message.ListMessages(t.Context(),
			&messagev1.ListMessagesRequest{ChatId: id, BeforeSequence: res.GetSequence() + 1, PageSize: 1})
		s.must(err)
		testkit.Equal(t, name, list.GetMessages()[0].GetContent(), content)
	}
	for name, content := range map[string]string{"NUL": `a\u0000`, "escape": `\u001b[2J`, "bell": `\u0007`,
		"lone surrogate": `\ud800`} {
		a := s.post(sendMessage, `{"chatId":"`+id+`","content":"`+content+`"}`)
		testkit.Equal(t, name, a.status, http.StatusBadRequest)
	}
	for name, b := range map[string]string{"overlong": "\xc0\xaf", "lone byte": "\xff",
		"encoded surrogate": "\xed\xa0\x80"} {
		a := s.post(sendMessage, `{"chatId":"`+id+`","content":"`+b+`"}`)
		testkit.Equal(t, name+" in JSON", a.status, http.StatusBadRequest)
		body := append([]byte("\x0a\x1f"+id+"\x1a"), byte(len(b)))
		a = s.do(http.MethodPost, sendMessage, "application/proto", append(body, b...))
		testkit.Equal(t, name+" in protobuf", a.status, http.StatusBadRequest)
	}
	for name, tt := range map[string]struct {
		text string
		ok   bool
	}{
		"plain":             {"Friends of Go", true},
		"emoji":             {"Family 👩‍👩‍👧", true},
		"heart":             {"❤️‍🔥", true},
		"Persian":           {"می\u200cخواهم", true},
		"Hebrew":            {"שלום", true},
		"blank":             {" \t", false},
		"line":              {"a\nb", false},
		"tab":               {"a\tb", false},
		"separator":         {"a\u2028b", false},
		"C1":                {"a\u0085b", false},
		"override":          {"abc\u202egpj.exe", false},
		"isolate":           {"\u2066abc", false},
		"mark":              {"abc\u200f", false},
		"zero width space":  {"ad\u200bmin", false},
		"joiner in Latin":   {"ad\u200dmin", false},
		"joiner at the end": {"👩\u200d", false},
		"two joiners":       {"👩\u200d\u200d👩", false},
		"byte order mark":   {"\ufeffabc", false},
		"soft hyphen":       {"ad\u00admin", false},

		"flag of tags":           {"\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f", true},
		"number sign of Arabic":  {"\u0600", true},
		"combining mark":         {"e\u0301", true},
		"Braille":                {"\u2803", true},
		"Korean with a filler":   {"\uac00\u3164", true},
		"private use":            {"\ue000", true},
		"Hangul filler":          {"\u3164", false},
		"half-width filler":      {"\uffa0", false},
		"fillers of Jamo":        {"\u115f\u1160", false},
		"blank Braille":          {"\u2800\u2800", false},
		"grapheme joiner":        {"\u034f", false},
		"invisible times":        {"a\u2062b", false},
		"invisible plus alone":   {"\u2064", false},
		"variation selector":     {"\ufe0f", false},
		"variation selector 17":  {"\U000e0100", false},
		"Mongolian selector":     {"\u180b", false},
		"tags alone":             {"\U000e0061\U000e0062\U000e007f", false},
		"language tag":           {"a\U000e0001", false},
		"no character":           {"a\ufffeb", false},
		"no character of BMP 15": {"a\U000effffb", false},
		"Khmer inherent vowel":   {"\u17b4", false},
		"old format control":     {"a\u206ab", false},
		"annotation":             {"a\ufff9b\ufffac\ufffb", false},
		"spaces of all kinds":    {"\u00a0\u2003\u3000", false},
		"space and filler":       {" \u3164 ", false},
	} {
		_, err := s.ann().chat.CreateChat(t.Context(),
			&chatv1.CreateChatRequest{Type: chatv1.ChatType_CHAT_TYPE_GROUP, Name: tt.text, MemberIds: []string{"bob"}})
		if tt.ok {
			s.must(err)
		} else {
			wantCode(t, name, err, connect.CodeInvalidArgument, "INVALID_ARGUMENT")
		}
	}
}

// A stranger cannot tell a chat that exists from one that does not: the answers
// are the same, byte for byte.
func TestUnknownChatAnswersLikeAStranger(t *testing.T) {
	s := newServer(t)
	id, unknown := s.group("bob"), chat.NewID("chat_")
	for procedure, body := range map[string]string{
		getChat: `{"chatId":"%"}`,
		"/parley.chat.v1.ChatService/ListMembers": `{"chatId":"%"}`,
		sendMessage:  `{"chatId":"%","content":"x"}`,
		listMessages: `{"chatId":"%"}`,
		"/parley.message.v1.MessageService/ListChanges": `{"chatId":"%","afterVersion":"3"}`,
		"/parley.message.v1.MessageService/MarkRead":    `{"chatId":"%","sequence":"1"}`,
	} {
		a := s.post(procedure, strings.ReplaceAll(body, "%", id), "X-User", "cid")
		b := s.post(procedure, strings.ReplaceAll(body, "%", unknown), "X-User", "cid")
		code, reason, _ := a.error()
		testkit.Equal(t, procedure, code+" "+reason, "permission_denied NOT_A_MEMBER")
		a.header.Del("Date")
		b.header.Del("Date")
		testkit.Equal(t, procedure, fmt.Sprint(a.status, a.header, string(a.body)),
			fmt.Sprint(b.status, b.header, string(b.body)))
	}
}

// S-22: what a request inflates to counts, and is not inflated beyond it.
func TestSec_S_22_CompressionBomb(t *testing.T) {
	s := newServer(t)
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	zeros := make([]byte, 1<<20)
	for range 64 {
		_, err := z.Write(zeros)
		s.must(err)
	}
	s.must(z.Close())
	if bomb.Len() > 96<<10 {
		t.Fatalf("the bomb has %d bytes", bomb.Len())
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	a := s.do(http.MethodPost, sendMessage, "application/proto", bomb.Bytes(), "Content-Encoding", "gzip")
	runtime.ReadMemStats(&after)
	code, _, _ := a.error()
	testkit.Equal(t, "code", code, "resource_exhausted")
	if n := after.TotalAlloc - before.TotalAlloc; n > 8<<20 {
		t.Fatalf("%d bytes were allocated", n)
	}
}

func TestMalformed(t *testing.T) {
	s := newServer(t)
	id := s.group("bob")
	ok := `{"chatId":"` + id + `"}`
	for _, tt := range []struct {
		name, contentType, body string
		status                  int
	}{
		{"fine", "application/json", ok, 200},
		{"with charset", "application/json; charset=utf-8", ok, 200},
		{"1 MiB of nesting", "application/json", strings.Repeat("[", 1<<20), 429},
		{"nesting within the limit", "application/json", strings.Repeat("[", 120<<10), 400},
		{"nesting in an unknown field", "application/json", `{"chatId":"` + id + `","x":` + strings.Repeat("[", 60<<10) +
			strings.Repeat("]", 60<<10) + "}", 400},
		{"nested objects in an unknown field", "application/json", `{"x":` + strings.Repeat(`{"a":`, 12<<10), 400},
		{"half of it", "application/json", ok[:10], 400},
		{"nothing", "application/json", "", 400},
		{"an array", "application/json", "[]", 400},
		{"a field twice", "application/json", `{"chatId":"` + id + `","chat_id":"` + id + `"}`, 400},
		{"128 KiB and more", "application/json", `{"x":"` + strings.Repeat("x", 128<<10) + `"}`, 429},
		{"not protobuf", "application/proto", "\xff\xff\xff", 400},
		{"a group that never ends", "application/proto", strings.Repeat("\x0b", 100<<10), 400},
		{"text", "text/plain", ok, 415},
		{"a form", "application/x-www-form-urlencoded", "chatId=" + id, 415},
		{"no type", "", ok, 415},
	} {
		a := s.do(http.MethodPost, getChat, tt.contentType, []byte(tt.body))
		testkit.Equal(t, tt.name+": "+string(a.body[:min(len(a.body), 200)]), a.status, tt.status)
	}
	testkit.Equal(t, "unknown compression",
		s.do(http.MethodPost, getChat, "application/json", []byte(ok), "Content-Encoding",
			"br").status, 501)
	testkit.Equal(t, "no such method", s.post("/parley.chat.v1.ChatService/Destroy", "{}").status, 404)
	testkit.Equal(t, "PUT", s.do(http.MethodPut, getChat, "application/json", []byte(ok)).status, 405)
}

// S-53
func TestSec_S_53_IdempotencyKey(t *testing.T) {
	s := newServer(t)
	id := s.group("bob")
	const key = "3b241101-e2bb-4255-8caf-4136c566a962"
	body := func(extra string) string { return `{"chatId":"` + id + `","content":"x"` + extra + `}` }
	first := s.post(sendMessage, body(""), "Idempotency-Key", key)
	testkit.Equal(t, "first", first.status, 200)
	if !strings.Contains(string(first.body), key) {
		t.Fatalf("the id is not in the answer: %s", first.body)
	}
	for name, headers := range map[string][]string{
		"again":          {"Idempotency-Key", key},
		"quoted":         {"Idempotency-Key", `"` + key + `"`},
		"in lower case":  {"idempotency-key", key},
		"upper case":     {"Idempotency-Key", strings.ToUpper(key)},
		"field in upper": {"field", strings.ToUpper(key)},
		"either case":    {"Idempotency-Key", key, "field", strings.ToUpper(key)},
		"field and same": {"Idempotency-Key", key, "field", key},
		"field alone":    {"field", key},
	} {
		extra := ""
		if n := len(headers); headers[n-2] == "field" {
			extra, headers = `,"clientMessageId":"`+headers[n-1]+`"`, headers[:n-2]
		}
		testkit.Equal(t, name, s.post(sendMessage, body(extra), headers...).header.Get("Idempotency-Replayed"), "true")
	}
	for name, headers := range map[string][]string{
		"bad form":     {"Idempotency-Key", "1"},
		"empty":        {"Idempotency-Key", `""`},
		"twice":        {"Idempotency-Key", key, "Idempotency-Key", key},
		"other":        {"Idempotency-Key", "00000000-0000-4000-8000-000000000000", "field", key},
		"line in it":   {"Idempotency-Key", `"a b"`},
		"far too long": {"Idempotency-Key", strings.Repeat("a", 4000)},
	} {
		extra := ""
		if n := len(headers); headers[n-2] == "field" {
			extra, headers = `,"clientMessageId":"`+headers[n-1]+`"`, headers[:n-2]
		}
		_, reason, text := s.post(sendMessage, body(extra), headers...).error()
		if reason != "INVALID_ARGUMENT" || !strings.Contains(text, "Idempotency-Key") {
			t.Fatalf("%s: %s %s", name, reason, text)
		}
	}
	upper := strings.ToUpper("5f0c3d6e-9f0a-4c1e-8f5b-0a1b2c3d4e5f")
	stored := string(s.post(sendMessage, body(`,"clientMessageId":"`+upper+`"`)).body)
	if !strings.Contains(stored, strings.ToLower(upper)) || strings.Contains(stored, upper) {
		t.Fatalf("not in lower case: %s", stored)
	}
	create := `{"type":"CHAT_TYPE_GROUP","name":"g","memberIds":["bob"]}`
	s.post(createChat, create, "Idempotency-Key", "k1")
	testkit.Equal(t, "a request_id is as it is",
		s.post(createChat, create, "Idempotency-Key", "K1").header.Get("Idempotency-Replayed"), "")
	testkit.Equal(t, "request_id", s.post(createChat, create, "Idempotency-Key", "k1").header.Get("Idempotency-Replayed"),
		"true")
	testkit.Equal(t, "reads ignore it", s.post(getChat, `{"chatId":"`+id+`"}`, "Idempotency-Key", "!").status, 200)
	// S-53: keys belong to a user.
	testkit.Equal(t, "another user's", s.post(sendMessage, body(""), "Idempotency-Key", key, "X-User",
		"bob").header.Get("Idempotency-Replayed"), "")
}

// L-025, L-027: of the other members only distinct ones count, in a list that has a limit.
func TestDistinctMembersCount(t *testing.T) {
	s := newServer(t)
	var others []string
	for n := range 100 {
		others = append(others, fmt.Sprintf("user_%02d", n))
		s.must(s.chats.EnsureUser(t.Context(), others[n]))
	}
	create := func(ids ...[]string) error {
		_, err := s.ann().chat.CreateChat(t.Context(),
			&chatv1.CreateChatRequest{Type: chatv1.ChatType_CHAT_TYPE_GROUP, Name: "g", MemberIds: slices.Concat(ids...)})
		return err
	}
	s.must(create(others[:99], others[:99], []string{"ann", "ann"}))
	err := create(others)
	wantCode(t, "100 others", err, connect.CodeInvalidArgument, "INVALID_ARGUMENT")
	testkit.Equal(t, "100 others", violations(t, err), "member_ids: a group has 1 to 99 other members")
	err = create(slices.Repeat(others[:1], 1001))
	wantCode(t, "1001 entries", err, connect.CodeInvalidArgument, "INVALID_ARGUMENT")
	s.must(create(slices.Repeat(others[:1], 1000)))
}
