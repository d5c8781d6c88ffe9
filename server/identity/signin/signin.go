// Package signin turns a proof of identity into a session: a code that was sent to their
// identifier, or a token of an issuer that this installation trusts.
//
// It decides about an identifier that no user has yet. Where people can sign up by themselves,
// it makes a new user in the plan that uses the code up and begins the session. Otherwise it
// refuses the identifier. It does not own codes, identifiers or sessions.
//
// Concurrency: a Service is safe for concurrent use, also by several processes.
package signin

import (
	"context"
	"errors"
	"time"

	"github.com/parley-chat/parley/server/identity/identifier"
	"github.com/parley-chat/parley/server/identity/otp"
	"github.com/parley-chat/parley/server/identity/securitylog"
	"github.com/parley-chat/parley/server/identity/session"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Errors, besides those of packages otp, identifier and session.
var (
	ErrNoIssuer     = errors.New("signin: this server trusts no issuer of tokens")
	ErrForeignToken = errors.New("signin: the token of the issuer is not valid")
	// ErrIssuerAway says that the keys of the token's issuer cannot be read just now.
	ErrIssuerAway = errors.New("signin: the issuer of the token cannot be reached")
)

// Exchanger knows the issuers that are trusted.
type Exchanger interface {
	// Exchange returns the user that a token stands for, and what of the token is remembered so
	// that it is good once. Errors: ErrForeignToken, ErrIssuerAway.
	Exchange(ctx context.Context, token string) (user string, proof session.Proof, err error)
}

// Config is what a Service depends on; all of it is required but what says otherwise.
type Config struct {
	Store  store.Store
	Clock  func() time.Time
	Pepper []byte     // of codes, otp.PepperSize
	Outbox otp.Outbox // nil: there are no codes
	// SignUp admits people whose identifier no user has yet; they become new users.
	SignUp    bool
	Limiter   otp.Limiter // may be nil
	Sessions  *session.Service
	Exchanger Exchanger // nil: there are no issuers
	NewID     func(prefix string) string
	Record    func(ctx context.Context, e securitylog.Event)
}

// Service signs people in.
type Service struct {
	cfg       Config
	codes     *otp.Service
	directory *identifier.Directory
}

// New makes a Service.
func New(cfg Config) (*Service, error) {
	if cfg.Sessions == nil || cfg.NewID == nil {
		return nil, errors.New("signin: sessions and ids are required")
	}
	s := &Service{cfg: cfg, directory: identifier.NewDirectory(cfg.Store, cfg.Clock)}
	var err error
	s.codes, err = otp.New(otp.Config{Store: cfg.Store, Clock: cfg.Clock, Pepper: cfg.Pepper, Outbox: cfg.Outbox,
		Welcome: s.welcome, Limiter: cfg.Limiter, Record: cfg.Record})
	return s, err
}

// Sessions are the sessions that were begun.
func (s *Service) Sessions() *session.Service { return s.cfg.Sessions }

// Directory says whose identifiers are.
func (s *Service) Directory() *identifier.Directory { return s.directory }

// welcome reports whether an identifier may sign in. It asks whose it is in any case, so that
// the answer takes the same time.
func (s *Service) welcome(ctx context.Context, id identifier.Identifier) (bool, error) {
	user, err := s.directory.Lookup(ctx, id)
	return user != "" || s.cfg.SignUp, err
}

// RequestCode sends a code to an identifier; client is the network that asks. Errors:
// identifier.ErrInvalid, and those of otp.Service.Request.
func (s *Service) RequestCode(ctx context.Context, text, client string) (otp.Request, error) {
	id, err := identifier.Parse(text)
	if err != nil {
		return otp.Request{}, err
	}
	return s.codes.Request(ctx, id, client)
}

// Proof is a code with what it belongs to.
type Proof struct {
	Identifier, Request, Code string
	Device                    string // what the client calls it
	Client                    string // network that it comes from
}

// WithCode begins a session with a code. Errors: identifier.ErrInvalid, session.ErrSuspended,
// session.ErrTooMany, and those of otp.Service.Verify.
func (s *Service) WithCode(ctx context.Context, p Proof) (tokens session.Tokens, newUser bool, err error) {
	id, err := identifier.Parse(p.Identifier)
	if err != nil {
		return session.Tokens{}, false, err
	}
	var opening *session.Opening
	err = s.codes.Verify(ctx, id, p.Request, p.Code, p.Client,
		func(ctx context.Context, failed *store.ConditionError) (writes []store.Write, err error) {
			if failed != nil {
				if err := session.Refusal(failed); err != nil {
					return nil, err
				}
			}
			opening, newUser, writes, err = s.open(ctx, id, p.Device)
			return writes, err
		})
	if err != nil {
		if errors.Is(err, session.ErrSuspended) || errors.Is(err, session.ErrTooMany) {
			s.cfg.Record(ctx, securitylog.Event{Kind: securitylog.SignInRefused, Reason: session.Word(err), Client: p.Client})
		}
		return session.Tokens{}, false, err
	}
	tokens, err = opening.Done(ctx)
	return tokens, newUser, err
}

// open prepares the session of the user who has an identifier, or of a new user.
func (s *Service) open(
	ctx context.Context, id identifier.Identifier, device string,
) (o *session.Opening, newUser bool, writes []store.Write, err error) {
	user, err := s.directory.Lookup(ctx, id)
	if err != nil {
		return nil, false, nil, err
	}
	if user == "" {
		if !s.cfg.SignUp { // it was unbound since the code was sent
			return nil, false, nil, otp.ErrCode
		}
		newUser, user = true, s.cfg.NewID("usr_")
		row := table.User{UserID: user, CreatedAt: s.cfg.Clock().UnixMilli(), Status: table.Active, Counted: true}
		writes = append(s.directory.BindWrites(user, id), store.Write{Op: store.OpPut, Key: table.UserKey(user),
			Item: row.Item(), Cond: store.Absent(), Name: "new user"})
	}
	if o, err = s.cfg.Sessions.Begin(ctx, user, device, newUser); err != nil {
		return nil, false, nil, err
	}
	return o, newUser, append(writes, o.Writes()...), nil
}

// WithToken begins a session with a token of an issuer. The plan that does uses the token up, for
// all processes; a client that loses the answer gets another one from the issuer. Errors:
// ErrNoIssuer, ErrForeignToken, ErrIssuerAway, session.ErrSuspended, session.ErrTooMany.
func (s *Service) WithToken(ctx context.Context, token, device string) (session.Tokens, error) {
	if s.cfg.Exchanger == nil {
		return session.Tokens{}, ErrNoIssuer
	}
	user, proof, err := s.cfg.Exchanger.Exchange(ctx, token)
	if err != nil {
		return session.Tokens{}, err
	}
	tokens, err := s.cfg.Sessions.Open(ctx, user, device, proof)
	if errors.Is(err, session.ErrSpent) {
		err = ErrForeignToken
	}
	return tokens, err
}
