package rest_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

// FuzzREST looks for requests that the server takes the blame for.
func FuzzREST(f *testing.F) {
	w := newFixture(f)
	path := w.group("bob")
	f.Add("POST", chats, "", `{"type":"CHAT_TYPE_GROUP","name":"g","memberIds":["bob"]}`, "k")
	f.Add("POST", path+"/messages", "", `{"content":"x","client_message_id":"3b241101-e2bb-4255-8caf-4136c566a962"}`, "")
	f.Add("GET", path+"/messages", "after_sequence=0&pageSize=1", "", "")
	f.Add("PATCH", path+"/members/bob", "", `{"role":"MEMBER_ROLE_ADMIN","requestId":"r"}`, "r")
	f.Add("DELETE", path+"/members/bob", "requestId=r", "", "")
	f.Add("POST", path+"/mute", "", `{"mutedUntil":"2999-01-01T00:00:00Z"}`, "")
	f.Fuzz(func(t *testing.T, method, target, query, body, key string) {
		r := httptest.NewRequest("GET", "/", strings.NewReader(body))
		r.Method = strings.ToUpper(method)
		r.URL = &url.URL{Path: target, RawQuery: query}
		r.Header = http.Header{"Authorization": {"Bearer ann"}, "Content-Type": {"application/json"}}
		if key != "" {
			r.Header.Set("Idempotency-Key", key)
		}
		rec := httptest.NewRecorder()
		w.handler.ServeHTTP(rec, r)
		a := answer{t, rec.Code, rec.Result().Header, rec.Body.Bytes()}
		if rec.Code >= 500 || (rec.Code >= 400 && a.reason() == "(none)") {
			t.Fatalf("%s %s?%s %q: %d %s", r.Method, target, query, body, rec.Code, rec.Body)
		}
	})
}
