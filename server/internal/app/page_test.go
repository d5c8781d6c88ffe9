package app_test

import (
	"crypto/sha256"
	"encoding/base64"
	"html"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
)

// Whoever opens /try finds a page with links that lead
// somewhere and the greeting's lines, for the address by which it was asked. It loads
// nothing, runs nothing, and shows no token. Where nothing is, words say so.
func TestPage(t *testing.T) {
	t.Parallel()
	greeting, _, _ := greeted(t, "127.0.0.1:0", t.TempDir(), "--allowed-hosts", "any")
	addr := listening.FindStringSubmatch(greeting)[1]
	do := func(method, path, host, proto string) (*http.Response, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+addr+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if req.Host = host; host == "" {
			req.Host = addr
		}
		if proto != "" {
			req.Header.Set("X-Forwarded-Proto", proto)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res, string(body)
	}
	res, body := do("GET", "/try", "", "")
	if res.StatusCode != 200 || res.Header.Get("Content-Type") != "text/html; charset=utf-8" || len(body) > 8<<10 {
		t.Fatal(res.Status, res.Header, len(body))
	}
	style := regexp.MustCompile(`(?s)<style>(.*)</style>`).FindStringSubmatch(body)[1]
	sum := sha256.Sum256([]byte(style))
	if policy := res.Header.Get("Content-Security-Policy"); !strings.HasPrefix(policy, "default-src 'none'; ") ||
		!strings.Contains(policy, base64.StdEncoding.EncodeToString(sum[:])) {
		t.Error("the policy does not fit the page: ", policy)
	}
	if !strings.Contains(style, "color-scheme:light dark") {
		t.Error("the page is for light screens only")
	}
	for _, not := range []string{"<script", "src=", "<link", "@import", "url(", "style=", "eyJ"} {
		if strings.Contains(body, not) {
			t.Errorf("the page has %s", not)
		}
	}
	links := regexp.MustCompile(`href="([^"]*)"`).FindAllStringSubmatch(body, -1)
	if len(links) != 6 {
		t.Errorf("links: %v", links)
	}
	for _, link := range links {
		if res, _ := do("GET", link[1], "", ""); res.StatusCode != 200 {
			t.Errorf("%s: %s", link[1], res.Status)
		}
	}
	shown := regexp.MustCompile(`(?s)<pre>(.*?)</pre>`).FindAllStringSubmatch(body, -1)
	if len(shown) != 3 {
		t.Fatalf("lines to paste: %q", shown)
	}
	for _, lines := range shown {
		for line := range strings.Lines(html.UnescapeString(lines[1])) {
			if !strings.Contains(greeting, "  "+strings.TrimSuffix(line, "\n")+"\n") {
				t.Errorf("the greeting lacks %s", line)
			}
		}
	}
	for _, tt := range []struct{ host, proto, want string }{
		{"chat.example.com", "https", "https://chat.example.com/parley."},
		{"chat.example.com:8080", "", "http://chat.example.com:8080/parley."},
		{"$(reboot)", "", "http://" + addr + "/parley."}, {"a;b", "ftp", "http://" + addr + "/parley."},
	} {
		if _, body := do("GET", "/try", tt.host, tt.proto); strings.Count(body, tt.want) != 4 ||
			strings.Contains(body, "reboot") {
			t.Errorf("%s: %s", tt.host, body)
		}
	}
	if res, body := do("HEAD", "/try", "", ""); res.StatusCode != 200 || body != "" ||
		res.Header.Get("Content-Type") != "text/html; charset=utf-8" {
		t.Error(res.Status, res.Header, body)
	}
	if res, body := do("POST", "/try", "", ""); res.StatusCode != 405 || res.Header.Get("Allow") != "GET, HEAD" ||
		!strings.Contains(body, "/package.Service/Method") {
		t.Error(res.Status, body)
	}
	for _, path := range []string{"/nothing", "/favicon.ico", "/docs/x", "/app/", "/app/x", "/%3Cscript%3E"} {
		res, body := do("GET", path, "", "")
		if res.StatusCode != 404 || !strings.Contains(body, "no such path") ||
			!strings.HasPrefix(res.Header.Get("Content-Type"), "text/plain") ||
			res.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %s %s", path, res.Status, body)
		}
	}
}
