package api

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/registry"
	"github.com/parley-chat/parley/server/store/storetest"
)

// open serves an empty registry and returns its address.
func open(t *testing.T, listen, password string) string {
	t.Helper()
	s, err := Listen(t.Context(), Config{
		Registry: registry.New(storetest.NewMap(time.Now)), Listen: listen, Password: password, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, func() {}) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s.Addr()
}

func ask(t *testing.T, method, addr string, change func(*http.Request)) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+addr+"/subjects/a", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	change(req)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	return res.StatusCode
}

// Without a password the registry answers programs of this machine, and no page in
// its browser.
func TestOnlyFromHere(t *testing.T) {
	addr := open(t, "127.0.0.1:0", "")
	_, port, _ := net.SplitHostPort(addr)
	for name, tt := range map[string]struct {
		change func(*http.Request)
		want   int
	}{
		"program":   {func(*http.Request) {}, http.StatusNotFound},
		"localhost": {func(r *http.Request) { r.Host = "localhost:" + port }, http.StatusNotFound},
		"rebound":   {func(r *http.Request) { r.Host = "evil.example:" + port }, http.StatusMisdirectedRequest},
		"page":      {func(r *http.Request) { r.Header.Set("Origin", "https://evil.example") }, http.StatusForbidden},
	} {
		if got := ask(t, http.MethodDelete, addr, tt.change); got != tt.want {
			t.Errorf("%s: %d", name, got)
		}
	}
	for _, listen := range []string{"0.0.0.0:0", "example.com:0", ":0"} {
		if s, err := Listen(t.Context(), Config{Listen: listen}); err == nil {
			s.Close()
			t.Errorf("listens on %s without a password", listen)
		}
	}
}

func TestPassword(t *testing.T) {
	addr := open(t, "0.0.0.0:0", "secret")
	_, port, _ := net.SplitHostPort(addr)
	addr = "127.0.0.1:" + port
	for password, want := range map[string]int{"": 401, "Secret": 401, "secret": 404} {
		if got := ask(t, http.MethodGet, addr, func(r *http.Request) { r.SetBasicAuth("any", password) }); got != want {
			t.Errorf("%q: %d", password, got)
		}
	}
	if got := ask(t, http.MethodGet, addr, func(*http.Request) {}); got != 401 {
		t.Errorf("no password: %d", got)
	}
}
