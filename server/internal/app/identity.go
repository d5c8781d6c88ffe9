package app

import (
	"net/http"
	"net/netip"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/internal/identitymodule"
	"github.com/parley-chat/parley/server/internal/topicrpc"
	"github.com/parley-chat/parley/server/limit"
	"github.com/parley-chat/parley/server/view"
)

// buildLimits makes how often everybody may call.
func (p *program) buildLimits(reader *view.Reader) (err error) {
	if p.cfg.Limits == "" && p.cfg.developing() { // where a program in development does what many people do elsewhere
		if p.cfg.limitTable, err = limit.ParseTable("off"); err != nil {
			return err
		}
	}
	p.limits, err = identitymodule.NewLimits(identitymodule.LimitsConfig{Backend: p.backend, Clock: p.cfg.clocks.Wall,
		Logger: p.log, Metrics: p.metrics, Reader: reader, Settings: p.cfg.Settings, Table: p.cfg.limitTable})
	return err
}

// buildIdentity makes the authentication of callers. Chats, hub, topics and limits must
// exist.
func (p *program) buildIdentity() (err error) {
	p.identity, err = identitymodule.New(identitymodule.Config{
		Backend: p.backend, Clock: p.cfg.clocks.Wall, Logger: p.log, Metrics: p.metrics, Key: p.key, Chats: p.chats,
		Hub:    p.hub,
		Limits: p.limits.Limiter, Settings: p.cfg.Settings, Issuers: p.cfg.issuers, Shared: p.cfg.distributed(),
		CodesLog: p.cfg.developing(),
		Refuse:   p.refuse, Revoke: p.revoke, EndAll: p.endStreams,
		Client: func(r *http.Request) netip.Prefix { return p.cfg.proxies().Client(r) },
		Full: func(w http.ResponseWriter, r *http.Request) {
			p.api.Reject(w, r, http.StatusTooManyRequests, "RATE_LIMITED", "too many are signing in: try again")
		},
	})
	if err != nil {
		return err
	}
	p.gate = p.identity.Gate
	p.services = append(p.services, p.identity.Services()...)
	return nil
}

// endStreams ends all open streams; clients that still have access open them again.
func (p *program) endStreams() {
	p.hub.EndAll()
	p.topics.Streams().EndRevoked(func(topicrpc.Identity) bool { return true })
}

// revoke ends what is open by the tokens that a revocation covers.
func (p *program) revoke(r auth.Revocation) {
	p.hub.EndRevoked(r.Covers)
	p.topics.Streams().EndRevoked(func(id topicrpc.Identity) bool { return r.Covers(id.Token) })
}
