package auth

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// maxRemembered bounds the tokens and the users that a gate remembers.
const maxRemembered = 1 << 16

// Config sets up a Gate.
type Config struct {
	Key   *Key
	Clock func() time.Time
	// EnsureUser writes the row of a user who is seen for the first time.
	EnsureUser func(ctx context.Context, user string) error
	// Refuse answers a request that the gate stops, with an error that is one of
	// this package's or EnsureUser's.
	Refuse func(w http.ResponseWriter, r *http.Request, err error)
	// Admitted, if given, is called for each request with a valid token.
	Admitted func(ctx context.Context)
	// OnRevoke, if given, is called after a session was revoked, to end what it has
	// open. A request that was admitted just before may still open something: who
	// registers it asks Revoked afterwards.
	OnRevoke func(session string)
}

// Gate admits requests with a valid token.
type Gate struct {
	cfg Config

	mu      sync.RWMutex
	tokens  map[[sha256.Size]byte]Principal // verified; by hash, so that no token is kept
	users   map[string]struct{}             // whose row is there
	revoked map[string]time.Time            // sessions, until all their tokens have expired
}

// NewGate makes a gate.
func NewGate(cfg Config) (*Gate, error) {
	if cfg.Key == nil || cfg.Clock == nil || cfg.EnsureUser == nil || cfg.Refuse == nil {
		return nil, errors.New("auth: key, clock, users and refusal are required")
	}
	return &Gate{
		cfg:     cfg,
		tokens:  map[[sha256.Size]byte]Principal{},
		users:   map[string]struct{}{},
		revoked: map[string]time.Time{},
	}, nil
}

type principalKey struct{}

// PrincipalFrom returns who is calling; ok is false outside of a gate.
func PrincipalFrom(ctx context.Context) (p Principal, ok bool) {
	p, ok = ctx.Value(principalKey{}).(Principal)
	return p, ok
}

// WithPrincipal returns a context in which a principal is calling.
func WithPrincipal(ctx context.Context, p Principal) context.Context {
	return context.WithValue(ctx, principalKey{}, p)
}

// Wrap puts the gate in front of a handler. It looks at headers only: the body of
// a request without a valid token is never read.
func (g *Gate) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, err := g.admit(r)
		if err != nil {
			g.cfg.Refuse(w, r, err)
			return
		}
		if g.cfg.Admitted != nil {
			g.cfg.Admitted(r.Context())
		}
		next.ServeHTTP(w, r.WithContext(WithPrincipal(r.Context(), p)))
	})
}

func (g *Gate) admit(r *http.Request) (Principal, error) {
	token, err := bearer(r.Header)
	if err != nil {
		return Principal{}, err
	}
	p, err := g.Verify(token)
	if err != nil {
		return Principal{}, err
	}
	return p, g.ensureUser(r.Context(), p.UserID)
}

// Verify checks a token. Errors: ErrInvalidToken, ErrTokenExpired.
func (g *Gate) Verify(token string) (Principal, error) {
	if len(token) > maxToken {
		return Principal{}, ErrInvalidToken
	}
	now, hash := g.cfg.Clock(), sha256.Sum256([]byte(token))
	g.mu.RLock()
	p, known := g.tokens[hash]
	g.mu.RUnlock()
	if !known {
		var err error
		if p, err = g.cfg.Key.verify(token, now); err != nil {
			return Principal{}, err
		}
		return p, g.remember(hash, p, now)
	}
	if !now.Before(p.ExpiresAt.Add(leeway)) {
		g.mu.Lock()
		delete(g.tokens, hash)
		g.mu.Unlock()
		return Principal{}, ErrTokenExpired
	}
	return p, nil
}

func (g *Gate) remember(hash [sha256.Size]byte, p Principal, now time.Time) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if until, ok := g.revoked[p.SessionID]; ok && now.Before(until) {
		return ErrRevoked
	}
	if len(g.tokens) >= maxRemembered {
		forgetSome(g.tokens)
	}
	g.tokens[hash] = p
	return nil
}

// Reason is why a request was refused, as one of few words, for metrics and logs.
func Reason(err error) string {
	for _, r := range []struct {
		is   error
		word string
	}{
		{ErrMissingToken, "missing"}, {ErrTokenExpired, "expired"}, {ErrNotBearer, "not_bearer"},
		{ErrOtherKey, "other_key"}, {ErrRevoked, "revoked"}, {ErrInvalidToken, "invalid"},
	} {
		if errors.Is(err, r.is) {
			return r.word
		}
	}
	return "unavailable"
}

// forgetSome makes room; what is forgotten is verified once more.
func forgetSome[K comparable, V any](m map[K]V) {
	n := maxRemembered / 16
	for k := range m {
		delete(m, k)
		if n--; n == 0 {
			return
		}
	}
}

// Revoke makes the tokens of a session invalid from now on, until a time when all
// of them have expired.
func (g *Gate) Revoke(session string, until time.Time) {
	g.revoke(session, until.Add(leeway))
	if g.cfg.OnRevoke != nil {
		g.cfg.OnRevoke(session)
	}
}

func (g *Gate) revoke(session string, until time.Time) {
	now := g.cfg.Clock()
	g.mu.Lock()
	defer g.mu.Unlock()
	for s, t := range g.revoked {
		if !now.Before(t) {
			delete(g.revoked, s)
		}
	}
	if until.After(g.revoked[session]) {
		g.revoked[session] = until
	}
	for hash, p := range g.tokens {
		if p.SessionID == session {
			delete(g.tokens, hash)
		}
	}
}

// Revoked reports whether a session was revoked.
func (g *Gate) Revoked(session string) bool {
	now := g.cfg.Clock()
	g.mu.RLock()
	defer g.mu.RUnlock()
	until, ok := g.revoked[session]
	return ok && now.Before(until)
}

func (g *Gate) ensureUser(ctx context.Context, user string) error {
	g.mu.RLock()
	_, known := g.users[user]
	g.mu.RUnlock()
	if known {
		return nil
	}
	if err := g.cfg.EnsureUser(ctx, user); err != nil {
		return fmt.Errorf("write user: %w", err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.users) >= maxRemembered {
		forgetSome(g.users)
	}
	g.users[user] = struct{}{}
	return nil
}
