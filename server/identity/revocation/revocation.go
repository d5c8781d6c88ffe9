// Package revocation makes revocations last and reach every process.
//
// A revocation is a row in the store before it is answered, then holds in the process that was
// asked, and every other process reads it within about a second: it asks the store for rows of
// the last minutes once a second, regardless of Redis. A process that starts reads all of them
// before it admits any caller.
//
// Each process writes to a log of its own, whose rows have consecutive numbers (log.go), and a
// row of all logs says how far each goes. A reader knows how far it has read: it reads the rows
// of all logs once a second, and of those that go further what it does not know. No clock has
// a part in it, so that none that is wrong, and no writer that stands still between the making
// of a row and its storing, makes a reader miss one; and a row is read once by each process.
//
// Where the store cannot be read a process does not know which access was revoked. After MaxAge
// it says so ([Service.Informed]), and the gate admits no caller; after MaxStreamAge open
// streams are ended, too. Where there is one process alone it knows everything by itself and
// reads once, at its start.
//
// The package owns the rows and the times above. It does not own what a revocation covers and
// what it ends in a process (package auth, and the code that sets up the process).
//
// Concurrency: a Service is safe for use by many goroutines; Run is called once. The lock is
// not held across calls of the store or of Apply.
package revocation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/chat/commit"
	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table/people"
)

// Times.
const (
	// Every is how often the store is asked.
	Every = time.Second
	// MaxAge is the greatest age of a process's knowledge at which it still admits callers.
	MaxAge = 10 * time.Second
	// MaxStreamAge is how old it may be before open streams end.
	MaxStreamAge = 30 * time.Second

	// ahead is how much another process's clock may be when it issues a token, as the gate allows.
	ahead = 30 * time.Second
	// readTime bounds a reading. Rows that were read in it are not read again.
	readTime = 2 * time.Second
	// stepBack is by how much a clock must be set back for the revocations read before to count
	// no more: rows may have been taken for expired.
	stepBack = 5 * time.Second
	// margin is how long rows stay after the tokens have expired, to allow for wrong
	// clocks.
	margin = 10 * time.Minute
	// keyTime is how long a key of a service account, whose row is gone, and the tokens that it
	// was used for, are remembered: until these have expired.
	keyTime = auth.ServiceTokensEnd
	maxID   = 64
)

// Config sets up a Service. All of it but Lost is required.
type Config struct {
	Store store.Store
	Clock func() time.Time
	// Apply makes a revocation hold in this process.
	Apply func(auth.Revocation)
	// Shared says that other processes revoke, too.
	Shared bool
	// Lost, if given, is called when the knowledge of a shared store is older than
	// MaxStreamAge, once until it is new again.
	Lost   func()
	Logger *slog.Logger
}

// Service revokes.
type Service struct {
	cfg Config
	log *log

	read       atomic.Int64 // when the last successful reading began, unix ns; 0: there was none
	applied    atomic.Int64
	unreadable atomic.Int64

	mu      sync.Mutex
	reached map[string]int64 // by log, the number of the last row that is applied
	lost    bool
}

// New makes a Service.
func New(cfg Config) (*Service, error) {
	if cfg.Store == nil || cfg.Clock == nil || cfg.Apply == nil || cfg.Logger == nil {
		return nil, errors.New("revocation: store, clock, application and logger are required")
	}
	s := &Service{cfg: cfg, reached: map[string]int64{}}
	s.log = &log{
		commits: commit.New(commit.Config{Store: cfg.Store, Clock: cfg.Clock, Sleep: wait.For}),
		written: func(id string, last int64) { s.reach(id, last) },
	}
	return s, nil
}

// RevokeSession makes the tokens of a session invalid, until a time when all of them have
// expired. When it returns nil that lasts, and holds in this process. On an error it holds in
// this process, and may not last: it is to be repeated.
func (s *Service) RevokeSession(ctx context.Context, session string, until time.Time) error {
	return s.revoke(ctx, auth.Revocation{Kind: auth.RevokedSession, ID: session, Until: until})
}

// RevokeUser makes the tokens of a user invalid that were issued before a time, which is
// taken a little later where other processes may have issued them by other clocks. Otherwise
// it is RevokeSession.
func (s *Service) RevokeUser(ctx context.Context, user string, issuedBefore, until time.Time) error {
	return s.revoke(ctx, auth.Revocation{Kind: auth.RevokedUser, ID: user, Before: s.later(issuedBefore), Until: until})
}

// RevokeService makes the tokens of users invalid that a service account asked for before a
// time, and has the account's own keys read again. Otherwise it is RevokeUser.
func (s *Service) RevokeService(ctx context.Context, account string, issuedBefore, until time.Time) error {
	return s.revoke(ctx, auth.Revocation{Kind: auth.RevokedService, ID: account, Before: s.later(issuedBefore),
		Until: until})
}

// RevokeKey makes a key of a service account invalid, whose row is gone, and the tokens of
// users that were asked for with it. Otherwise it is RevokeSession.
func (s *Service) RevokeKey(ctx context.Context, key string) error {
	return s.RevokeSession(ctx, key, s.cfg.Clock().Add(keyTime))
}

func (s *Service) later(before time.Time) time.Time {
	if s.cfg.Shared {
		before = before.Add(ahead)
	}
	return before
}

func (s *Service) revoke(ctx context.Context, r auth.Revocation) error {
	if r.ID == "" || len(r.ID) > maxID {
		return fmt.Errorf("revocation: what is revoked has a name of 1 to %d bytes", maxID)
	}
	row := people.Revocation{Kind: int64(r.Kind), Subject: r.ID, Until: r.Until.UnixMilli(),
		ExpiresAt: r.Until.Add(margin).Unix()}
	if !r.Before.IsZero() {
		row.Before = r.Before.UnixMilli()
	}
	err := s.log.add(ctx, row)
	s.apply(r)
	if err != nil {
		return fmt.Errorf("revoke: %w", err)
	}
	return nil
}

func (s *Service) apply(r auth.Revocation) {
	s.applied.Add(1)
	s.cfg.Apply(r)
}

// reach notes that the rows of a log are applied to a number.
func (s *Service) reach(log string, number int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reached[log] = max(s.reached[log], number)
}

// Load reads the revocations that this process does not know, and applies them.
func (s *Service) Load(ctx context.Context) error {
	began := s.cfg.Clock()
	if last := s.read.Load(); last != 0 && time.Unix(0, last).Sub(began) > stepBack {
		s.mu.Lock()
		clear(s.reached)
		s.mu.Unlock()
	}
	s.mu.Lock()
	before := maps.Clone(s.reached)
	s.mu.Unlock()
	for row, err := range store.QueryAll(ctx, s.cfg.Store, people.RevocationLogs()) {
		if err != nil {
			return err
		}
		l := people.RevocationLogFrom(row.Key.SK, row.Item)
		from := before[l.ID]
		delete(before, l.ID)
		if l.Last > 0 && l.Last <= from {
			continue
		}
		if err := s.loadLog(ctx, l, from); err != nil {
			return err
		}
	}
	s.read.Store(began.UnixNano())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost = false
	for id := range before { // all their rows have expired
		delete(s.reached, id)
	}
	return nil
}

// loadLog applies the rows of a log after a number.
func (s *Service) loadLog(ctx context.Context, l people.RevocationLog, from int64) error {
	for row, err := range store.QueryAll(ctx, s.cfg.Store, people.RevocationsAfter(l.ID, from)) {
		if err != nil {
			return err
		}
		r, err := people.RevocationFrom(l.ID, row)
		if err == nil && r.Kind <= int64(auth.RevokedService) {
			s.apply(revocationOf(r, auth.RevokedKind(r.Kind)))
		} else {
			s.applyUnreadable(r, row.Key)
		}
		s.reach(l.ID, r.Number)
	}
	s.reach(l.ID, l.Last) // where rows of it have expired
	return nil
}

// applyUnreadable refuses every subject that a row may mean if the row does not say what is
// revoked, for example a row that a later version has written. It refuses no other. A row
// without a name refuses no known subject.
func (s *Service) applyUnreadable(r people.Revocation, key store.Key) {
	if s.unreadable.Add(1) == 1 {
		s.cfg.Logger.Error("a row of revocations cannot be read; the server refuses a user whom it names", "row", key)
	}
	if r.Subject == "" || len(r.Subject) > maxID {
		return
	}
	r.Before = 0
	if r.Until == 0 {
		r.Until = s.cfg.Clock().Add(auth.TokensEnd).UnixMilli()
	}
	for _, kind := range []auth.RevokedKind{auth.RevokedSession, auth.RevokedUser, auth.RevokedService} {
		s.apply(revocationOf(r, kind))
	}
}

func revocationOf(r people.Revocation, kind auth.RevokedKind) auth.Revocation {
	out := auth.Revocation{Kind: kind, ID: r.Subject, Until: time.UnixMilli(r.Until)}
	if r.Before != 0 {
		out.Before = time.UnixMilli(r.Before)
	}
	return out
}

// Informed reports whether this process knows what was revoked, at a time.
func (s *Service) Informed(now time.Time) bool { return s.Age(now) <= MaxAge }

// Age is how old this process's knowledge is: nothing where there is no other process.
func (s *Service) Age(now time.Time) time.Duration {
	read := s.read.Load()
	switch {
	case read == 0:
		return MaxStreamAge + 1
	case !s.cfg.Shared:
		return 0
	}
	// A reading in the future is by a clock that was put back since: it says nothing.
	return now.Sub(time.Unix(0, read)).Abs()
}

// Applied is the number of revocations that this process has learned of.
func (s *Service) Applied() int64 { return s.applied.Load() }

// Unreadable is the number of rows that this process could not read.
func (s *Service) Unreadable() int64 { return s.unreadable.Load() }

// Run reads what was revoked, calls ready, and keeps reading until ctx ends.
func (s *Service) Run(ctx context.Context, ready func()) error {
	failed := false
	ready = sync.OnceFunc(ready)
	for {
		err := s.loadInTime(ctx)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the end of ctx is no failure
		case err == nil:
			ready()
			if failed {
				s.cfg.Logger.Info("what was revoked is known again")
			}
		case !failed:
			s.cfg.Logger.Error("revocations cannot be read; the server admits no user until it has read them", "after", MaxAge,
				"error", err)
		}
		failed = err != nil
		s.endStreams()
		if err == nil && !s.cfg.Shared {
			<-ctx.Done()
			return nil
		}
		_ = wait.For(ctx, Every) // the next reading sees the end of ctx
	}
}

// loadInTime is Load; the first time it may take as long as there is to read.
func (s *Service) loadInTime(ctx context.Context) error {
	if s.read.Load() == 0 {
		return s.Load(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	return s.Load(ctx)
}

// endStreams ends open streams when the revocations have been unknown for too long.
func (s *Service) endStreams() {
	if s.cfg.Lost == nil || s.Age(s.cfg.Clock()) <= MaxStreamAge {
		return
	}
	s.mu.Lock()
	before := s.lost
	s.lost = true
	s.mu.Unlock()
	if !before {
		s.cfg.Lost()
	}
}
