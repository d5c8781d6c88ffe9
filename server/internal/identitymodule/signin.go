package identitymodule

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/identity/issuer"
	"github.com/parley-chat/parley/server/identity/otp"
	"github.com/parley-chat/parley/server/identity/securitylog"
	"github.com/parley-chat/parley/server/identity/sender"
	"github.com/parley-chat/parley/server/identity/session"
	"github.com/parley-chat/parley/server/identity/signin"
	"github.com/parley-chat/parley/server/identity/ticket"
	"github.com/parley-chat/parley/server/infra/config"
	"github.com/parley-chat/parley/server/infra/lifecycle"
	"github.com/parley-chat/parley/server/infra/telemetry"
	"github.com/parley-chat/parley/server/internal/authapi"
	"github.com/parley-chat/parley/server/internal/ratelimit"
)

// maxSignIns is the number of calls without a token at a time.
const maxSignIns = 512

// CheckSettings says what is wrong with the settings of signing in together.
func CheckSettings(s config.Settings) error {
	switch {
	case s.Codes.Way == "smtp" && s.Codes.SMTPAddress == "":
		return errors.New("codes smtp needs smtp-address and smtp-from")
	case s.Codes.Way == "webhook" && s.Codes.Webhook == "":
		return errors.New("codes webhook needs codes-webhook")
	}
	return nil
}

// buildSessions makes what keeps the sessions of people.
func (p *Module) buildSessions() (err error) {
	p.sessions, err = session.New(session.Config{Store: p.cfg.Backend.Store, Clock: p.cfg.Clock,
		Pepper: p.cfg.Key.Derive("refresh tokens", session.PepperSize), Revoker: p.revoked, Record: p.events.Record,
		Issue: func(user, id string, now time.Time) (string, error) {
			return p.cfg.Key.IssueFor(user, id, now, session.AccessTime)
		}, Logger: p.cfg.Logger})
	if err != nil {
		return err
	}
	p.services = append(p.services, lifecycle.Restarted("sessions", p.cfg.Logger, p.sessions.Run))
	return nil
}

// buildSignIn makes the service that signs people in.
func (p *Module) buildSignIn() error {
	outbox, err := p.codeOutbox()
	if err != nil {
		return err
	}
	c := signin.Config{Store: p.cfg.Backend.Store, Clock: p.cfg.Clock, Pepper: p.cfg.Key.Derive("codes", otp.PepperSize),
		Outbox: outbox, SignUp: p.cfg.Settings.SignUp, Sessions: p.sessions, Limiter: ratelimit.SignIn{Limits: p.cfg.Limits},
		NewID: chat.NewID, Record: p.events.Record}
	if len(p.cfg.Issuers) > 0 {
		trusted, err := issuer.New(p.cfg.Issuers, p.cfg.Clock, nil)
		if err != nil {
			return fmt.Errorf("issuers: %w", err)
		}
		c.Exchanger = exchanger{trusted}
	}
	service, err := signin.New(c)
	if err != nil {
		return err
	}
	p.tickets, err = ticket.New(p.cfg.Backend.Store, p.cfg.Key.Derive("tickets for streams", ticket.KeySize), p.cfg.Clock)
	if err != nil {
		return err
	}
	p.userServices = append(p.userServices, authapi.New(service, p.revoked, p.tickets).Service())
	p.measureSignIn()
	return nil
}

// exchanger takes tokens of issuers for users.
type exchanger struct{ *issuer.Issuers }

// Exchange implements signin.Exchanger.
func (e exchanger) Exchange(ctx context.Context, token string) (user string, once session.Proof, err error) {
	proof, err := e.Issuers.Exchange(ctx, token)
	switch {
	case errors.Is(err, issuer.ErrInvalid):
		err = signin.ErrForeignToken
	case errors.Is(err, issuer.ErrUnavailable):
		err = signin.ErrIssuerAway
	}
	return proof.User, session.Proof{Hash: proof.Hash, Until: proof.Until}, err
}

// codeOutbox makes the queue of codes; nil where there is no way to people.
func (p *Module) codeOutbox() (otp.Outbox, error) {
	way, err := p.newCodeWay()
	if err != nil || way == nil {
		return nil, err
	}
	queue := sender.NewQueue(way, func(err error) {
		p.events.Record(context.Background(), securitylog.Event{Kind: securitylog.CodeUnsent, Reason: err.Error()})
	})
	p.run("codes", queue.Run)
	return queue, nil
}

// CodeWay is the way of codes to people: log, smtp, webhook or none. If it is not set, a server on
// loopback writes codes to its log, for the person who tries it out. On other servers, more people
// read the log than may sign in as others.
func (p *Module) CodeWay() string {
	way := p.cfg.Settings.Codes.Way
	switch {
	case way != "auto":
		return way
	case p.cfg.CodesLog:
		return "log"
	}
	return "none"
}

// newCodeWay makes the way of codes to people; nil where there is none.
func (p *Module) newCodeWay() (sender.Way, error) {
	c := p.cfg.Settings.Codes
	switch p.CodeWay() {
	case "log":
		return sender.Log{Log: p.cfg.Logger}, nil
	case "smtp":
		w := &sender.SMTP{Address: c.SMTPAddress, From: c.SMTPFrom, User: c.SMTPUser,
			Password: c.SMTPPassword.Reveal(), Implicit: c.SMTPTLS == "implicit", Clock: p.cfg.Clock}
		return w, checkWay(w)
	case "webhook":
		w := &sender.Webhook{URL: c.Webhook, Secret: c.WebhookSecret.Reveal(),
			Client: sender.NewWebhookClient(), Clock: p.cfg.Clock}
		return w, checkWay(w)
	}
	return nil, nil //nolint:nilnil // there is no way, which is no error
}

func checkWay(w interface{ Check() error }) error {
	if err := w.Check(); err != nil {
		return fmt.Errorf("codes: %w", err)
	}
	return nil
}

// measureSignIn counts what happens to accounts.
func (p *Module) measureSignIn() {
	for _, m := range []struct {
		name, help string
		kind       securitylog.Kind
	}{
		{telemetry.CodesRequested, "Codes to sign in with that were asked for.", securitylog.CodeRequested},
		{telemetry.CodesRefused, "Requests for codes that a limit forbade.", securitylog.CodeRefused},
		{telemetry.CodesWrong, "Codes that were wrong, used before, or too late.", securitylog.CodeWrong},
		{telemetry.CodesUnsent, "Codes that could not be sent.", securitylog.CodeUnsent},
		{telemetry.SessionsOpened, "Sessions begun.", securitylog.SignedIn},
		{telemetry.SessionsRefreshed, "Refreshes of sessions.", securitylog.Refreshed},
		{telemetry.SessionsRefused, "Refresh tokens that were not valid.", securitylog.RefreshRefused},
		{telemetry.SessionsReused, "Sessions ended because a refresh token came twice.", securitylog.RefreshReused},
		{telemetry.SessionsEnded, "Sessions ended before their time.", securitylog.SessionEnded},
	} {
		p.cfg.Metrics.Counter(m.name, m.help, func() float64 { return float64(p.events.Count(m.kind)) })
	}
}
