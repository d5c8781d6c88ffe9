package app

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// Browsers get what the policy says; what caches keep depends on the origin; a program's
// call has no such headers.
func TestPolicyOfOrigins(t *testing.T) {
	const page = "https://chat.example.com"
	h := withCORS(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }),
		[]string{page})
	for _, c := range []struct {
		name, method, origin, asks string
		status                     int
		allowed, vary              string
	}{
		{"a program's call", http.MethodPost, "", "", http.StatusTeapot, "", ""},
		{"a program's read", http.MethodGet, "", "", http.StatusTeapot, "", "Origin"},
		{"a page's call", http.MethodPost, page, "", http.StatusTeapot, page, "Origin"},
		{"a page's read", http.MethodGet, page, "", http.StatusTeapot, page, "Origin"},
		{"another page's call", http.MethodPost, "https://evil.example", "", http.StatusTeapot, "", "Origin"},
		{"a page's question", http.MethodOptions, page, http.MethodPost, http.StatusNoContent, page,
			"Origin, Access-Control-Request-Method, Access-Control-Request-Headers"},
		{"another page's question", http.MethodOptions, "https://evil.example", http.MethodPost, http.StatusNoContent, "",
			"Origin, Access-Control-Request-Method, Access-Control-Request-Headers"},
	} {
		r := httptest.NewRequestWithContext(t.Context(), c.method, "/parley.chat.v1.ChatService/GetChat", http.NoBody)
		if c.origin != "" {
			r.Header.Set("Origin", c.origin)
		}
		if c.asks != "" {
			r.Header.Set("Access-Control-Request-Method", c.asks)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		allowed, vary := w.Header().Get("Access-Control-Allow-Origin"), w.Header().Get("Vary")
		if w.Code != c.status || allowed != c.allowed || vary != c.vary {
			t.Errorf("%s: %d, allowed %q, vary %q", c.name, w.Code, allowed, vary)
		}
	}
}
