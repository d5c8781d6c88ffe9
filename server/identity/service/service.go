// Package service keeps service accounts and their keys: for bots, back ends and durable
// topics.
//
// An account is made by an operator, with scopes that say what it may do and for which users
// it may speak. It has any number of keys at a time, so that a program changes over before the
// old one ends. A key is shown once; the store has a hash. A key carries a tag that only this
// installation can make, so that a made-up one costs no read of the store.
//
// The package owns the rows and the rules above. Other packages own the permission to
// administer accounts, the effect of a scope, and the gate's memory (packages of operators,
// internal/serviceapi, auth). Nothing is cached here: the caller caches.
//
// Concurrency: a Service is safe for use by many goroutines and has no state of its own.
package service

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/chat/commit"
	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table/people"
)

// Scopes of service accounts, besides those that begin with auth.ScopeUsers.
const (
	ScopeAPI      auth.Scope = "api"          // all that users can do, as the account's own user
	ScopeTopics   auth.Scope = "topics"       // durable topics, as the account's own user
	ScopeTokens   auth.Scope = "tokens.issue" // access tokens for users
	ScopeUsers               = auth.ScopeMakeUsers
	ScopeRead     auth.Scope = "chats.read"    // reading chats, in a user's name
	ScopeChats    auth.Scope = "chats.write"   // making and changing chats, in a user's name
	ScopeMessages auth.Scope = "messages.send" // sending, in a user's name
)

// Scopes lists the scopes.
func Scopes() []auth.Scope {
	return []auth.Scope{ScopeAPI, ScopeTopics, ScopeTokens, ScopeUsers, ScopeRead, ScopeChats, ScopeMessages}
}

// Limits.
const (
	maxScopes      = 32
	maxScope       = 64
	maxDescription = 256
	maxLive        = 10  // keys of an account that are good
	maxKeys        = 100 // rows of keys of an account
	maxPage        = 1000
)

// Errors. Those of the store come through, wrapped.
var (
	ErrNotFound = errors.New("service: no such service account, or key")
	ErrExists   = errors.New("service: there is such a service account")
	ErrDisabled = errors.New("service: the service account has ended")
	ErrTooMany  = errors.New("service: the account has as many keys as it can have: revoke some")
	ErrInvalid  = errors.New("service: invalid argument")
)

// Account is a service account.
type Account = people.Account

// Key is a key without what authenticates.
type Key = people.ServiceKey

// Revoker makes keys, and tokens that were asked for, invalid everywhere.
type Revoker interface {
	RevokeKey(ctx context.Context, key string) error
	RevokeService(ctx context.Context, account string, issuedBefore, until time.Time) error
}

// SecretSize is the size of Config.Secret in bytes.
const SecretSize = 32

// Config sets up a Service. All of it is required.
type Config struct {
	Store   store.Store
	Clock   func() time.Time
	Secret  []byte // SecretSize bytes, the same in all processes
	Revoker Revoker
}

// Service keeps accounts.
type Service struct {
	cfg     Config
	commits *commit.Committer
}

// New makes a Service.
func New(cfg Config) (*Service, error) {
	if cfg.Store == nil || cfg.Clock == nil || len(cfg.Secret) != SecretSize || cfg.Revoker == nil {
		return nil, errors.New("service: store, clock, secret and revoker are required")
	}
	return &Service{cfg, commit.New(commit.Config{Store: cfg.Store, Clock: cfg.Clock, Sleep: wait.For})}, nil
}

// accountID is the form of ids: they stand in keys between underscores, and in user ids.
var accountID = regexp.MustCompile(`^[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?$`)

// users is the form of what follows auth.ScopeUsers.
var users = regexp.MustCompile(`^(?:\*|[^\p{C}\p{Z}#/*]+)$`)

func checkScopes(scopes []string) error {
	if len(scopes) == 0 || len(scopes) > maxScopes {
		return fmt.Errorf("%w: an account has 1 to %d scopes", ErrInvalid, maxScopes)
	}
	for _, s := range scopes {
		begins, ok := strings.CutPrefix(s, auth.ScopeUsers)
		switch {
		case len(s) > maxScope:
		case ok && users.MatchString(begins) && !strings.HasPrefix(begins, auth.ServiceUserPrefix):
			continue
		case !ok && slices.Contains(Scopes(), auth.Scope(s)):
			continue
		}
		return fmt.Errorf("%w: %.80q is no scope: there are %v, and %sBEGINNING for the users whom the account may speak for",
			ErrInvalid, s, Scopes(), auth.ScopeUsers)
	}
	return nil
}

// Check returns what is wrong with scopes. Errors: ErrInvalid.
func (*Service) Check(scopes []string) error { return checkScopes(scopes) }

// Create makes an account without keys, with an id of its own if it has none. Errors:
// ErrInvalid, ErrExists.
func (s *Service) Create(ctx context.Context, a Account) (Account, error) {
	if a.ID == "" {
		a.ID = "svc-" + strings.ToLower(rand.Text()[:16])
	}
	switch {
	case !accountID.MatchString(a.ID):
		return a, fmt.Errorf("%w: an id has 1 to 32 small letters, digits and dashes, not %.80q", ErrInvalid, a.ID)
	case len(a.Description) > maxDescription || len(a.CreatedBy) > 2*maxScope:
		return a, fmt.Errorf("%w: a description has at most %d bytes", ErrInvalid, maxDescription)
	}
	if err := checkScopes(a.Scopes); err != nil {
		return a, err
	}
	a.CreatedAt, a.Disabled = s.cfg.Clock().UnixMilli(), false
	a.Scopes = slices.Compact(slices.Sorted(slices.Values(a.Scopes)))
	err := s.commits.Repeat(ctx, store.Write{Op: store.OpPut, Key: people.AccountKey(a.ID), Item: a.Item(),
		Cond: store.Absent(), Name: "account"})
	if commit.ConditionError(err) == nil {
		return a, err
	}
	// Perhaps an attempt of this call made it, whose answer was lost.
	found, err := s.account(ctx, a.ID)
	if err == nil && (found.CreatedAt != a.CreatedAt || found.CreatedBy != a.CreatedBy ||
		!slices.Equal(found.Scopes, a.Scopes)) {
		err = ErrExists
	}
	return found, err
}

func (s *Service) account(ctx context.Context, id string) (Account, error) {
	if !accountID.MatchString(id) {
		return Account{}, ErrNotFound
	}
	it, err := s.cfg.Store.Get(ctx, people.AccountKey(id), store.Strong)
	if err == nil && it == nil {
		err = ErrNotFound
	}
	return people.AccountFrom(id, it), s.commits.Durable(ctx, err)
}

// Get returns an account and its keys, the newest first. Errors: ErrNotFound.
func (s *Service) Get(ctx context.Context, id string) (Account, []Key, error) {
	a, err := s.account(ctx, id)
	if err != nil {
		return a, nil, err
	}
	keys, err := s.keys(ctx, id)
	return a, keys, err
}

func (s *Service) keys(ctx context.Context, id string) ([]Key, error) {
	var list []Key
	q := store.Query{Table: store.Services, PK: people.ServiceKeys(id), Consistency: store.Strong}
	for row, err := range store.QueryAll(ctx, s.cfg.Store, q) {
		if err != nil {
			return nil, err
		}
		list = append(list, people.ServiceKeyFrom(id, row.Key.SK, row.Item))
	}
	slices.SortFunc(list, func(a, b Key) int { return int(b.CreatedAt - a.CreatedAt) })
	return list, s.commits.Durable(ctx, nil)
}

// List returns accounts in the order of their ids, those after an id, at most limit of them.
func (s *Service) List(ctx context.Context, after string, limit int) (list []Account, more bool, err error) {
	limit = min(max(limit, 1), maxPage)
	q := store.Query{Table: store.Services, PK: people.Accounts, From: after, Consistency: store.Strong}
	for row, err := range store.QueryAll(ctx, s.cfg.Store, q) {
		switch {
		case err != nil:
			return nil, false, err
		case row.Key.SK == after:
		case len(list) == limit:
			return list, true, s.commits.Durable(ctx, nil)
		default:
			list = append(list, people.AccountFrom(row.Key.SK, row.Item))
		}
	}
	return list, false, s.commits.Durable(ctx, nil)
}

// SetScopes changes what an account may do; every process knows within seconds. Unless it only
// adds scopes, what the account has open ends, and so do the tokens that it has asked for, also
// those of the next half minute where other processes issue tokens by other clocks. It is to be
// repeated after an error. Errors: ErrInvalid, ErrNotFound.
func (s *Service) SetScopes(ctx context.Context, id string, scopes []string) (Account, error) {
	if err := checkScopes(scopes); err != nil {
		return Account{}, err
	}
	before, err := s.account(ctx, id)
	if err != nil {
		return before, err
	}
	scopes = slices.Compact(slices.Sorted(slices.Values(scopes)))
	a, err := s.update(ctx, id, store.Attr{Name: people.AttrScopes, Value: store.List(scopes)})
	if err != nil || adds(before.Scopes, scopes) {
		return a, err
	}
	return a, s.endTokens(ctx, id)
}

// adds reports whether scopes are what was there before, and more. Of the same ones it says no:
// perhaps the call is repeated whose revocation failed.
func adds(before, scopes []string) bool {
	return len(scopes) > len(before) && !slices.ContainsFunc(before, func(s string) bool {
		return !slices.Contains(scopes, s)
	})
}

// endTokens ends what an account has open, and the tokens that it has asked for.
func (s *Service) endTokens(ctx context.Context, id string) error {
	now := s.cfg.Clock()
	return s.cfg.Revoker.RevokeService(ctx, id, now, now.Add(auth.ServiceTokensEnd))
}

// Disable ends an account for ever: its keys are refused, and the tokens that it has asked
// for. It may be repeated, and is to be after an error. Errors: ErrNotFound.
func (s *Service) Disable(ctx context.Context, id string) (Account, error) {
	a, err := s.update(ctx, id, store.Attr{Name: people.AttrDisabled, Value: store.Bool(true)})
	if err != nil {
		return a, err
	}
	return a, s.endTokens(ctx, id)
}

func (s *Service) update(ctx context.Context, id string, set store.Attr) (Account, error) {
	if !accountID.MatchString(id) {
		return Account{}, ErrNotFound
	}
	err := s.commits.Repeat(ctx, store.Write{Op: store.OpUpdate, Key: people.AccountKey(id), Cond: store.Exists(),
		Name: "account", Update: store.Update{Set: []store.Attr{set}}})
	if commit.ConditionError(err) != nil {
		return Account{}, s.commits.Durable(ctx, ErrNotFound)
	}
	if err != nil {
		return Account{}, err
	}
	return s.account(ctx, id)
}
