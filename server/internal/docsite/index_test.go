package docsite

import (
	"net/url"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/parley-chat/parley/server/infra/testkit"
)

// A search leads to where the words are explained.
func TestSearch(t *testing.T) {
	x := testkit.Value(build())(t).index
	for query, want := range map[string]string{
		"NOT_A_MEMBER":         "/docs/errors#term-not_a_member",
		"client_message_id":    "/docs/",
		"zombie subscription":  "/docs/topics",
		"clock":                "/docs/runbooks/clock",
		"POST chats members":   "/docs/reference#",
		"two people chat":      "/docs/quickstart#two-people-chat",
		"PARLEY_KAFKA_LISTEN":  "/docs/operate#term-kafka-listen",
		"dead letters redrive": "/docs/",
		"ackn":                 "/docs/", // the beginning of a word
	} {
		hits := x.search(query)
		if len(hits) == 0 || !strings.HasPrefix(hits[0].URL, want) {
			t.Errorf("%q: want %s first, got %+v", query, want, hits[:min(len(hits), 3)])
		}
	}
	for _, query := range []string{"", " ", "?!", "xyzzyplugh", "\x00", "\xff"} {
		if hits := x.search(query); len(hits) != 0 {
			t.Errorf("%q: %+v", query, hits)
		}
	}
}

// Sections with all words come before those with some, rare words before frequent ones, and
// headings before the text.
func TestOrderOfHits(t *testing.T) {
	x := newIndex([]section{
		{url: "a", page: "P", heading: "other", text: "tea tea tea and cake"},
		{url: "b", page: "P", heading: "Tea", text: "nothing else"},
		{url: "c", page: "P", heading: "other", text: "teapots"},
		{url: "d", page: "P", heading: "SEND_MESSAGE", text: ""},
	})
	found := func(query string) string {
		var all []string
		for _, h := range x.search(query) {
			all = append(all, h.URL)
		}
		return strings.Join(all, " ")
	}
	testkit.Equal(t, "one word", found("tea"), "b a c")
	testkit.Equal(t, "two words", found("TEA cake"), "a")
	testkit.Equal(t, "a word that is nowhere", found("tea xyz"), "b a c")
	testkit.Equal(t, "a beginning", found("teap"), "c")
	testkit.Equal(t, "a letter", found("t"), "")
	testkit.Equal(t, "a name", found("send_message"), "d")
	testkit.Equal(t, "part of a name", found("message"), "d")
	h := x.search("cake")[0]
	testkit.Equal(t, "excerpt", h.Before+"["+h.Match+"]"+h.Behind, "tea tea tea and [cake]")
}

// An answer is bounded whatever is asked, shows what was asked and runs none of it.
func TestSearchPage(t *testing.T) {
	h := New()
	for _, query := range []string{`"><script>alert(1)</script>`, strings.Repeat("a ", 5_000), strings.Repeat("é", 400),
		"e", "the a of to is and in it", "\xff\xfe", strings.Repeat("message ", 400)} {
		w := get(t, h, "/docs/search?q="+url.QueryEscape(query))
		body := w.Body.String()
		if w.Code != 200 || len(body) > 64<<10 || strings.Contains(body, "<script") || !utf8.ValidString(body) {
			t.Errorf("%.40q: %d, %d bytes", query, w.Code, len(body))
		}
		if n := strings.Count(body, "<mark>"); n > 20 {
			t.Errorf("%.40q: %d hits", query, n)
		}
	}
	body := get(t, h, "/docs/search?q=NOT_A_MEMBER").Body.String()
	if !strings.Contains(body, `value="NOT_A_MEMBER"`) ||
		!regexp.MustCompile(`<a href="/docs/errors[^"]*">`).MatchString(body) {
		t.Errorf("%s", body)
	}
}

// An excerpt ends at words and says that there is more.
func TestExcerpt(t *testing.T) {
	text := strings.Repeat("left ", 50) + "MIDDLE" + strings.Repeat(" right", 50)
	front, match, behind := excerpt(text, []string{"middle"})
	testkit.Equal(t, "match", match, "MIDDLE")
	if !strings.HasPrefix(front, "…left") || !strings.HasSuffix(behind, "right…") || len(front) > 70 || len(behind) > 170 {
		t.Errorf("%q %q", front, behind)
	}
	_, match, behind = excerpt("tea first, "+text+" cake and tea", []string{"tea", "cake"})
	testkit.Equal(t, "most words", match+behind, "cake and tea")
	if front, match, behind = excerpt("short", []string{"x"}); front+match != "" || behind != "short" {
		t.Errorf("%q %q %q", front, match, behind)
	}
}

// BenchmarkBuild is what the first reader of a process waits for.
func BenchmarkBuild(b *testing.B) {
	for b.Loop() {
		if _, err := build(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkSearch is a search with an answer of many hits.
func BenchmarkSearch(b *testing.B) {
	s, err := build()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(len(s.index.sections)), "sections")
	for b.Loop() {
		_ = s.index.search("the message of a chat")
	}
}
