// Package otp gives people one-time codes: six digits, sent to an identifier, which prove that
// it is theirs.
//
// A code is valid for five minutes, once, for five attempts, and only with the id of its
// request; a new code voids the last one of the same network. The store has a keyed hash of the
// code. The key prevents an attacker who reads the store from guessing six digits at once. The
// answer and its duration are the same whether or not a user has the identifier.
//
// The limits of an identifier stand in rows beside its code and hold by the plan's condition,
// in all processes and without anything but the store: one code in 60 seconds, ten codes and 25
// attempts in any 24 hours, so that an attacker who guesses all day finds one of 40,000. Limits
// of networks and of the installation are a Limiter's; without its answer there is no code.
//
// Strangers take nothing from a person who has what they need:
//
//   - A code that was sent stays valid when others ask for codes elsewhere. Its five attempts
//     are set aside when it is made: there is no code where they would be more than 25.
//   - A network in which the person used a code within the last 30 days has limits of its own.
//   - Of the ten codes and 25 attempts of all other networks together one network has five and
//     15 at most.
//
// A caller from a known network can find out when the codes of all other networks are used up.
// That takes ten codes and a host in the same network, and it prevents an attacker from locking
// people out.
//
// It owns the table otp_requests. It does not own the delivery of codes (package sender) or the
// use of a proof (package signin).
//
// Concurrency: a Service is safe for concurrent use, also by several processes.
package otp

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/big"
	"time"

	"github.com/parley-chat/parley/server/chat/commit"
	"github.com/parley-chat/parley/server/identity/identifier"
	"github.com/parley-chat/parley/server/identity/securitylog"
	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table/people"
)

// The rules of codes.
const (
	Lifetime    = 5 * time.Minute
	Resend      = 60 * time.Second
	maxAttempts = 5
	maxSends    = 10
	maxGuesses  = 25
	// The share of both that one unknown network may have.
	maxShare      = 5
	maxGuessShare = 15
	knownFor      = 30 * day
	day           = 24 * time.Hour
	codes         = 1_000_000
	races         = 8 // attempts to change a row that others change
)

// PepperSize is the size of the key of hashes, in bytes.
const PepperSize = 32

// Errors, besides those of the store.
var (
	ErrCode    = errors.New("otp: the code is wrong, was used, or is too old: ask for another")
	ErrBusy    = errors.New("otp: too many codes wait to be sent")
	ErrKind    = errors.New("otp: no way to send a code there")
	ErrOff     = errors.New("otp: this server sends no codes")
	errLimiter = fmt.Errorf("otp: the limits cannot be asked: %w", store.ErrUnavailable)
)

// TooOften says that a limit forbids it for a while.
type TooOften struct{ Retry time.Duration }

// Error implements error.
func (e *TooOften) Error() string { return "otp: too often; try again later" }

// Message is what a person gets.
type Message struct {
	To      identifier.Identifier
	Code    string
	Expires time.Time
}

// Outbox takes messages to people. Package sender has one.
type Outbox interface {
	// Takes reports whether there is a way to identifiers of a kind.
	Takes(kind identifier.Kind) bool
	// Room reports whether there is room for a message.
	Room() bool
	// Send sends a message soon, without waiting for it.
	Send(m Message)
}

// Limiter has the limits that are not an identifier's: of the client's network, and of the
// installation. An error refuses.
type Limiter interface {
	AllowCode(ctx context.Context, client string) (retry time.Duration, err error)
	AllowAttempt(ctx context.Context, client string) (retry time.Duration, err error)
}

// Config is what a Service depends on; all of it is required but what says otherwise.
type Config struct {
	Store  store.Store
	Clock  func() time.Time
	Pepper []byte // PepperSize random bytes, the same in all processes
	Outbox Outbox // nil: there are no codes
	// Welcome reports whether an identifier may sign in. If not, the code is not sent, and
	// the caller cannot tell.
	Welcome func(ctx context.Context, id identifier.Identifier) (bool, error)
	Limiter Limiter // may be nil
	Record  func(ctx context.Context, e securitylog.Event)
}

// Service gives codes and takes them.
type Service struct {
	cfg   Config
	store *commit.Committer
}

// New makes a Service.
func New(cfg Config) (*Service, error) {
	if cfg.Store == nil || cfg.Clock == nil || len(cfg.Pepper) != PepperSize || cfg.Welcome == nil || cfg.Record == nil {
		return nil, errors.New("otp: store, clock, pepper, welcome and record are required")
	}
	return &Service{cfg, commit.New(commit.Config{Store: cfg.Store, Clock: cfg.Clock, Sleep: wait.For})}, nil
}

// Request is a code that was asked for.
type Request struct {
	ID       string
	Expires  time.Time
	ResendAt time.Time
}

// Request sends a code to an identifier; client is the network that asks. Errors: *TooOften,
// ErrBusy, ErrKind, ErrOff.
func (s *Service) Request(ctx context.Context, id identifier.Identifier, client string) (Request, error) {
	r, err := s.request(ctx, id, client)
	var often *TooOften
	switch {
	case err == nil:
		s.cfg.Record(ctx, securitylog.Event{Kind: securitylog.CodeRequested, Client: client})
	case errors.As(err, &often):
		s.cfg.Record(ctx, securitylog.Event{Kind: securitylog.CodeRefused, Client: client, Reason: "too often"})
	}
	return r, err
}

func (s *Service) request(ctx context.Context, id identifier.Identifier, client string) (Request, error) {
	switch {
	case s.cfg.Outbox == nil:
		return Request{}, ErrOff
	case !s.cfg.Outbox.Takes(id.Kind()):
		return Request{}, ErrKind
	case !s.cfg.Outbox.Room():
		return Request{}, ErrBusy
	}
	if s.cfg.Limiter != nil {
		if err := limited(s.cfg.Limiter.AllowCode(ctx, client)); err != nil {
			return Request{}, err
		}
	}
	welcome, err := s.cfg.Welcome(ctx, id)
	if err != nil {
		return Request{}, err
	}
	code, err := newCode()
	if err != nil {
		return Request{}, err
	}
	r, err := s.issue(ctx, id, client, code, welcome)
	if err == nil && welcome {
		s.cfg.Outbox.Send(Message{To: id, Code: code, Expires: r.Expires})
	}
	return r, err
}

// limited is the error of a Limiter's answer.
func limited(retry time.Duration, err error) error {
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", errLimiter, err)
	case retry > 0:
		return &TooOften{retry}
	}
	return nil
}

// issue stores a code in place of the last one of an identifier in a network.
func (s *Service) issue(
	ctx context.Context, id identifier.Identifier, client, code string, welcome bool,
) (Request, error) {
	network := s.network(client)
	for range races {
		b, err := s.read(ctx, id, network)
		if err != nil {
			return Request{}, err
		}
		now := s.cfg.Clock()
		if retry := b.tooOften(now); retry > 0 {
			return Request{}, s.store.Durable(ctx, &TooOften{retry})
		}
		next := people.Code{Request: rand.Text() + network, Until: now.Add(Lifetime).UnixMilli(), Known: b.own.Known}
		if next.Hash = s.hash("code", next.Request, id.Key(), code); !welcome {
			// A code that cannot be guessed, in a row like any other.
			next.Hash = s.hash("nobody", next.Request, rand.Text())
		}
		next, writes := b.with(next, now, []int64{now.UnixMilli()}, nil)
		err = s.store.Repeat(ctx, writes...)
		failed := commit.ConditionError(err)
		if failed == nil || isOurs(failed, next) {
			return Request{next.Request, now.Add(Lifetime), now.Add(Resend)}, s.orDurable(ctx, failed, err)
		}
	}
	return Request{}, store.ErrConflict
}

// Verify takes a code. With the right one it commits the plan of which makeMore makes the other
// writes, in which the code is used up: of several callers with one code a single one is
// served. makeMore is called again if the plan failed on one of its own conditions, with what
// failed, and ends the attempt with an error; the code is used up all the same. Errors:
// ErrCode, *TooOften, and those of makeMore.
func (s *Service) Verify(
	ctx context.Context, id identifier.Identifier, request, code, client string,
	makeMore func(ctx context.Context, failed *store.ConditionError) ([]store.Write, error),
) error {
	err := s.verify(ctx, id, request, code, client, makeMore)
	var often *TooOften
	switch {
	case errors.Is(err, ErrCode):
		s.cfg.Record(ctx, securitylog.Event{Kind: securitylog.CodeWrong, Client: client})
	case errors.As(err, &often):
		s.cfg.Record(ctx, securitylog.Event{Kind: securitylog.CodeWrong, Client: client, Reason: "too often"})
	}
	return err
}

func (s *Service) verify(
	ctx context.Context, id identifier.Identifier, request, code, client string,
	makeMore func(ctx context.Context, failed *store.ConditionError) ([]store.Write, error),
) error {
	if s.cfg.Limiter != nil {
		if err := limited(s.cfg.Limiter.AllowAttempt(ctx, client)); err != nil {
			return err
		}
	}
	network := request[min(len(request), nonceSize):] // of the request for the code
	var failed *store.ConditionError                  // on a condition of makeMore's
	for range races {
		b, err := s.read(ctx, id, network)
		if err != nil {
			return err
		}
		now := s.cfg.Clock()
		if err := check(b.own, request, now); err != nil {
			return s.store.Durable(ctx, err)
		}
		right := hmac.Equal(b.own.Hash, s.hash("code", request, id.Key(), code))
		next, more, refused := b.own, []store.Write(nil), error(nil)
		next.Attempts++
		if right {
			next.Hash = nil
			more, refused = makeMore(ctx, failed)
		}
		if refused != nil {
			more = nil
		} else if right && network != s.network("") {
			next.Known = now.Add(knownFor).UnixMilli()
		}
		next, writes := b.with(next, now, nil, []int64{now.UnixMilli()})
		err = s.store.Repeat(ctx, append(writes, more...)...)
		if failed = commit.ConditionError(err); failed == nil || isOurs(failed, next) {
			switch err = s.orDurable(ctx, failed, err); {
			case err != nil:
				return err
			case !right:
				return ErrCode
			}
			return refused
		}
		_, own := failed.Failed(condCode)
		if _, all := failed.Failed(condStrangers); own || all {
			failed = nil // another attempt was faster
		}
	}
	return store.ErrConflict
}

// check returns why no attempt at the code of a row is possible. A caller without the id of
// the request makes no attempt: otherwise any caller could use up the attempts of another.
func check(row people.Code, request string, now time.Time) error {
	if !hmac.Equal([]byte(row.Request), []byte(request)) || request == "" || len(row.Hash) == 0 ||
		!now.Before(time.UnixMilli(row.Until)) || row.Attempts >= maxAttempts {
		return ErrCode
	}
	return nil
}

// isOurs reports whether a condition failed because an earlier attempt of the same plan, whose
// answer was lost, was committed.
func isOurs(failed *store.ConditionError, next people.Code) bool {
	f, ok := failed.Failed(condCode)
	return ok && people.CodeFrom(f.Current).Change == next.Change
}

// orDurable returns the error of a plan, nil for one that was committed before; then that must
// be on stable storage.
func (s *Service) orDurable(ctx context.Context, failed *store.ConditionError, err error) error {
	if failed != nil {
		return s.store.Durable(ctx, nil)
	}
	return err
}

// hash is the keyed hash of texts, none of which has a zero byte.
func (s *Service) hash(purpose string, texts ...string) []byte {
	h := hmac.New(sha256.New, s.cfg.Pepper)
	_, _ = h.Write([]byte(purpose))
	for _, t := range texts {
		_, _ = h.Write([]byte{0})
		_, _ = h.Write([]byte(t))
	}
	return h.Sum(nil)
}

// newCode makes a code; each is as probable as any other.
func newCode() (string, error) {
	n, err := rand.Int(rand.Reader, big.NewInt(codes))
	if err != nil {
		return "", fmt.Errorf("otp: make a code: %w", err)
	}
	return fmt.Sprintf("%06d", n.Int64()), nil
}
