// Package admin is what operators do with people: suspend and restore users, end their
// sessions, read chats.
//
// It owns the order of the steps of a suspension, and the interfaces of the parts of
// identity that operators need. The code that sets up a process fills these. It does not own
// users, sessions, revocation, service accounts, limits, the permissions of operators or
// the record of a call (package ops).
//
// Concurrency: everything is safe for concurrent use.
package admin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Errors of calls.
var (
	ErrNoUser    = errors.New("admin: no such user")
	ErrNoSession = errors.New("admin: the user has no such session")
	ErrNoChat    = errors.New("admin: no such chat")
	ErrNoService = errors.New("admin: no such service account")
	ErrExists    = errors.New("admin: there is such a service account")
	ErrDisabled  = errors.New("admin: the service account has ended")
	ErrTooMany   = errors.New("admin: the service account has as many keys as it can have")
	ErrNoKey     = errors.New("admin: the service account has no such key")
	ErrNoLimit   = errors.New("admin: no such limit")
	ErrDeleted   = errors.New("admin: the account was deleted")
	ErrInvalid   = errors.New("admin: invalid argument")
)

// Status says whether a user may use the installation.
type Status string

// The states of a user. A row without one is active.
const (
	Active    Status = "active"
	Suspended Status = "suspended"
	Deleted   Status = "deleted"
)

// Users owns the states of users.
type Users interface {
	// Status returns a user's state. The error is ErrNoUser if there is no such user.
	Status(ctx context.Context, user string) (Status, error)
	// Suspend and Restore change it, and may be repeated. A deleted account stays deleted.
	Suspend(ctx context.Context, user string) error
	Restore(ctx context.Context, user string) error
}

// Session is where a user is signed in.
type Session struct {
	ID, Device                   string
	CreatedAt, UsedAt, ExpiresAt time.Time
}

// Sessions owns the sessions of users.
type Sessions interface {
	// List returns a user's sessions, the one used last first.
	List(ctx context.Context, user string) ([]Session, error)
	// Revoke ends a session and its tokens. The error is ErrNoSession if the user has no such.
	Revoke(ctx context.Context, user, session string) error
	// EndEverything ends all sessions and streams of a user and all tokens that were issued to the
	// user until now, in all processes. It may be repeated.
	EndEverything(ctx context.Context, user string) error
}

// Service is the account of a program.
type Service struct {
	ID, Description string
	Scopes          []string
	Disabled        bool
	CreatedAt       time.Time
	CreatedBy       string
}

// ServiceKey is a key of an account.
type ServiceKey struct {
	ID        string
	CreatedBy string
	CreatedAt time.Time
	ExpiresAt time.Time // zero: never
	Revoked   bool
}

// Services owns the accounts of programs. Errors are those of this package: ErrNoService,
// ErrNoKey, ErrExists, ErrDisabled, ErrTooMany, and ErrInvalid for ids, scopes and times that
// cannot be.
type Services interface {
	// List returns accounts by id, those after one, and whether there are more.
	List(ctx context.Context, after string, limit int) (list []Service, more bool, err error)
	// Get returns an account and its keys, the newest first.
	Get(ctx context.Context, service string) (Service, []ServiceKey, error)
	// Check returns what is wrong with scopes.
	Check(scopes []string) error
	// Create makes an account of id, description, scopes and maker; without an id it gets one.
	Create(ctx context.Context, s Service) (Service, error)
	SetScopes(ctx context.Context, service string, scopes []string) error
	Disable(ctx context.Context, service string) error
	// CreateKey makes a key; secret is what authenticates and is kept nowhere.
	CreateKey(ctx context.Context, service, by string, expires time.Time) (key ServiceKey, secret string, err error)
	RevokeKey(ctx context.Context, service, key string) error
}

// Limit is a limit on the actions of a key: a user, a network or another subject.
type Limit struct {
	Name, Key   string
	Rate        float64 // events in a period
	Period      time.Duration
	Burst       int64
	FailsClosed bool
}

// Limits owns the limits.
type Limits interface {
	// All returns them, and whether what processes count together cannot be reached.
	All() (list []Limit, sharedAway bool)
	// State returns how many events a key has left, and after which time it has more. The
	// error is ErrNoLimit if there is no such limit.
	State(ctx context.Context, limit, key string) (remaining int64, retryAfter time.Duration, err error)
}

// Parts are the parts of identity that a process has. Missing parts are nil, and the calls
// that need them are not served.
type Parts struct {
	Users    Users
	Sessions Sessions // required where Users is
	Services Services
	Limits   Limits
}

// Config is what People work with.
type Config struct {
	Store store.Store
	Parts Parts
}

// People keeps users out and lets them in.
type People struct{ cfg Config }

// NewPeople makes People.
func NewPeople(cfg Config) (*People, error) {
	if cfg.Parts.Users == nil || cfg.Parts.Sessions == nil {
		return nil, errors.New("admin: users and sessions are required")
	}
	return &People{cfg}, nil
}

// User is a user as operators see one.
type User struct {
	ID        string
	Status    Status
	CreatedAt time.Time
	Chats     int64
	Counted   bool // Chats is known
}

// Get returns a user.
func (p *People) Get(ctx context.Context, user string) (User, error) {
	status, err := p.cfg.Parts.Users.Status(ctx, user)
	if err != nil {
		return User{}, err
	}
	item, err := p.cfg.Store.Get(ctx, table.UserKey(user), store.Strong)
	if err != nil {
		return User{}, fmt.Errorf("read user: %w", err)
	}
	row := table.UserFrom(user, item)
	return User{ID: user, Status: status, CreatedAt: time.UnixMilli(row.CreatedAt), Chats: row.Chats,
		Counted: row.Counted}, nil
}

// Suspend keeps a user out: first nothing new begins, then what there is ends. A repetition
// does what an earlier call left undone, so an error leaves nothing half done for good.
func (p *People) Suspend(ctx context.Context, user string, execute bool) (User, error) {
	u, err := p.Get(ctx, user)
	switch {
	case err != nil:
		return u, err
	case u.Status == Deleted:
		return u, ErrDeleted
	case !execute:
		return u, nil
	}
	parts := p.cfg.Parts
	if err := parts.Users.Suspend(ctx, user); err != nil {
		return u, fmt.Errorf("suspend user: %w", err)
	}
	if err := parts.Sessions.EndEverything(ctx, user); err != nil {
		return u, fmt.Errorf("end sessions: %w", err)
	}
	return p.Get(ctx, user)
}

// Restore lets a suspended user in again.
func (p *People) Restore(ctx context.Context, user string, execute bool) (User, error) {
	u, err := p.Get(ctx, user)
	switch {
	case err != nil:
		return u, err
	case u.Status == Deleted:
		return u, ErrDeleted
	case !execute:
		return u, nil
	}
	if err := p.cfg.Parts.Users.Restore(ctx, user); err != nil {
		return u, fmt.Errorf("restore user: %w", err)
	}
	return p.Get(ctx, user)
}
