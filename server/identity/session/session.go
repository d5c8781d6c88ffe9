// Package session keeps sign-ins: each is a family of refresh tokens, of which one is good at a
// time, and the access tokens that come with them.
//
// A refresh exchanges the good token for its successor. The tokens before it get the one that is
// good then for ten seconds more, because tabs refresh at the same time and answers get lost.
// After that such a token must have two holders, so the session ends, with all tokens and
// streams. A session also ends 30 days after its last refresh, 90 days after its beginning, and
// when its owner or an operator says so.
//
// It owns the table sessions. The row of a session goes in one plan with a note that it ended;
// the note goes when its access tokens are refused everywhere (Revoker), which Run sees to if a
// process ended in between. It does not own access tokens (Issue) or the proof of a user's
// identity.
//
// Concurrency: a Service is safe for concurrent use, also by several processes.
package session

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/parley-chat/parley/server/chat/commit"
	"github.com/parley-chat/parley/server/identity/securitylog"
	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/store/table/people"
)

// The rules of sessions.
const (
	AccessTime   = 15 * time.Minute    // of an access token
	Idle         = 30 * 24 * time.Hour // without a refresh
	Absolute     = 90 * 24 * time.Hour // in all
	Grace        = 10 * time.Second    // in which a token that was used gets the one that is good
	MaxPerUser   = 32
	maxOpened    = 60 // in an hour of the clock: each one that ends before its time is reported to all processes
	maxRotations = 8  // within Grace
	races        = 8  // attempts to change a row that others change
)

// PepperSize is the size of the key of successors and marks, in bytes.
const PepperSize = 32

// Errors, besides those of the store.
var (
	ErrToken     = errors.New("session: the refresh token is not valid: sign in again")
	ErrReused    = fmt.Errorf("%w (used before)", ErrToken)
	ErrSuspended = errors.New("session: the account is suspended or deleted")
	ErrNotFound  = errors.New("session: no such session")
	ErrTooFast   = errors.New("session: refreshed too often")
	ErrTooMany   = errors.New("session: the account has begun too many sessions: try again later")
)

// Reasons why a session ended.
const (
	SignedOut = "signed out"
	Revoked   = "revoked"
	Reused    = "refresh token reused"
	TooMany   = "too many sessions"
	Operator  = "operator"
	Deleted   = "the account was deleted"
	Expired   = "expired"
)

// Revoker makes access tokens invalid everywhere and ends their streams.
type Revoker interface {
	// RevokeSession refuses the access tokens of a session until a time when they have expired.
	RevokeSession(ctx context.Context, session string, until time.Time) error
	// RevokeUser refuses the access tokens of a user that were issued before a time, until a time
	// when they have expired.
	RevokeUser(ctx context.Context, user string, issuedBefore, until time.Time) error
}

// Config is what a Service depends on; all of it is required.
type Config struct {
	Store  store.Store
	Clock  func() time.Time
	Pepper []byte // PepperSize random bytes, the same in all processes
	// Issue makes an access token that is good for AccessTime.
	Issue   func(user, session string, now time.Time) (string, error)
	Revoker Revoker
	Record  func(ctx context.Context, e securitylog.Event)
	Logger  *slog.Logger // of Run; nil: nothing is logged
}

// Service keeps sessions.
type Service struct {
	cfg   Config
	keys  keys
	store *commit.Committer
}

// New makes a Service.
func New(cfg Config) (*Service, error) {
	if cfg.Store == nil || cfg.Clock == nil || len(cfg.Pepper) != PepperSize || cfg.Issue == nil || cfg.Revoker == nil ||
		cfg.Record == nil {
		return nil, errors.New("session: store, clock, pepper, issuer, revoker and record are required")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Service{cfg, keys{cfg.Pepper},
		commit.New(commit.Config{Store: cfg.Store, Clock: cfg.Clock, Sleep: wait.For})}, nil
}

// Now is the time by which sessions end.
func (s *Service) Now() time.Time { return s.cfg.Clock() }

// Tokens are what the owner of a session gets.
type Tokens struct {
	User, Session  string
	Access         string
	AccessExpires  time.Time
	Refresh        string
	RefreshExpires time.Time
}

// Names of conditions.
const (
	condSession = "session"
	condUser    = "user may sign in"
	condOpened  = "sessions opened"
)

// mayHaveSessions is the write of a plan that fails if a user is suspended or deleted.
func mayHaveSessions(user string) store.Write {
	return store.Write{Op: store.OpCheck, Key: table.UserKey(user), Name: condUser, Cond: people.InUse(nil)}
}

// opened is the write of a plan that counts a session which begins. It fails if there were too
// many.
func opened(user string, now time.Time) store.Write {
	hour := now.Unix() / secondsPerHour
	return store.Write{Op: store.OpUpdate, Key: people.OpenedSessionsKey(user, hour), Name: condOpened,
		Update: store.Update{
			Set: []store.Attr{{Name: store.ExpiresAtField, Value: store.Int((hour + 2) * secondsPerHour)}},
			Add: []store.Increment{{Name: people.AttrCount, N: 1}},
		}, Cond: store.Condition{}.Ne(people.AttrCount, store.Int(maxOpened))}
}

const secondsPerHour = 3600

// Refusal is why a plan that begins or continues a session can never be committed, nil if
// it may be another time. Errors: ErrSuspended, ErrTooMany.
func Refusal(err *store.ConditionError) error {
	if _, failed := err.Failed(condUser); failed {
		return ErrSuspended
	}
	if _, failed := err.Failed(condOpened); failed {
		return ErrTooMany
	}
	return nil
}

// Opening is a session that is about to begin.
type Opening struct {
	service *Service
	token   token
	now     time.Time
	writes  []store.Write
	ends    []people.EndedSession
}

// Begin prepares a session of a user. The caller commits its writes, and then asks for its
// tokens. newUser says that the plan makes the user's row.
func (s *Service) Begin(ctx context.Context, user, device string, newUser bool) (*Opening, error) {
	now := s.cfg.Clock()
	o := &Opening{service: s, now: now, token: s.keys.first(user, "ses_"+rand.Text())}
	hash := o.token.hash()
	row := people.Session{UserID: user, SessionID: o.token.session, Device: device, Hash: hash[:],
		CreatedAt: now.UnixMilli(), UsedAt: now.UnixMilli(), ExpiresAt: now.Add(Idle).Unix() + 1}
	o.writes = []store.Write{{Op: store.OpPut, Key: people.SessionKey(user, row.SessionID), Item: row.Item(),
		Cond: store.Absent(), Name: condSession}, opened(user, now)}
	if newUser {
		return o, nil
	}
	o.writes = append(o.writes, mayHaveSessions(user))
	others, err := s.list(ctx, user)
	if err != nil {
		return nil, err
	}
	for _, old := range others[min(len(others), MaxPerUser-1):] {
		ended, writes := s.ends(old, TooMany, true)
		o.ends, o.writes = append(o.ends, ended), append(o.writes, writes...)
		if len(o.ends) == maxEnds {
			break
		}
	}
	return o, nil
}

// Writes are what begins the session, at most 3 + 2·maxEnds of them.
func (o *Opening) Writes() []store.Write { return o.writes }

// Done returns the tokens of the session, once its writes are committed.
func (o *Opening) Done(ctx context.Context) (Tokens, error) {
	s := o.service
	s.cfg.Record(ctx, securitylog.Event{Kind: securitylog.SignedIn, User: o.token.user, Session: o.token.session})
	for _, e := range o.ends {
		_ = s.finish(ctx, e) // Run does it again
	}
	return s.tokens(o.token, o.now, o.now)
}

// ErrSpent reports that the user's proof of identity was used before.
var ErrSpent = errors.New("session: the proof was used before")

// condSpent names the write that uses a proof up.
const condSpent = "spent"

// Proof is a proof of identity that a user can use once.
type Proof struct {
	Hash  [people.HashSize]byte
	Until time.Time // from then on it is refused anyway
}

// spend is the write that uses a proof up, unless it was before.
func (p Proof) spend() store.Write {
	row := people.SpentToken{Hash: p.Hash, ExpiresAt: p.Until.Unix() + 1}
	return store.Write{Op: store.OpPut, Key: row.Key(), Item: row.Item(), Cond: store.Absent(), Name: condSpent}
}

// Open begins a session of a user who has proven their identity. The plan that does uses the
// proof up. Errors: ErrSuspended, ErrTooMany, ErrSpent.
func (s *Service) Open(ctx context.Context, user, device string, proof Proof) (Tokens, error) {
	for range races {
		o, err := s.Begin(ctx, user, device, false)
		if err != nil {
			return Tokens{}, err
		}
		err = s.store.Repeat(ctx, append(o.Writes(), proof.spend())...)
		failed := commit.ConditionError(err)
		switch {
		case failed == nil && err != nil:
			return Tokens{}, err
		case failed == nil || s.wrote(failed, o.token):
			return o.Done(ctx)
		}
		if _, spent := failed.Failed(condSpent); spent {
			return Tokens{}, s.store.Durable(ctx, ErrSpent)
		}
		if refused := Refusal(failed); refused != nil {
			s.cfg.Record(ctx, securitylog.Event{Kind: securitylog.SignInRefused, User: user, Reason: Word(refused)})
			return Tokens{}, s.store.Durable(ctx, refused)
		}
	}
	return Tokens{}, store.ErrConflict
}

// Word is a refusal in the log.
func Word(refused error) string {
	if errors.Is(refused, ErrTooMany) {
		return "too often"
	}
	return "suspended"
}

// wrote reports whether a plan failed because an earlier attempt, whose answer was lost, had
// made a token the good one.
func (s *Service) wrote(failed *store.ConditionError, t token) bool {
	f, ok := failed.Failed(condSession)
	hash := t.hash()
	return ok && f.Current.Get(people.AttrHash).Str() == string(hash[:])
}

// tokens makes what a session's owner gets.
func (s *Service) tokens(t token, created, now time.Time) (Tokens, error) {
	access, err := s.cfg.Issue(t.user, t.session, now)
	if err != nil {
		return Tokens{}, fmt.Errorf("session: make an access token: %w", err)
	}
	return Tokens{User: t.user, Session: t.session, Access: access, AccessExpires: now.Add(AccessTime),
		Refresh: s.keys.text(t), RefreshExpires: expiry(created, now)}, nil
}

// expiry is when a session ends if it is not refreshed after a time.
func expiry(created, used time.Time) time.Time {
	idle, absolute := used.Add(Idle), created.Add(Absolute)
	if absolute.Before(idle) {
		return absolute
	}
	return idle
}

// Refresh exchanges a refresh token for the next tokens. Errors: ErrToken, of which ErrReused is
// a kind; ErrSuspended; ErrTooFast.
func (s *Service) Refresh(ctx context.Context, text string) (Tokens, error) {
	t, ok := s.keys.parse(text)
	if !ok {
		s.cfg.Record(ctx, securitylog.Event{Kind: securitylog.RefreshRefused, Reason: "form"})
		return Tokens{}, ErrToken
	}
	tokens, err := s.refresh(ctx, t)
	switch {
	case err == nil:
		s.cfg.Record(ctx, securitylog.Event{Kind: securitylog.Refreshed, User: t.user, Session: t.session})
	case errors.Is(err, ErrReused):
		s.cfg.Record(ctx, securitylog.Event{Kind: securitylog.RefreshReused, User: t.user, Session: t.session})
	case errors.Is(err, ErrSuspended):
		s.cfg.Record(ctx, securitylog.Event{Kind: securitylog.SignInRefused, User: t.user, Session: t.session,
			Reason: "suspended"})
	case errors.Is(err, ErrToken):
		s.cfg.Record(ctx, securitylog.Event{Kind: securitylog.RefreshRefused, Reason: "unknown"}) // its ids may be made up
	}
	return tokens, err
}

func (s *Service) refresh(ctx context.Context, t token) (Tokens, error) {
	for range races {
		it, err := s.store.Get(ctx, people.SessionKey(t.user, t.session))
		switch {
		case err != nil:
			return Tokens{}, err
		case it == nil:
			return Tokens{}, s.store.Durable(ctx, ErrToken)
		}
		row := people.SessionFrom(store.Row{Key: people.SessionKey(t.user, t.session), Item: it})
		now, hash := s.cfg.Clock(), t.hash()
		created := time.UnixMilli(row.CreatedAt)
		switch used := rotated(row, hash); {
		case !now.Before(expiry(created, time.UnixMilli(row.UsedAt))):
			return Tokens{}, s.endBecause(ctx, t, Expired, ErrToken)
		case hmac.Equal(row.Hash, hash[:]):
			done, err := s.rotate(ctx, row, t, now)
			if done || err != nil {
				if err != nil {
					return Tokens{}, err
				}
				return s.tokens(s.keys.successor(t), created, now)
			}
		case used != nil && now.Sub(time.UnixMilli(used.At)) <= Grace:
			return s.again(ctx, row, t, now)
		case used != nil || t.genuine:
			return Tokens{}, s.endBecause(ctx, t, Reused, ErrReused)
		default:
			return Tokens{}, s.store.Durable(ctx, ErrToken)
		}
	}
	return Tokens{}, store.ErrConflict
}

// rotated finds a token among those that have a successor.
func rotated(row people.Session, hash [people.HashSize]byte) *people.Rotated {
	for i := range row.Rotated {
		if hmac.Equal(row.Rotated[i].Hash[:], hash[:]) {
			return &row.Rotated[i]
		}
	}
	return nil
}

// rotate makes the successor of t the good token. done is false if another caller was faster.
func (s *Service) rotate(ctx context.Context, row people.Session, t token, now time.Time) (done bool, err error) {
	next := row
	next.Rotated = slices.DeleteFunc(slices.Clone(row.Rotated), func(r people.Rotated) bool {
		return now.Sub(time.UnixMilli(r.At)) > Grace
	})
	if len(next.Rotated) >= maxRotations {
		return false, s.store.Durable(ctx, ErrTooFast)
	}
	successor := s.keys.successor(t)
	hash := successor.hash()
	next.Rotated = append(next.Rotated, people.Rotated{Hash: t.hash(), At: now.UnixMilli()})
	next.Hash, next.UsedAt = hash[:], now.UnixMilli()
	next.ExpiresAt = expiry(time.UnixMilli(row.CreatedAt), now).Unix() + 1
	err = s.store.Repeat(ctx, store.Write{Op: store.OpPut, Key: people.SessionKey(t.user, t.session), Item: next.Item(),
		Cond: store.Exists().Eq(people.AttrHash, store.Bytes(row.Hash)), Name: condSession,
		Frees: true, // it replaces a row; without it all sessions on a full disk would end after AccessTime
	}, mayHaveSessions(t.user))
	failed := commit.ConditionError(err)
	switch {
	case failed == nil:
		return err == nil, err
	case Refusal(failed) != nil:
		return false, s.store.Durable(ctx, Refusal(failed))
	}
	return false, nil // a faster request made the same successor, or ended the session
}

// again answers a token that was used just before, with the one that is good: its successor,
// or what other callers have exchanged that for meanwhile. One that is used up would end the
// session as soon as it came.
func (s *Service) again(ctx context.Context, row people.Session, t token, now time.Time) (Tokens, error) {
	next, good := t, false
	for range len(row.Rotated) {
		next = s.keys.successor(next)
		if hash := next.hash(); hmac.Equal(row.Hash, hash[:]) {
			good = true
			break
		}
	}
	if !good {
		return Tokens{}, s.store.Durable(ctx, ErrToken) // made with another key than the present one
	}
	it, err := s.store.Get(ctx, table.UserKey(t.user))
	if err != nil {
		return Tokens{}, err
	}
	if !store.Evaluate(mayHaveSessions(t.user).Cond, it) {
		return Tokens{}, s.store.Durable(ctx, ErrSuspended)
	}
	if err := s.store.Durable(ctx, nil); err != nil {
		return Tokens{}, err
	}
	return s.tokens(next, time.UnixMilli(row.CreatedAt), now)
}

// endBecause ends a session that is refused, and returns why it is.
func (s *Service) endBecause(ctx context.Context, t token, reason string, why error) error {
	if err := s.End(ctx, t.user, t.session, reason); err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	return why
}
