package app

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"html/template"
	"net/http"
	"regexp"
)

var (
	//go:embed page.html
	pageSource string
	//go:embed page.css
	pageStyle string

	page = template.Must(template.New("page").Parse(pageSource))
)

// welcomePage serves the address that the welcome names, for people who open it. It shows no
// token: whoever reaches the server sees it.
func (p *program) welcomePage(local string) http.Handler {
	sum := sha256.Sum256([]byte(pageStyle))
	policy := "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			h.Set("Allow", "GET, HEAD")
			http.Error(w, "this path is a page for people, which GET shows; RPCs are at /package.Service/Method", http.StatusMethodNotAllowed)
			return
		}
		body, err := p.page(requestedAt(r, local))
		if err != nil { // the template and its data are ours
			http.Error(w, "the page cannot be shown", http.StatusInternalServerError)
			return
		}
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Security-Policy", policy)
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store") // it shows the address by which it was called
		_, _ = w.Write(body)               // an error means that the client is gone
	})
}

// page is the page of a server that is reached at an address.
func (p *program) page(base string) ([]byte, error) {
	var b bytes.Buffer
	err := page.Execute(&b, map[string]any{
		"Style": template.CSS(pageStyle), //nolint:gosec // our own file
		"Alone": !p.cfg.distributed(), "Demo": p.demoUsers() != nil, "Metrics": p.servesMetrics(),
		"Stream": streamLines(base), "Send": sendLines(base), "Read": readLines(base),
	})
	return b.Bytes(), err
}

var plainHost = regexp.MustCompile(`^([A-Za-z0-9.-]{1,253}|\[[0-9a-fA-F:]{2,45}\])(:[0-9]{1,5})?$`)

// requestedAt is the address by which a request has come, for lines that people paste into
// their shells: a host that is none is not repeated there.
func requestedAt(r *http.Request, local string) string {
	scheme, host := "http", r.Host
	if r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https" {
		scheme = "https"
	}
	if !plainHost.MatchString(host) {
		host = local
	}
	return scheme + "://" + host
}
