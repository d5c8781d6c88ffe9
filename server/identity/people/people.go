// Package people holds what people show of themselves and what they allow others: profiles
// and handles, block lists, settings, invitations, the status of an account, its deletion
// and its export.
//
// # How it reaches chats
//
// Chats hold ids of people and nothing else of them, so a profile changes in one row. A block
// is written, in one plan, to the block list and to the two members' own rows of the direct
// chat that the two may have: a send compares its sender's row anyway and reads nothing more.
// A user who begins a direct chat or adds a member compares the block list in the plan
// (package chat/plan); the creation of a group reads it again once that is committed.
// Settings stand in the users row, which such a plan compares, too.
//
// # What stays open
//
// Every change is one plan under conditions on what it was decided on. After an unknown
// outcome it runs again; if it fails on its own first attempt, the rows say so.
//
// # Concurrency
//
// A Service is safe for concurrent use; Run is called once. No mutex is held
// across a call of the store or a hook.
package people

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/chat/commit"
	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	rows "github.com/parley-chat/parley/server/store/table/people"
)

// Limits.
const (
	MaxBlocked     = 1000 // entries of a block list
	MaxInvitations = 200  // open invitations of a person
	MaxInvitedBy   = 10   // of them, by the same inviter
	MaxBatch       = 100  // profiles in one request

	HandleHeld    = 30 * 24 * time.Hour // a handle that was given up is its former owner's
	HandleEvery   = 24 * time.Hour      // between two changes of a handle
	InvitationFor = 30 * 24 * time.Hour // an invitation can be accepted
)

// Errors that callers see. Those of package chat and of the store are passed on.
var (
	ErrUnknown        = errors.New("people: there is no such user")
	ErrEtag           = errors.New("people: the profile has another etag")
	ErrHandleTaken    = errors.New("people: the handle is taken")
	ErrHandleReserved = errors.New("people: this handle is reserved")
	ErrHandleTooSoon  = errors.New("people: the handle changed less than a day ago")
	ErrSelf           = errors.New("people: this is the caller")
	ErrTooManyBlocked = errors.New("people: the block list is full")
	ErrNoInvitation   = errors.New("people: there is no such invitation")
	ErrNoIdentifiers  = errors.New("people: this server knows no identifiers")
	ErrNotConfirmed   = errors.New("people: the id is not the caller's")
	ErrSignInTooOld   = errors.New("people: the caller has signed in too long ago")
	ErrBusy           = errors.New("people: an export of this user is under way")
	ErrCursor         = errors.New("people: this is no cursor of an export")
)

// Chats are what the service does in chats; *chat.Service is one.
type Chats interface {
	Change(ctx context.Context, op chat.Operation, c chat.MemberChange) (chat.Changed, error)
	Depart(ctx context.Context, user, chatID string) error
}

// Identifiers are the e-mail addresses and phone numbers that people have proven to have.
type Identifiers interface {
	// Lookup returns the user who has an identifier, in any spelling. It returns "" if no
	// user has it, or if it is not an identifier.
	Lookup(ctx context.Context, identifier string) (user string, err error)
	// OfUser returns the identifiers of a user, in an order that does not change.
	OfUser(ctx context.Context, user string) ([]string, error)
}

// Hub notifies open streams of this process; *delivery.Hub is one.
type Hub interface {
	// ProfileChanged notifies the streams of members of some chats. It does not wait.
	ProfileChanged(user string, version int64, chats []string)
}

// Config sets up a Service. Store, Clock, NewID, Chats and Hub are required.
type Config struct {
	Store store.Store
	Clock func() time.Time
	// NewID returns a new id with a prefix, different in all processes; by default a ULID.
	NewID func(prefix string) string
	Chats Chats
	Hub   Hub
	// Identifiers, if given, are looked up and exported. Without them no user is found by
	// one.
	Identifiers Identifiers
	// Erase removes what other parts hold of a deleted account: sessions, identifiers. Each
	// is called until all succeed, and may be called again after it.
	Erase []func(ctx context.Context, user string) error
	// Failed, if given, is called with what is tried again.
	Failed func(what string, err error)
	// Sleep waits between attempts; by default in real time.
	Sleep func(ctx context.Context, d time.Duration) error
}

// Service holds people.
type Service struct {
	cfg     Config
	id      string // of this process, for deletions that it carries out
	commits *commit.Committer
	wake    chan struct{} // an account was deleted here
	failing atomic.Int64  // deletions that failed when they were tried last, as of the last sweep

	mu        sync.Mutex
	exporting map[string]bool         // users
	announced map[string]announcement // users of whose changes streams were notified here
}

// New makes a Service.
func New(cfg Config) *Service {
	if cfg.NewID == nil {
		cfg.NewID = chat.NewID
	}
	if cfg.Sleep == nil {
		cfg.Sleep = wait.For
	}
	if cfg.Failed == nil {
		cfg.Failed = func(string, error) {}
	}
	return &Service{cfg: cfg, id: cfg.NewID("people_"),
		commits:   commit.New(commit.Config{Store: cfg.Store, Clock: cfg.Clock, Sleep: cfg.Sleep}),
		wake:      make(chan struct{}, 1),
		exporting: map[string]bool{}, announced: map[string]announcement{}}
}

func (s *Service) now() int64 { return s.cfg.Clock().UnixMilli() }

// seconds is a time in unix ms, after some time, as rows expire.
func seconds(at int64, after time.Duration) int64 { return at/1000 + int64(after/time.Second) }

// repeat decides and runs a plan until it succeeds or is refused. decide returns no writes
// if there is nothing to do, which may be because an attempt whose outcome was unknown did
// it. The rows that it read are durable when repeat returns.
func (s *Service) repeat(ctx context.Context, decide func() ([]store.Write, error)) error {
	for backoff := s.commits.Backoff(); ; {
		writes, err := decide()
		if err != nil || len(writes) == 0 {
			return s.commits.Durable(ctx, err)
		}
		if err = s.commits.Repeat(ctx, writes...); commit.ConditionError(err) == nil {
			return err
		}
		if err := backoff.Wait(ctx, ctx); err != nil {
			return err
		}
	}
}

// access reads what a user's row says. Errors: ErrUnknown, also for a deleted account.
func (s *Service) access(ctx context.Context, user string) (rows.Access, error) {
	it, err := s.commits.Get(ctx, table.UserKey(user))
	if err != nil {
		return rows.Access{}, err
	}
	a := rows.AccessFrom(it)
	if !a.Exists || a.Deleted() {
		return a, ErrUnknown
	}
	return a, nil
}

func put(name string, cond store.Condition, key store.Key, it store.Item) store.Write {
	return store.Write{Op: store.OpPut, Key: key, Item: it, Cond: cond, Name: name}
}

func update(name string, cond store.Condition, key store.Key, u store.Update) store.Write {
	return store.Write{Op: store.OpUpdate, Key: key, Update: u, Cond: cond, Name: name}
}

// there is the condition on the row of a user whose account is not deleted.
func there() store.Condition { return rows.NotDeleted(store.Exists()) }
