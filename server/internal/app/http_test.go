package app

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// origins are those that a setting, or the default, stands for.
func origins(t *testing.T, setting string) []string {
	t.Helper()
	c, failure := parse(t, nil, map[string]string{"PARLEY_WEB_ORIGINS": setting})
	if failure != "" {
		t.Fatal(failure)
	}
	return c.WebOrigins
}

// Pages of this machine may call the API with a token, those of others may not.
func TestCORS(t *testing.T) {
	reached := 0
	h := withCORS(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		reached++
		w.Header().Set("ETag", "x")
	}), origins(t, ""))
	for origin, allowed := range map[string]bool{
		"http://localhost:5173": true, "https://localhost:5173": true, "http://localhost": true,
		"http://127.0.0.1:3000": true, "http://[::1]:3000": true,
		"https://evil.example": false, "http://localhost.evil.example": false, "http://127.0.0.1.evil.example:80": false,
		"null": false,
	} {
		r := httptest.NewRequest(http.MethodOptions, "/parley.chat.v1.ChatService/ListChats", http.NoBody)
		r.Header.Set("Origin", origin)
		r.Header.Set("Access-Control-Request-Method", http.MethodPost)
		r.Header.Set("Access-Control-Request-Headers",
			"authorization,connect-protocol-version,content-type,idempotency-key,last-event-id")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if got := w.Header().Get("Access-Control-Allow-Origin"); (got == origin) != allowed || got == "*" {
			t.Errorf("preflight from %s: %q", origin, got)
		}
		if got := strings.ToLower(w.Header().Get("Access-Control-Allow-Headers")); strings.Contains(got,
			"authorization") != allowed {
			t.Errorf("preflight from %s allows headers %q", origin, got)
		}
		if w.Header().Get("Access-Control-Allow-Credentials") != "" {
			t.Error("cookies are no business of ours")
		}
		r = httptest.NewRequest(http.MethodPost, "/x", http.NoBody)
		r.Header.Set("Origin", origin)
		w = httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if got := strings.ToLower(w.Header().Get("Access-Control-Expose-Headers")); strings.Contains(got,
			"retry-after") != allowed {
			t.Errorf("answer to %s exposes %q", origin, got)
		}
	}
	if reached != 9 {
		t.Errorf("%d requests reached the handler; preflights must not", reached)
	}
}

// The REST API needs more methods than RPCs do, and a header of its own.
func TestCORSOfREST(t *testing.T) {
	h := withCORS(http.NotFoundHandler(), origins(t, ""))
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch,
		http.MethodDelete} {
		r := httptest.NewRequest(http.MethodOptions, "/api/v1/chats", http.NoBody)
		r.Header.Set("Origin", "http://localhost:5173")
		r.Header.Set("Access-Control-Request-Method", method)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if got := w.Header().Get("Access-Control-Allow-Methods"); got != method {
			t.Errorf("%s: %q", method, got)
		}
	}
	r := httptest.NewRequest(http.MethodGet, "/api/v1/chats", http.NoBody)
	r.Header.Set("Origin", "http://localhost:5173")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if got := w.Header().Get("Access-Control-Expose-Headers"); !strings.Contains(got, "X-Idempotent-Replay") {
		t.Errorf("exposed: %q", got)
	}
}

func TestLocalAddress(t *testing.T) {
	for ip, want := range map[string]string{"127.0.0.1": "127.0.0.1:80", "0.0.0.0": "127.0.0.1:80", "::": "127.0.0.1:80",
		"::1": "[::1]:80"} {
		if got := localAddr(&net.TCPAddr{IP: net.ParseIP(ip), Port: 80}); got != want {
			t.Errorf("%s: %s", ip, got)
		}
	}
}

// Which pages may call the API is a setting, and none is not all.
func TestWebOrigins(t *testing.T) {
	for setting, want := range map[string]map[string]bool{
		"https://chat.example.com": {"https://chat.example.com": true,
			"http://chat.example.com": false, "https://chat.example.com:8443": false, "http://localhost:3000": false,
			"https://chat.example.com.evil.example": false},
		"local, https://Chat.Example.com:443,http://10.0.0.7:3000": {"https://chat.example.com": true,
			"http://10.0.0.7:3000": true, "http://10.0.0.7": false, "http://localhost:3000": true},
		"none": {"http://localhost:3000": false, "https://chat.example.com": false, "null": false},
	} {
		h := withCORS(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), origins(t, setting))
		for origin, allowed := range want {
			for _, method := range []string{http.MethodOptions, http.MethodPost} {
				r := httptest.NewRequest(method, "/api/v1/chats", http.NoBody)
				r.Header.Set("Origin", origin)
				r.Header.Set("Access-Control-Request-Method", http.MethodPost)
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				if got := w.Header().Get("Access-Control-Allow-Origin"); (got == origin) != allowed || (got != "") != allowed {
					t.Errorf("%s: %s from %s: %q", setting, method, origin, got)
				}
			}
		}
	}
}
