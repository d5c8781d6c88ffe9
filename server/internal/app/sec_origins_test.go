package app

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// Pages of the origins that were named may call, to the letter; no other may, whatever its name looks like, and none
// with cookies. All origins cannot be named (S-33).
func TestSec_S_33_Origins(t *testing.T) {
	h := withCORS(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}),
		[]string{"https://chat.example.com", "http://localhost:5173"})
	for origin, allowed := range map[string]bool{
		"https://chat.example.com": true, "http://localhost:5173": true,
		"null": false, "*": false, "https://evil.example": false, "http://chat.example.com": false,
		"https://chat.example.com.evil.example": false, "https://evilchat.example.com": false,
		"https://a.chat.example.com": false, "https://example.com": false, "https://chat.example.com:8443": false,
		"https://chat.example.com.": false, "https://chat.example.com/": false,
		"https://chat.example.com@evil.example": false,
		"https://chatXexample.com":              false, "http://localhost": false, "http://localhost:5174": false,
		"file://": false, "https://": false, "chat.example.com": false,
	} {
		for _, method := range []string{http.MethodOptions, http.MethodPost, http.MethodGet} {
			r := httptest.NewRequestWithContext(t.Context(), method, "/parley.chat.v1.ChatService/GetChat", http.NoBody)
			r.Header.Set("Origin", origin)
			if method == http.MethodOptions {
				r.Header.Set("Access-Control-Request-Method", http.MethodPost)
				r.Header.Set("Access-Control-Request-Headers", "authorization,content-type")
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			want := ""
			if allowed {
				want = origin
			}
			if got := w.Header().Get("Access-Control-Allow-Origin"); got != want {
				t.Errorf("%s from %q: allowed %q", method, origin, got)
			}
			if got := w.Header().Get("Access-Control-Allow-Credentials"); got != "" {
				t.Errorf("%s from %q: credentials %q", method, origin, got)
			}
			if exposed := w.Header().Get("Access-Control-Expose-Headers"); strings.Contains(exposed, "*") ||
				strings.Contains(strings.ToLower(exposed), "authorization") {
				t.Errorf("exposed: %s", exposed)
			}
		}
	}
	for _, origins := range []string{"*", "https://*.example.com", "https://chat.example.com,*"} {
		if _, says := parse(t, []string{"--web-origins", origins}, nil); says == "" {
			t.Errorf("%q is taken", origins)
		}
	}
}
