// Package docsite serves the documents at /docs: the Markdown of the tree as pages, the REST
// API beside it, and a search over all of it.
//
// It owns which document is which page, how pages look and how they are searched. It does not
// own what documents say (server/docs, server/deploy, the OpenAPI document). Everything is
// public: it says no more than the source.
//
// # Concurrency
//
// The handler is safe for concurrent use. Pages are made when the first one is requested, so
// that a process without readers does not pay for them, and never change.
package docsite

import (
	_ "embed"
	"net/http"
	"strings"
	"sync"

	g "maragu.dev/gomponents"

	"github.com/parley-chat/parley/gen/openapi"
	"github.com/parley-chat/parley/server/internal/webpage"
)

const (
	kind     = "text/html; charset=utf-8"
	maxQuery = 200 // bytes of a search; later bytes are not searched
)

//go:embed site.css
var style string

// page is a document as it is shown.
type page struct {
	url      string
	title    string // short, for lists
	heading  string // above the page; "" if it is the title
	summary  string // a sentence
	body     string // HTML
	contents []heading
	sections []section
}

// heading is a line of a page's table of contents.
type heading struct{ ID, Text string }

// group is a part of the navigation.
type group struct {
	Name  string
	Pages []*page
}

// site is all pages, made.
type site struct {
	nav    []group
	index  *index
	served map[string]http.Handler // by URL
}

// New makes the handler of /docs and of what is below it.
func New() http.Handler {
	made := sync.OnceValues(build)
	show := func(serve func(*site, http.ResponseWriter, *http.Request)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			s, err := made()
			if err != nil { // the documents are ours
				http.Error(w, "the documents cannot be shown", http.StatusInternalServerError)
				return
			}
			serve(s, w, r)
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /docs", show((*site).page))
	mux.HandleFunc("GET /docs/", show((*site).page))
	mux.HandleFunc("GET /docs/search", show((*site).search))
	return mux
}

// build makes all pages.
func build() (*site, error) {
	pages, err := documents()
	if err != nil {
		return nil, err
	}
	rest, err := reference(openapi.Document)
	if err != nil {
		return nil, err
	}
	pages = append(pages, rest)
	s := &site{nav: navigation(pages), served: map[string]http.Handler{}}
	var sections []section
	for _, p := range pages {
		sections = append(sections, p.sections...)
		if err := s.add(p, article(p)); err != nil {
			return nil, err
		}
	}
	s.index = newIndex(sections)
	return s, s.add(&page{url: "/docs", title: "Documents"}, start(s.nav))
}

// add makes a page that is always the same.
func (s *site) add(p *page, content g.Node) error {
	body, err := s.render(p, "", content)
	s.served[p.url] = webpage.Static(kind, webpage.FormPolicy(style), body)
	return err
}

func (s *site) page(w http.ResponseWriter, r *http.Request) {
	if h, ok := s.served[r.URL.Path]; ok {
		h.ServeHTTP(w, r)
		return
	}
	if shorter := strings.TrimRight(r.URL.Path, "/"); s.served[shorter] != nil {
		http.Redirect(w, r, shorter, http.StatusMovedPermanently) //nolint:gosec // a path that is served here
		return
	}
	http.Error(w, "no such path; /docs lists the documents", http.StatusNotFound)
}

func (s *site) search(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query().Get("q")
	if len(query) > maxQuery {
		query = query[:maxQuery]
	}
	query = strings.ToValidUTF8(query, "")
	body, err := s.render(&page{url: "/docs/search", title: "Search"}, query, found(query, s.index.search(query)))
	if err != nil { // the rendered text is Parley's own
		http.Error(w, "the answer cannot be shown", http.StatusInternalServerError)
		return
	}
	webpage.Headers(w.Header(), kind, webpage.FormPolicy(style), "no-cache")
	_, _ = w.Write(body) // an error means that the client has disconnected
}
