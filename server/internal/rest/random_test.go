package rest_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// maker makes requests, most of them nearly right, from the descriptors.
type maker struct {
	*rand.Rand
	chats []string
	calls []protoreflect.MethodDescriptor
}

var users = []string{"ann", "bob", "cid", "dan", "nobody", "", "a b", "ann\x00", "\xff", "ü", strings.Repeat("a", 65)}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// text is a value for a field: often a good one for a field of that name.
func (m *maker) text(name protoreflect.Name) string {
	if m.IntN(12) > 0 {
		switch name {
		case "chat_id":
			return pick(m.Rand, m.chats...)
		case "user_id":
			return pick(m.Rand, users[:4]...)
		case "client_message_id":
			return fmt.Sprintf("00000000-0000-4000-8000-%012x", m.IntN(20))
		case "request_id":
			return pick(m.Rand, "a", "b", "c")
		}
	}
	switch m.IntN(5) {
	case 0:
		b := make([]byte, m.IntN(40))
		for i := range b {
			b[i] = byte(m.IntN(256))
		}
		return string(b)
	case 1:
		return pick(m.Rand, users...)
	case 2:
		return pick(m.Rand, "0", "-1", "9223372036854775807", "1e400", "NaN", "true", "null", "2026-01-01T00:00:00Z", "{}",
			"chat_1", "../..", "%2e%2e", "{chat_id}")
	case 3:
		return strings.Repeat(pick(m.Rand, "x", "%", "😀", "\u202e"), m.IntN(300))
	default:
		return "hello"
	}
}

// value is JSON for a field, of its kind more often than not.
func (m *maker) value(f protoreflect.FieldDescriptor, depth int) any {
	if m.IntN(20) == 0 {
		return pick[any](m.Rand, nil, true, 1, -1, 1.5, 1e300, "x", []any{}, []any{nil}, map[string]any{},
			map[string]any{"a": []any{1}})
	}
	if f.IsList() && depth == 0 {
		list := make([]any, m.IntN(4))
		for i := range list {
			list[i] = m.value(f, 1)
		}
		return list
	}
	switch f.Kind() {
	case protoreflect.EnumKind:
		values := f.Enum().Values()
		if m.IntN(3) == 0 {
			return m.IntN(200) - 100
		}
		return string(values.Get(m.IntN(values.Len())).Name())
	case protoreflect.StringKind:
		if f.Name() == "member_ids" {
			return pick(m.Rand, users[:4+m.IntN(len(users)-4)]...)
		}
		return strings.ToValidUTF8(m.text(f.Name()), "?")
	case protoreflect.BoolKind:
		return m.IntN(2) == 0
	case protoreflect.MessageKind:
		if f.Message().FullName() == "google.protobuf.Timestamp" {
			return pick(m.Rand, "2999-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999999Z",
				"10000-01-01T00:00:00Z", "x", "")
		}
		return m.object(f.Message())
	default:
		return pick[any](m.Rand, 0, 1, 2, 50, -1, "3", "9223372036854775807", "-9223372036854775808", 1<<31)
	}
}

func (m *maker) object(d protoreflect.MessageDescriptor) map[string]any {
	o := map[string]any{}
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		if m.IntN(3) > 0 {
			o[pick(m.Rand, f.JSONName(), string(f.Name()))] = m.value(f, 0)
		}
	}
	if m.IntN(6) == 0 {
		o[m.text("")] = m.text("")
	}
	return o
}

func (m *maker) request() *http.Request {
	method := pick(m.Rand, m.calls...)
	verb, path, hasBody := binding(method)
	segments := strings.Split(path, "/")
	for i, s := range segments {
		if name, ok := strings.CutPrefix(s, "{"); ok {
			segments[i] = m.text(protoreflect.Name(strings.TrimSuffix(name, "}")))
		}
	}
	u := &url.URL{Path: strings.Join(segments, "/")}
	for i := range segments {
		segments[i] = url.PathEscape(segments[i])
	}
	u.RawPath = strings.Join(segments, "/")
	object := m.object(method.Input())
	body := ""
	if hasBody || m.IntN(10) == 0 {
		for name := range object {
			if strings.Contains(path, "{"+name+"}") || m.IntN(8) == 0 ||
				(name == "chatId" || name == "userId" && strings.Contains(path, "{user_id}")) {
				delete(object, name)
			}
		}
		b, _ := json.Marshal(object)
		body = string(b)
		if m.IntN(8) == 0 && body != "" { // broken
			at := m.IntN(len(body))
			body = body[:at] + pick(m.Rand, "", "\xff", "{", "[[[[", "\x00", "\"") + body[min(len(body), at+m.IntN(3)):]
		}
	} else {
		query := url.Values{}
		for _, name := range slices.Sorted(maps.Keys(object)) {
			query.Add(name, fmt.Sprint(object[name]))
			if m.IntN(10) == 0 {
				query.Add(name, m.text(""))
			}
		}
		u.RawQuery = query.Encode()
		if m.IntN(10) == 0 {
			u.RawQuery += pick(m.Rand, "&", "&=", ";", "%", "&%zz=1", "&pageSize=1;x")
		}
	}
	if m.IntN(20) == 0 {
		verb = pick(m.Rand, "GET", "POST", "PATCH", "DELETE", "PUT", "HEAD")
	}
	r := httptest.NewRequest(verb, "/", strings.NewReader(body))
	r.URL = u
	r.RequestURI = u.RequestURI()
	r.Header.Set("Authorization", "Bearer "+pick(m.Rand, users[:4]...))
	if m.IntN(20) == 0 {
		r.Header.Del("Authorization")
	}
	r.Header.Set("Content-Type", "application/json")
	if m.IntN(15) == 0 {
		r.Header.Set("Content-Type", pick(m.Rand, "", "text/plain", "application/proto", "application/grpc",
			"application/connect+json", m.text("")))
	}
	for _, name := range []string{"Idempotency-Key", "If-None-Match", "Accept-Encoding", "Content-Encoding",
		"Connect-Timeout-Ms", "Grpc-Timeout", "Traceparent", "Accept"} {
		if m.IntN(25) == 0 {
			r.Header.Set(name, pick(m.Rand, "gzip", "", "a", "\"b\"", "*", "1", "-1", m.text("request_id"), m.text("")))
		}
	}
	return r
}

// No request is answered with 5xx, whatever is in it, and each error says why in
// the one format. The seed of a run that fails is in its log.
func TestRandomRequests(t *testing.T) {
	w := newFixture(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	m := &maker{Rand: rand.New(rand.NewPCG(seed, 1)), chats: []string{"chat_01ARZ3NDEKTSV4RRFFQ69G5FAV"}}
	m.calls, _ = w.methods()
	for _, others := range [][]string{{"bob"}, {"bob", "cid"}, {"cid", "dan"}} {
		m.chats = append(m.chats, strings.TrimPrefix(w.group(others...), chats+"/"))
	}
	codes := map[int]int{}
	n := 0
	// What is created is rare: a slow machine makes as many requests as it takes.
	for until := time.Now().Add(2 * time.Second); n < 500 || time.Now().Before(until) ||
		codes[201] == 0 && n < 10_000; n++ {
		r := m.request()
		what := fmt.Sprintf("request %d: %s %s %v", n, r.Method, r.URL, r.Header)
		rec := httptest.NewRecorder()
		w.handler.ServeHTTP(rec, r)
		codes[rec.Code]++
		a := answer{t, rec.Code, rec.Result().Header, rec.Body.Bytes()}
		switch {
		case rec.Code >= 400 && len(a.body) == 0:
			t.Fatalf("%s: %d without a body", what, rec.Code)
		case rec.Code == 501 && a.reason() == "NOT_IN_THIS_MODE": // topics, which this fixture does not have
		case rec.Code >= 500, rec.Code < 200:
			t.Fatalf("%s: %d %s", what, rec.Code, rec.Body)
		case rec.Code >= 400:
			if reason := a.reason(); reason == "(none)" || reason == "UNKNOWN" || reason == "INTERNAL" {
				t.Fatalf("%s: %d %s", what, rec.Code, rec.Body)
			}
		case rec.Code == 200 && a.header.Get("Content-Encoding") == "" && !json.Valid(a.body):
			t.Fatalf("%s: %d %s", what, rec.Code, rec.Body)
		}
	}
	t.Logf("%d requests: %v", n, codes)
	if codes[200] == 0 || codes[201] == 0 || codes[400] == 0 {
		t.Errorf("the requests do not reach far enough: %v", codes)
	}
}
