// Package webpage is how pages for people are served: under which policy, and how browsers
// keep them.
//
// It owns that a page loads and runs nothing but itself. It does not own what pages say.
// Concurrency: everything is safe for concurrent use.
package webpage

import (
	"crypto/sha256"
	"encoding/base64"
	"net/http"

	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"
)

// Bare is the Content-Security-Policy of what is no page.
const Bare = "default-src 'none'; frame-ancestors 'none'"

// Policy is the Content-Security-Policy of a page with one style sheet within it: no script, no
// other file, nothing of another site. A form goes nowhere.
func Policy(style string) string { return policy(style, "'none'") }

// FormPolicy is Policy for a page with a form that goes to the server itself.
func FormPolicy(style string) string { return policy(style, "'self'") }

func policy(style, forms string) string {
	sum := sha256.Sum256([]byte(style))
	return "default-src 'none'; base-uri 'none'; form-action " + forms +
		"; frame-ancestors 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// Document is a page with a title, its one style sheet, which stands in it as it is, and the content of its body.
func Document(title, style string, body ...g.Node) g.Node {
	return h.Doctype(h.HTML(h.Lang("en"),
		h.Head(h.Meta(h.Charset("utf-8")), h.Meta(h.Name("viewport"), h.Content("width=device-width, initial-scale=1")),
			h.TitleEl(g.Text(title)), h.StyleEl(g.Raw(style))),
		h.Body(body...)))
}

// Static serves what never changes while the process runs: kind is its Content-Type. Browsers
// ask each time whether they have it still.
func Static(kind, policy string, body []byte) http.Handler {
	sum := sha256.Sum256(body)
	tag := `"` + base64.RawURLEncoding.EncodeToString(sum[:16]) + `"`
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		Headers(w.Header(), kind, policy, "no-cache")
		w.Header().Set("ETag", tag)
		if r.Header.Get("If-None-Match") == tag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		_, _ = w.Write(body) // an error means that the client has disconnected
	})
}

// Headers are those of every answer for people; caching is its Cache-Control.
func Headers(h http.Header, kind, policy, caching string) {
	h.Set("Content-Type", kind)
	h.Set("Content-Security-Policy", policy)
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", caching)
}
