// Package docsite serves the documents at /docs: the Markdown of the tree as pages, the REST
// API beside it, and a search over all of it.
//
// It owns which document is which page, how pages look and how they are searched. It does not
// own what documents say (server/docs, server/deploy, the OpenAPI document). Everything is
// public: it says no more than the source.
//
// # Concurrency
//
// The handler may be used by many goroutines. Pages are made when the first one is asked for,
// so that a process which nobody reads from does not pay for them, and never change.
package docsite

import (
	"bytes"
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"net/http"
	"strings"
	"sync"

	"github.com/parley-chat/parley/gen/openapi"
	"github.com/parley-chat/parley/server/internal/webpage"
)

const (
	kind     = "text/html; charset=utf-8"
	maxQuery = 200 // bytes of a search; what is behind them is not looked for
)

var (
	//go:embed page.html
	layoutSource string
	//go:embed site.css
	style string

	layout = template.Must(template.New("layout").Parse(layoutSource))
)

// page is a document as it is shown.
type page struct {
	url      string
	title    string // short, for lists
	heading  string // above the page; "" if it is the title
	summary  string // a sentence
	body     template.HTML
	contents []heading
	sections []section
}

// heading is a line of a page's table of contents.
type heading struct{ ID, Text string }

// URL is where the page is.
func (p *page) URL() string { return p.url }

// Title is the page's title.
func (p *page) Title() string { return p.title }

// Heading is what stands above the page.
func (p *page) Heading() string { return cmp.Or(p.heading, p.title) }

// Summary is what the page is about, in a sentence.
func (p *page) Summary() string { return p.summary }

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
		if err := s.add(p.url, view{Page: p}); err != nil {
			return nil, err
		}
	}
	s.index = newIndex(sections)
	return s, s.add("/docs", view{Page: &page{url: "/docs", title: "Documents"}, Start: true})
}

// add makes a page that is always the same.
func (s *site) add(url string, v view) error {
	body, err := s.render(v)
	s.served[url] = webpage.Static(kind, webpage.FormPolicy(style), body)
	return err
}

// view is what the layout shows.
type view struct {
	Page     *page
	Start    bool // lists all documents
	Searched bool
	Query    string
	Hits     []hit
}

func (s *site) render(v view) ([]byte, error) {
	var b bytes.Buffer
	err := layout.Execute(&b, map[string]any{
		"Style": template.CSS(style), //nolint:gosec // our own file
		"Nav":   s.nav, "View": v, "Body": v.Page.body, "Contents": v.Page.contents,
	})
	if err != nil {
		return nil, fmt.Errorf("docsite: %s: %w", v.Page.url, err)
	}
	return b.Bytes(), nil
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
	body, err := s.render(view{Page: &page{url: "/docs/search", title: "Search"}, Searched: true, Query: query,
		Hits: s.index.search(query)})
	if err != nil { // the layout is ours
		http.Error(w, "the answer cannot be shown", http.StatusInternalServerError)
		return
	}
	webpage.Headers(w.Header(), kind, webpage.FormPolicy(style), "no-cache")
	_, _ = w.Write(body) // an error means that the client has disconnected
}
