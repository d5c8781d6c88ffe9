// Package identitymodule sets up identity: admission by tokens and keys, sign-in, profiles,
// revocation, and rate limits.
//
// It owns the order in which these parts are made, what one needs of another, their metrics,
// and that what happens to accounts is in the audit. It owns no rule: each part has its own
// package below identity, and the gate is package auth's.
//
// Concurrency: everything is safe for concurrent use once New has returned.
package identitymodule

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"time"

	"github.com/parley-chat/parley/server/audit"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/backend"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/identity/admin"
	"github.com/parley-chat/parley/server/identity/issuer"
	"github.com/parley-chat/parley/server/identity/parts"
	"github.com/parley-chat/parley/server/identity/people"
	"github.com/parley-chat/parley/server/identity/revocation"
	"github.com/parley-chat/parley/server/identity/securitylog"
	"github.com/parley-chat/parley/server/identity/service"
	"github.com/parley-chat/parley/server/identity/session"
	"github.com/parley-chat/parley/server/identity/ticket"
	"github.com/parley-chat/parley/server/infra/config"
	"github.com/parley-chat/parley/server/infra/edge"
	"github.com/parley-chat/parley/server/infra/lifecycle"
	"github.com/parley-chat/parley/server/infra/telemetry"
	"github.com/parley-chat/parley/server/internal/api"
	"github.com/parley-chat/parley/server/internal/authapi"
	"github.com/parley-chat/parley/server/internal/serviceapi"
	"github.com/parley-chat/parley/server/internal/userapi"
	"github.com/parley-chat/parley/server/limit"
	"github.com/parley-chat/parley/server/limit/limitview"
	"github.com/parley-chat/parley/server/store/table"
)

// Config holds a Module's dependencies. All fields are required but those that say otherwise.
type Config struct {
	Backend *backend.Backend
	Clock   func() time.Time
	Logger  *slog.Logger
	Metrics *telemetry.Metrics
	Key     *auth.Key
	Chats   *chat.Service
	Hub     *delivery.Hub
	Limits  *limit.Limiter

	Settings config.Settings
	Issuers  []issuer.Trust // may be empty
	Shared   bool           // with other processes
	CodesLog bool           // codes may be shown in the log unless the settings say otherwise

	// Refuse answers a request that the gate stops.
	Refuse func(w http.ResponseWriter, r *http.Request, err error)
	// Full answers one without a token for which there is no room.
	Full http.HandlerFunc
	// Client is the network that a request comes from.
	Client func(r *http.Request) netip.Prefix
	// Revoke ends everything that is open by the tokens that a revocation covers. EndAll ends
	// everything that is open; clients that still have access open it again.
	Revoke func(r auth.Revocation)
	EndAll func()
}

// Module is the identity services of a server.
type Module struct {
	Gate      *auth.Gate
	Tokenless *authapi.TokenlessLimiter

	cfg          Config
	revoked      *revocation.Service
	accounts     *service.Service
	sessions     *session.Service
	tickets      *ticket.Service
	people       *people.Service
	events       *securitylog.Log
	services     []lifecycle.Service
	userServices []api.Service
}

// New makes a Module.
func New(cfg Config) (*Module, error) {
	p := &Module{cfg: cfg}
	recorder := audit.NewRecorder(audit.New(cfg.Backend.Store, cfg.Clock), cfg.Logger)
	p.run("account events", recorder.Run)
	p.events = securitylog.New(cfg.Logger, parts.Recorded(recorder))
	p.Tokenless = authapi.NewTokenlessLimiter(maxSignIns, cfg.Client, cfg.Full)
	for _, build := range []func() error{p.buildRevocations, p.buildAccounts, p.buildSessions, p.buildSignIn,
		p.buildPeople, p.buildGate} {
		if err := build(); err != nil {
			return nil, err
		}
	}
	p.run("keys", (&auth.KeyWatch{Key: cfg.Key, Logger: cfg.Logger, Ended: cfg.EndAll}).Run)
	return p, nil
}

func (p *Module) run(name string, run func(ctx context.Context, ready func()) error) {
	p.services = append(p.services, lifecycle.Service{Name: name, Run: run})
}

// Redeem returns the access token of a ticket for a stream, which is used up; empty if the ticket is not good. Errors
// are the store's.
func (p *Module) Redeem(ctx context.Context, t string) (token string, err error) {
	return p.tickets.Redeem(ctx, t)
}

// Services are what runs in the background.
func (p *Module) Services() []lifecycle.Service { return p.services }

// OfUsers are the services as users reach them.
func (p *Module) OfUsers() []api.Service { return p.userServices }

// Parts are what operators use.
func (p *Module) Parts() admin.Parts {
	out := parts.Of(p.people, p.sessions, p.accounts)
	out.Limits = limitview.New(p.cfg.Limits)
	return out
}

// PublicKeys answers with the keys by which others can verify access tokens. Readers keep
// them for half the notice that a new key is given.
func (p *Module) PublicKeys(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/jwk-set+json")
	w.Header().Set("Cache-Control", "public, max-age=300")
	_, _ = w.Write(p.cfg.Key.JWKS(p.cfg.Clock()))
}

func (p *Module) buildGate() (err error) {
	p.Gate, err = auth.NewGate(auth.Config{
		Key: p.cfg.Key, Clock: p.cfg.Clock, EnsureUser: p.ensureUser, Refuse: p.cfg.Refuse, OnRevoke: p.cfg.Revoke,
		Admitted: edge.Trust, Informed: p.revoked.Informed, Services: p.accounts.Authenticate,
	})
	return err
}

// ensureUser writes the row of a user who is seen for the first time. A token of an account
// that is deleted or suspended counts as revoked.
func (p *Module) ensureUser(ctx context.Context, user string) error {
	if err := p.cfg.Chats.EnsureUser(ctx, user); err != nil {
		return err
	}
	switch status, err := p.people.Status(ctx, user); {
	case err != nil:
		return err
	case status != table.Active:
		return fmt.Errorf("%w: the account is %s", auth.ErrRevoked, status)
	}
	return nil
}

// buildRevocations makes the service of revocations, which reads all of them before the
// server admits callers.
func (p *Module) buildRevocations() (err error) {
	p.revoked, err = revocation.New(revocation.Config{
		Store: p.cfg.Backend.Store, Clock: p.cfg.Clock, Shared: p.cfg.Shared, Logger: p.cfg.Logger,
		Apply: func(r auth.Revocation) { p.Gate.Apply(r) }, // made by buildGate
		Lost:  p.cfg.EndAll,
	})
	if err != nil {
		return err
	}
	p.run("revocations", p.revoked.Run)
	p.cfg.Metrics.Counter(telemetry.RevocationsApplied,
		"Sessions, users and service accounts that were revoked, here or elsewhere.",
		func() float64 { return float64(p.revoked.Applied()) })
	p.cfg.Metrics.Counter(telemetry.RevocationsUnreadable,
		"Rows of revocations that could not be read; whom they name is refused.",
		func() float64 { return float64(p.revoked.Unreadable()) })
	p.cfg.Metrics.Counter(telemetry.RevocationsOverflows,
		"Times when there were too many revocations to remember, and all tokens were refused.",
		func() float64 { return float64(p.Gate.Overflows()) })
	if p.cfg.Shared {
		p.cfg.Metrics.Gauge(telemetry.RevocationsAge, "Age of what the process knows of revocations, in seconds.",
			func() float64 { return p.revoked.Age(p.cfg.Clock()).Seconds() })
	}
	return nil
}

// buildAccounts makes what back ends call, and what knows their keys.
func (p *Module) buildAccounts() (err error) {
	p.accounts, err = service.New(service.Config{Store: p.cfg.Backend.Store, Clock: p.cfg.Clock, Revoker: p.revoked,
		Secret: p.cfg.Key.Derive("service keys", service.SecretSize)})
	if err != nil {
		return err
	}
	p.userServices = append(p.userServices, serviceapi.New(serviceapi.Config{Key: p.cfg.Key, Clock: p.cfg.Clock,
		Users:   p.accounts,
		Revoker: p.revoked, EnsureUser: p.cfg.Chats.EnsureUser}).Service())
	return nil
}

// buildPeople makes the service of profiles, block lists and settings.
func (p *Module) buildPeople() error {
	log, directory := p.cfg.Logger, newIdentifiers(p.cfg.Backend.Store, p.cfg.Clock)
	p.people = people.New(people.Config{Store: p.cfg.Backend.Store, Clock: p.cfg.Clock, NewID: chat.NewID,
		Chats: p.cfg.Chats, Hub: p.cfg.Hub, Identifiers: directory,
		Erase:  []func(context.Context, string) error{p.endEverything, directory.unbind},
		Failed: func(what string, err error) { log.Warn("tried again later: "+what, "error", err) }})
	p.cfg.Metrics.Gauge(telemetry.DeletionsFailing, "Deletions of accounts that failed and are tried again.",
		func() float64 { return float64(p.people.FailingDeletions()) })
	p.services = append(p.services, lifecycle.Restarted("people", log, p.people.Run))
	p.userServices = append(p.userServices, userapi.New(userapi.Config{People: p.people,
		Deleted: func(ctx context.Context, of auth.Principal) {
			p.Gate.Forget(of.UserID) // made by buildGate
			if err := p.endEverything(ctx, of.UserID); err != nil {
				log.Warn("tokens of a deleted account are refused later", "error", err) // people.Service.Run does it again
			}
		}}).Service())
	return nil
}

// endEverything ends the sessions, tokens and streams of a deleted account, in all processes.
func (p *Module) endEverything(ctx context.Context, user string) error {
	_, err := p.sessions.EndEverything(ctx, user, "", session.Deleted)
	return err
}
