package auth

import (
	"sync"
	"time"
)

// RevokedKind says what is revoked.
type RevokedKind uint8

// The kinds of revocations. A key of a service account is a session; with it go the tokens
// that were asked for with the key.
const (
	RevokedSession RevokedKind = iota + 1
	RevokedUser
	RevokedService
)

// Revocation makes tokens invalid.
type Revocation struct {
	Kind RevokedKind
	ID   string
	// Before bounds the tokens by when they were issued; zero: all. Tokens say it to the second,
	// so one of the same second counts as issued before.
	Before time.Time
	Until  time.Time // when the tokens have expired anyway
}

// Covers reports whether a principal's token is one of those.
func (r Revocation) Covers(p Principal) bool {
	var id string
	switch r.Kind {
	case RevokedSession:
		if id = p.SessionID; id != r.ID {
			id = p.ServiceKey
		}
	case RevokedUser:
		id = p.UserID
	case RevokedService:
		id = p.Service
	}
	return id != "" && id == r.ID && (r.Before.IsZero() || p.IssuedAt.Before(r.Before))
}

// maxRevoked bounds the revocations that a gate remembers.
const maxRevoked = 1 << 18

type subject struct {
	kind RevokedKind
	id   string
}

// span is which tokens of a subject are refused, and how long that matters.
type span struct {
	before time.Time // zero: all
	until  time.Time
}

// revoked is the revocations that are known in this process.
type revoked struct {
	mu    sync.RWMutex
	of    map[subject]span
	floor time.Time // tokens issued before are refused, for all users: see add
	sweep int       // size at which what is over is looked for
	full  int64     // how often there were too many
}

func newRevoked() *revoked { return &revoked{of: map[subject]span{}, sweep: 64} }

// add takes a revocation over. Of two of one subject both hold.
//
// Where there are too many to remember all are forgotten, and all tokens issued until now
// are refused in their place: people get other tokens for their sessions, if these have not
// ended.
func (r *revoked) add(v Revocation, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := subject{v.Kind, v.ID}
	s, ok := r.of[key]
	if v.Until.After(s.until) {
		s.until = v.Until
	}
	if !ok || (!s.before.IsZero() && (v.Before.IsZero() || v.Before.After(s.before))) {
		s.before = v.Before
	}
	r.of[key] = s
	if len(r.of) < r.sweep {
		return
	}
	for key, s := range r.of {
		if !now.Before(s.until) {
			delete(r.of, key)
		}
	}
	if len(r.of) >= maxRevoked {
		clear(r.of)
		r.floor = now
		r.full++
	}
	r.sweep = max(64, 2*len(r.of))
}

// refuses reports whether the token of a principal was revoked.
func (r *revoked) refuses(p Principal, now time.Time) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if !r.floor.IsZero() && p.IssuedAt.Before(r.floor) {
		return true
	}
	if len(r.of) == 0 {
		return false
	}
	return r.holds(RevokedSession, p.SessionID, p, now) || r.holds(RevokedUser, p.UserID, p, now) ||
		r.holds(RevokedService, p.Service, p, now) || r.holds(RevokedSession, p.ServiceKey, p, now)
}

// overflows is how often there were too many to remember.
func (r *revoked) overflows() int64 {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.full
}

// holds is refuses for one subject. Callers hold mu.
func (r *revoked) holds(kind RevokedKind, id string, p Principal, now time.Time) bool {
	if id == "" {
		return false
	}
	s, ok := r.of[subject{kind, id}]
	return ok && now.Before(s.until) && (s.before.IsZero() || p.IssuedAt.Before(s.before))
}
