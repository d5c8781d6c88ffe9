package webclient_test

import (
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/parley-chat/parley/server/internal/webclient"
)

func handler() http.Handler {
	demo := webclient.Demo{Users: []string{"alice", "broken"}, Issue: func(user string) (string, error) {
		if user == "broken" {
			return "", errors.New("a secret of the key")
		}
		return "token of " + user, nil
	}}
	codes := webclient.Codes{To: "any", Log: true}
	return webclient.Handler(demo, codes, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNotFound)
	}))
}

func do(method, path, body string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.RemoteAddr, r.Host = "127.0.0.1:5000", "localhost:8080"
	for i := 0; i < len(header); i += 2 {
		switch header[i] {
		case "Host":
			r.Host = header[i+1]
		case "From":
			r.RemoteAddr = header[i+1]
		default:
			r.Header.Set(header[i], header[i+1])
		}
	}
	w := httptest.NewRecorder()
	handler().ServeHTTP(w, r)
	return w
}

// The page and all that it names are there, under a policy that lets nothing from elsewhere in, and
// small enough.
func TestPage(t *testing.T) {
	page := do("GET", "/", "")
	if page.Code != 200 || page.Header().Get("Content-Type") != "text/html; charset=utf-8" {
		t.Fatal(page.Code, page.Header())
	}
	policy := page.Header().Get("Content-Security-Policy")
	for _, must := range []string{"default-src 'none'", "script-src 'self';", "style-src 'self';", "connect-src 'self';",
		"frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'"} {
		if !strings.Contains(policy, must) {
			t.Errorf("the policy lacks %s: %s", must, policy)
		}
	}
	for _, not := range []string{"unsafe", "http:", "https:", "*"} {
		if strings.Contains(policy, not) {
			t.Errorf("the policy has %s: %s", not, policy)
		}
	}
	loads := regexp.MustCompile(`(?:src|href)="(/app/[^"]*)"`).FindAllStringSubmatch(page.Body.String(), -1)
	if len(loads) != 3 {
		t.Errorf("the page loads %v", loads)
	}
	total := 0
	for _, load := range append(loads, []string{"", "/"}, []string{"", "/app/licenses.txt"}) {
		packed := do("GET", load[1], "", "Accept-Encoding", "br;q=1, gzip")
		if packed.Code != 200 || packed.Header().Get("Content-Encoding") != "gzip" ||
			packed.Header().Get("X-Content-Type-Options") != "nosniff" {
			t.Fatal(load[1], packed.Code, packed.Header())
		}
		total += packed.Body.Len()
		unpacked, err := gzip.NewReader(packed.Body)
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(unpacked)
		if err != nil {
			t.Fatal(err)
		}
		plain := do("GET", load[1], "", "Accept-Encoding", "gzip;q=0")
		if plain.Header().Get("Content-Encoding") != "" || plain.Body.String() != string(content) {
			t.Errorf("%s is not the same without compression", load[1])
		}
	}
	if total > 200_000 {
		t.Errorf("a browser loads %d bytes", total)
	}
}

// The service worker names the content of each file that it keeps, and no other file; its scope may be the page.
func TestWorker(t *testing.T) {
	w := do("GET", "/app/worker.js", "")
	if w.Code != 200 || w.Header().Get("Service-Worker-Allowed") != "/" {
		t.Fatal(w.Code, w.Header())
	}
	script := w.Body.String()
	for _, path := range []string{"/", "/app/app.js", "/app/style.css", "/app/icon.svg"} {
		sum := sha256.Sum256(do("GET", path, "").Body.Bytes())
		if !strings.Contains(script, `"`+path+`":"`+hex.EncodeToString(sum[:])+`"`) {
			t.Errorf("the worker has another version of %s", path)
		}
	}
	if n := strings.Count(script, `"/app/`); n != 3 {
		t.Errorf("the worker names %d files", n)
	}
	if page := do("GET", "/", ""); page.Header().Get("Service-Worker-Allowed") != "" {
		t.Error("the page is no worker")
	}
}

// A browser that has a file asks again and is sent nothing; each form of a file has a tag of its own.
func TestCache(t *testing.T) {
	tags := map[string]bool{}
	for _, coding := range []string{"gzip", ""} {
		first := do("GET", "/app/app.js", "", "Accept-Encoding", coding)
		tag := first.Header().Get("ETag")
		tags[tag] = true
		again := do("GET", "/app/app.js", "", "Accept-Encoding", coding, "If-None-Match", tag)
		if again.Code != 304 || again.Body.Len() != 0 || again.Header().Get("Cache-Control") != "no-cache" {
			t.Error(coding, again.Code, again.Header())
		}
		if again := do("GET", "/app/app.js", "", "Accept-Encoding", coding, "If-None-Match", `"x"`); again.Code != 200 {
			t.Error(coding, again.Code)
		}
	}
	if len(tags) != 2 || tags[""] {
		t.Error(tags)
	}
	if head := do("HEAD", "/", ""); head.Code != 200 || head.Body.Len() != 0 || head.Header().Get("Content-Length") == "" {
		t.Error(head.Code, head.Header())
	}
	if post := do("POST", "/", ""); post.Code != 405 || post.Header().Get("Allow") != "GET, HEAD" {
		t.Error(post.Code, post.Header())
	}
	if other := do("GET", "/app/embed.go", ""); other.Code != 404 {
		t.Error(other.Code)
	}
}

// A token of the demo is for a page of this server in a browser at this machine, and for the people of the demo.
func TestDemo(t *testing.T) {
	const path, body = "/app/demo-token", `{"user":"alice"}`
	for _, header := range [][]string{nil, {"From", "[::1]:9"}, {"Host", "127.0.0.1:8080"}, {"Host", "[::1]:8080"},
		{"Host", "localhost"}, {"Sec-Fetch-Site", "same-origin"}, {"Origin", "http://localhost:8080"}} {
		a := do("POST", path, body, header...)
		if a.Code != 200 || a.Body.String() != "{\"token\":\"token of alice\"}\n" ||
			a.Header().Get("Cache-Control") != "no-store" {
			t.Error(header, a.Code, a.Body, a.Header())
		}
		const config = `{"codes":"any","codesInLog":true,"demo":["alice","broken"]}` + "\n"
		if a := do("GET", "/app/config.json", "", header...); a.Body.String() != config {
			t.Error(header, a.Body)
		}
	}
	for _, header := range [][]string{{"From", "192.0.2.1:9"}, {"From", "pipe"}, {"Host", "chat.example.com"},
		{"Host", "192.0.2.1:8080"}, {"X-Forwarded-For", "192.0.2.1"}, {"Forwarded", "for=192.0.2.1"}, {"Via", "1.1 p"},
		{"X-Real-IP", "192.0.2.1"}, {"Sec-Fetch-Site", "cross-site"}, {"Origin", "https://evil.example"}} {
		if a := do("POST", path, body, header...); a.Code != 403 || strings.Contains(a.Body.String(), "token of") {
			t.Error(header, a.Code, a.Body)
		}
		if strings.Contains(header[0], "Origin") || strings.Contains(header[0], "Sec-") {
			continue // it may be read, and says nothing of tokens
		}
		const config = `{"codes":"any","codesInLog":false,"demo":[]}` + "\n"
		if a := do("GET", "/app/config.json", "", header...); a.Body.String() != config {
			t.Error(header, a.Body)
		}
	}
	for body, want := range map[string]int{`{"user":"carol"}`: 404, `{}`: 404, `x`: 400, `{"user":"broken"}`: 500,
		`{"user":"` + strings.Repeat("a", 2000) + `"}`: 400} {
		if a := do("POST", path, body); a.Code != want || strings.Contains(a.Body.String(), "secret of the key") {
			t.Errorf("%.40s: %d %s", body, a.Code, a.Body)
		}
	}
	if a := do("GET", path, ""); a.Code != 404 && a.Code != 405 {
		t.Error(a.Code)
	}
}
