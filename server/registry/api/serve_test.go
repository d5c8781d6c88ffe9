package api

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/registry"
	"github.com/parley-chat/parley/server/store/storetest"
)

// open serves an empty registry and returns its address.
func open(t *testing.T, listen, password string) string {
	t.Helper()
	return opened(t, Config{Listen: listen, Password: password})
}

func opened(t *testing.T, cfg Config) string {
	t.Helper()
	cfg.Registry, cfg.Logger = registry.New(storetest.NewMemory(time.Now)), slog.New(slog.DiscardHandler)
	s, err := Listen(t.Context(), cfg)
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
		"program":   {func(*http.Request) {}, http.StatusUnprocessableEntity},
		"localhost": {func(r *http.Request) { r.Host = "localhost:" + port }, http.StatusUnprocessableEntity},
		"rebound":   {func(r *http.Request) { r.Host = "evil.example:" + port }, http.StatusMisdirectedRequest},
		"page":      {func(r *http.Request) { r.Header.Set("Origin", "https://evil.example") }, http.StatusForbidden},
	} {
		if got := ask(t, http.MethodPost, addr, tt.change); got != tt.want {
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
	for password, want := range map[string]int{"": 401, "Secret": 401, "secret": 422} {
		if got := ask(t, http.MethodPost, addr, func(r *http.Request) { r.SetBasicAuth("any", password) }); got != want {
			t.Errorf("%q: %d", password, got)
		}
	}
	if got := ask(t, http.MethodPost, addr, func(*http.Request) {}); got != 401 {
		t.Errorf("no password: %d", got)
	}
}

// Readers read, writers read and write, and where there is no password for writers nobody
// writes; over HTTPS as without.
func TestReadersAndWriters(t *testing.T) {
	certificate := httptest.NewTLSServer(nil)
	defer certificate.Close()
	clients := map[string]*http.Client{"http": http.DefaultClient, "https": certificate.Client()}
	schema := quoted(text1)
	for scheme, client := range clients {
		for _, writers := range []string{"", "write"} {
			cfg := Config{Listen: "127.0.0.1:0", Password: "read", WritePassword: writers}
			if scheme == "https" {
				cfg.TLS = &tls.Config{Certificates: certificate.TLS.Certificates}
			}
			base := scheme + "://" + opened(t, cfg)
			write := 401
			if writers != "" {
				write = 200
			}
			for _, tt := range []struct {
				password, method, path, body string
				want                         int
			}{
				{"", "GET", "/subjects", "", 401},
				{"", "POST", "/subjects/s/versions", schema, 401},
				{"read", "GET", "/subjects", "", 200},
				{"read", "POST", "/compatibility/subjects/s/versions", schema, 200},
				{"read", "POST", "/subjects/s/versions", schema, 401},
				{"read", "PUT", "/config", `{"compatibility":"NONE"}`, 401},
				{"read", "DELETE", "/subjects/s", "", 401},
				{"write", "GET", "/subjects", "", write},
				{"write", "POST", "/subjects/s/versions", schema, write},
				{"write", "DELETE", "/subjects/s", "", write},
				{"other", "DELETE", "/subjects/s", "", 401},
			} {
				req, err := http.NewRequestWithContext(t.Context(), tt.method, base+tt.path, strings.NewReader(tt.body))
				if err != nil {
					t.Fatal(err)
				}
				if tt.password != "" {
					req.SetBasicAuth("anybody", tt.password)
				}
				res, err := client.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				b, _ := io.ReadAll(res.Body)
				res.Body.Close()
				if res.StatusCode != tt.want {
					t.Errorf("%s, writers %q: %s %s with %q: %d %s, want %d", scheme, writers, tt.method, tt.path, tt.password,
						res.StatusCode, b, tt.want)
				}
				if tt.want == 401 && !strings.Contains(string(b), `"error_code":40101`) {
					t.Errorf("%s %s: %s", tt.method, tt.path, b)
				}
			}
		}
	}
}

// Strangers who open connections without end do not drive out a consumer, who has shown
// a password; whoever only tried one is a stranger.
func TestStrangersMakeRoom(t *testing.T) {
	addr := open(t, "127.0.0.1:0", "secret")
	var tried, known net.Conn
	for password, c := range map[string]*net.Conn{"Secret": &tried, "secret": &known} {
		var d net.Dialer
		conn, err := d.DialContext(t.Context(), "tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		*c = conn
		if got := spoken(t, conn, password); (got == http.StatusOK) != (password == "secret") {
			t.Fatalf("%q: %d", password, got)
		}
	}
	for range 300 {
		var d net.Dialer
		conn, err := d.DialContext(t.Context(), "tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	// One of the last is served when all were taken in.
	last, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+"/subjects", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(last)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if got := spoken(t, tried, "secret"); got != 0 {
		t.Errorf("a stranger's connection was kept: %d", got)
	}
	if got := spoken(t, known, "secret"); got != http.StatusOK {
		t.Errorf("a consumer was driven out: %d", got)
	}
}

// spoken asks on a connection and returns the answer's status; 0 if there is none.
func spoken(t *testing.T, conn net.Conn, password string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.1/subjects", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.SetBasicAuth("any", password)
	if err := req.Write(conn); err != nil {
		return 0
	}
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	res, err := http.ReadResponse(bufio.NewReader(conn), req)
	if err != nil {
		return 0
	}
	_, _ = io.Copy(io.Discard, res.Body)
	_ = res.Body.Close()
	return res.StatusCode
}
