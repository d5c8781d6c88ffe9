// Package welcome is what a newcomer sees of a server: its page, and the lines to try it with
// nothing but curl.
//
// It owns their text, and that nothing of a request is repeated in it that could harm who
// pastes it. It shows no token on the page: whoever reaches the server sees that.
// Concurrency: everything may be used by many goroutines.
package welcome

import (
	"bytes"
	_ "embed"
	"html/template"
	"net/http"
	"regexp"

	"github.com/parley-chat/parley/server/internal/webpage"
)

var (
	//go:embed page.html
	pageSource string
	//go:embed page.css
	pageStyle string

	page = template.Must(template.New("page").Parse(pageSource))
)

// Server is what the page says of a server.
type Server struct {
	Alone   bool // it is everything in one process
	Demo    bool // it has users to try it with
	Metrics bool // it serves metrics beside the API
	TLS     bool // it speaks TLS itself
}

// Page serves the address that the welcome names, for people who open it. local is where
// this machine reaches the server.
func (s Server) Page(local string) http.Handler {
	policy := webpage.Policy(pageStyle)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			h.Set("Allow", "GET, HEAD")
			http.Error(w, "this path is a page for people, which GET shows; RPCs are at /package.Service/Method",
				http.StatusMethodNotAllowed)
			return
		}
		body, err := s.page(s.requestedAt(r, local))
		if err != nil { // the template and its data are ours
			http.Error(w, "the page cannot be shown", http.StatusInternalServerError)
			return
		}
		// It shows the address by which it was called.
		webpage.Headers(h, "text/html; charset=utf-8", policy, "no-store")
		_, _ = w.Write(body) // an error means that the client is gone
	})
}

// page is the page of a server that is reached at an address.
func (s Server) page(base string) ([]byte, error) {
	var b bytes.Buffer
	err := page.Execute(&b, map[string]any{
		"Style": template.CSS(pageStyle), // our own file
		"Alone": s.Alone, "Demo": s.Demo, "Metrics": s.Metrics,
		"Stream": streamLines(base), "Send": sendLines(base), "Read": readLines(base),
	})
	return b.Bytes(), err
}

var plainHost = regexp.MustCompile(`^([A-Za-z0-9.-]{1,253}|\[[0-9a-fA-F:]{2,45}\])(:[0-9]{1,5})?$`)

// requestedAt is the address by which a request has come, for lines that people paste into
// their shells: a host that is none is not repeated there.
func (s Server) requestedAt(r *http.Request, local string) string {
	scheme, host := "http", r.Host
	if s.TLS || r.Header.Get("X-Forwarded-Proto") == "https" {
		scheme = "https"
	}
	if !plainHost.MatchString(host) {
		host = local
	}
	return scheme + "://" + host
}
