// Package welcome is what a newcomer sees of a server: its page, and the lines to try it with
// nothing but curl.
//
// It owns their text, and repeats no part of a request in it that could harm a user who
// pastes it. It shows no token on the page, because every client that reaches the server sees
// the page. Concurrency: everything is safe for concurrent use.
package welcome

import (
	"bytes"
	_ "embed"
	"net/http"
	"regexp"

	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"

	"github.com/parley-chat/parley/server/internal/webpage"
)

//go:embed page.css
var pageStyle string

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
		if err != nil { // its text is ours
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
	err := webpage.Document("Parley", pageStyle,
		h.Main(
			h.H1(g.Text("Parley")),
			h.P(g.Text("A chat server. It speaks Connect, gRPC, gRPC-Web and REST at this one address.")),
			h.Dl(
				entry("/", "the chat, in this browser"),
				entry("/docs", "the documents: concepts, guides, every error, the REST API"),
				entry("/api/v1/openapi.json", "the REST API as an OpenAPI document"),
				entry("/healthz", "whether the process runs"),
				entry("/readyz", "whether it takes requests"),
				g.If(s.Metrics, entry("/metrics", "its metrics, for Prometheus")),
			),
			h.H2(g.Text("Two people chat")),
			h.P(g.Text("Calls need a token. "), s.tokens(), g.Text(" A user exists from the first call on.")),
			h.P(g.Text("Bob opens his stream, in a terminal of its own:")), h.Pre(g.Text(streamLines(base))),
			h.P(g.Text("Alice makes a group and says hello:")), h.Pre(g.Text(sendLines(base))),
			h.P(g.Text("Bob reads it:")), h.Pre(g.Text(readLines(base))),
		)).Render(&b)
	return b.Bytes(), err
}

// entry is a path of the server, and what is there.
func entry(path, about string) g.Node {
	return g.Group{h.Dt(h.A(h.Href(path), g.Text(path))), h.Dd(g.Text(about))}
}

// tokens says where tokens come from.
func (s Server) tokens() g.Node {
	if !s.Alone {
		return g.Group{code("server token bob"), g.Text(" prints one for any user, with the settings of the servers.")}
	}
	return g.Group{
		g.If(s.Demo, g.Group{g.Text("The server has printed two at its start, for alice and bob; paste its lines "), code("ALICE=…"),
			g.Text(" and "), code("BOB=…"), g.Text(" into your shells. ")}),
		g.Text("In the directory where the server was started, "), code("go run ./server token bob"),
		g.Text(" prints one for any user."),
	}
}

func code(text string) g.Node { return h.Code(g.Text(text)) }

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
