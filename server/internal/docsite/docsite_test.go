package docsite

import (
	"html"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/parley-chat/parley/server/infra/testkit"
)

const root = "../../.."

func get(t *testing.T, h http.Handler, target string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, target, http.NoBody)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	return w
}

// urls are all pages.
func urls(t *testing.T) []string {
	t.Helper()
	s := testkit.Value(build())(t)
	var all []string
	for url := range s.served {
		all = append(all, url)
	}
	slices.Sort(all)
	if len(all) < 20 {
		t.Fatalf("only %d pages", len(all))
	}
	return all
}

// A page loads nothing, runs nothing and has no style but its own; a browser keeps it.
func TestPages(t *testing.T) {
	h := New()
	forbidden := regexp.MustCompile(`(?i)<script|<link|<img|<iframe|<object|\sstyle=|\son[a-z]+=|\ssrc=|@import|url\(|` +
		`ZgotmplZ|raw HTML omitted`)
	for _, url := range append(urls(t), "/docs/search", "/docs/search?q=chat") {
		w := get(t, h, url)
		testkit.Equal(t, url, w.Code, 200)
		testkit.Equal(t, "type of "+url, w.Header().Get("Content-Type"), "text/html; charset=utf-8")
		policy := w.Header().Get("Content-Security-Policy")
		if !strings.HasPrefix(policy, "default-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; ") ||
			strings.Contains(policy, "unsafe") {
			t.Errorf("%s: policy %s", url, policy)
		}
		if found := forbidden.FindString(w.Body.String()); found != "" {
			t.Errorf("%s has %q", url, found)
		}
		if strings.Count(w.Body.String(), "<h1") != 1 {
			t.Errorf("%s has not one title", url)
		}
		if tag := w.Header().Get("ETag"); tag != "" {
			testkit.Equal(t, url+" again", get(t, h, url, "If-None-Match", tag).Code, 304)
		} else if !strings.HasPrefix(url, "/docs/search") {
			t.Errorf("%s has no tag", url)
		}
	}
}

// Each link of each page leads to a page, and to a place that it has.
func TestLinks(t *testing.T) {
	h := New()
	outside := []string{"/", "/try", "/api/v1/openapi.json"} // what this server serves besides
	ids := map[string][]string{}
	for _, url := range urls(t) {
		for _, id := range regexp.MustCompile(`\sid="([^"]*)"`).FindAllStringSubmatch(get(t, h, url).Body.String(), -1) {
			if slices.Contains(ids[url], id[1]) {
				t.Errorf("%s has two places %q", url, id[1])
			}
			ids[url] = append(ids[url], id[1])
		}
	}
	n := 0
	for _, url := range urls(t) {
		for _, ref := range regexp.MustCompile(`href="([^"]*)"`).FindAllStringSubmatch(get(t, h, url).Body.String(), -1) {
			n++
			to, position, _ := strings.Cut(html.UnescapeString(ref[1]), "#")
			if to == "" {
				to = url
			}
			switch {
			case slices.Contains(outside, to):
			case ids[to] == nil:
				t.Errorf("%s links to %s, which is no page", url, ref[1])
			case position != "" && !slices.Contains(ids[to], position):
				t.Errorf("%s links to %s, which has no such place", url, ref[1])
			}
		}
	}
	if n < 500 {
		t.Errorf("only %d links found", n)
	}
}

// Each link between files of the tree leads to a file that there is.
func TestLinksInTree(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	for file, source := range testkit.Value(sources())(t) {
		for _, found := range link.FindAllStringSubmatch(string(source), -1) {
			to, _, ok := inTree(file, found[1])
			if !ok {
				continue
			}
			if _, err := os.Stat(filepath.Join(root, to)); err != nil {
				t.Errorf("%s links to %s, which is not there", file, found[1])
			}
		}
	}
}

// A link to a file that is a page goes there, another one stays as its text.
func TestLinksOfADocument(t *testing.T) {
	p := testkit.Value(renderDocument("server/docs/x.md", []byte("# X\n\n[a](topics.md#errors) [`b` c](../DESIGN.md) "+
		"[d](../deploy/runbooks/clock.md) [e](https://example.com/?a=1&b=2) [f](#here) [g](../../README.md#two) <b>h</b>\n")))(t)
	testkit.Equal(t, "body", p.body, "<p><a href=\"/docs/topics#errors\">a</a> "+
		"<code>b</code> c <a href=\"/docs/runbooks/clock\">d</a> <a href=\"https://example.com/?a=1&amp;b=2\">e</a> "+
		"<a href=\"#here\">f</a> <a href=\"/docs/quickstart#two\">g</a> <!-- raw HTML omitted -->h<!-- raw HTML omitted --></p>\n")
	if _, err := renderDocument("server/docs/x.md", []byte("no title")); err == nil {
		t.Error("a document without a title is a page")
	}
}

// Each document of the tree is a page that the navigation leads to, but for the one that
// lists what tests prove; each page that the order names is there.
func TestEveryDocumentIsAPage(t *testing.T) {
	s := testkit.Value(build())(t)
	listed := map[string]bool{}
	for _, g := range s.nav {
		for _, p := range g.Pages {
			listed[p.url] = true
		}
	}
	for _, name := range testkit.Value(filepath.Glob(root + "/server/docs/*.md"))(t) {
		base := strings.TrimSuffix(filepath.Base(name), ".md")
		if url := "/docs/" + base; listed[url] == (base == "requirements") {
			t.Errorf("%s listed: %v", url, listed[url])
		}
	}
	for _, g := range order {
		for _, name := range g.pages {
			if !listed["/docs/"+name] {
				t.Errorf("no document for /docs/%s", name)
			}
		}
	}
	for _, name := range testkit.Value(filepath.Glob(root + "/server/deploy/runbooks/*.md"))(t) {
		url := "/docs/runbooks/" + strings.TrimSuffix(filepath.Base(name), ".md")
		if s.served[url] == nil && path.Base(url) != "README" {
			t.Errorf("%s is no page", url)
		}
	}
}

// The lines to type of the first page are those of the README, which a test runs.
func TestLinesToTypeAreRun(t *testing.T) {
	readme := string(testkit.Value(os.ReadFile(root + "/README.md"))(t))
	page := string(testkit.Value(os.ReadFile(root + "/server/docs/quickstart.md"))(t))
	blocks := regexp.MustCompile("(?s)```sh\n.*?```").FindAllString(page, -1)
	if len(blocks) < 5 {
		t.Errorf("only %d blocks", len(blocks))
	}
	for _, block := range blocks {
		if !strings.Contains(readme, block) {
			t.Errorf("the README lacks\n%s", block)
		}
	}
}

// What is no page is said to be none.
func TestNoSuchPage(t *testing.T) {
	h := New()
	for url, to := range map[string]string{"/docs/": "/docs", "/docs/topics/": "/docs/topics"} {
		w := get(t, h, url)
		testkit.Equal(t, url, w.Code, 301)
		testkit.Equal(t, url+" leads to", w.Header().Get("Location"), to)
	}
	for _, url := range []string{"/docs/x", "/docs/x/", "/docs/topics.md", "/docs/requirements", "/docs/%3Cscript%3E"} {
		w := get(t, h, url)
		testkit.Equal(t, url, w.Code, 404)
		testkit.Equal(t, "type", w.Header().Get("Content-Type"), "text/plain; charset=utf-8")
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/docs", http.NoBody))
	testkit.Equal(t, "POST", w.Code, 405)
	testkit.Equal(t, "allowed", w.Header().Get("Allow"), "GET, HEAD")
}
