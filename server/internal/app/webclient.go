package app

import (
	"net/http"
	"time"

	"github.com/parley-chat/parley/server/internal/webclient"
)

// webClient is the chat for browsers. The people of the demo are for one machine: where
// others can connect, or a proxy stands in front, nobody is anyone without a token.
func (p *program) webClient() http.Handler {
	demo := webclient.Demo{Issue: func(user string) (string, error) { return p.key.Issue(user, time.Now(), tokenTTL) }}
	if p.cfg.developing() {
		demo.Users = p.demoUsers()
	}
	return webclient.Handler(demo, p.webCodes(), http.HandlerFunc(p.notFound))
}

// webCodes says how codes get to who signs in. A log is named only in development: elsewhere it is
// not for those who sign in.
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
