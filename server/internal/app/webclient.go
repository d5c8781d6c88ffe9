package app

import (
	"net/http"
	"time"

	"github.com/parley-chat/parley/server/internal/webclient"
)

// webClient is the chat for browsers.
func (p *program) webClient() http.Handler {
	demo := webclient.Demo{Users: p.demoUsers(),
		Issue: func(user string) (string, error) { return p.key.Issue(user, time.Now(), tokenTTL) }}
	return webclient.Handler(demo, p.webCodes(), http.HandlerFunc(p.notFound))
}

// webCodes says how codes get to a user who signs in. A log is named only in development:
// elsewhere it is not for those who sign in.
func (p *program) webCodes() webclient.Codes {
	way := p.identity.CodeWay()
	codes := webclient.Codes{To: "any", Log: way == "log" && p.cfg.developing()}
	switch way {
	case "none":
		codes.To = "none"
	case "smtp":
		codes.To = "email"
	}
	return codes
}
