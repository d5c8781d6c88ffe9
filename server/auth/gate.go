package auth

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"strings"
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
	// OnRevoke, if given, is called after a revocation, to end what is open by the tokens that
	// it covers. A request that was admitted just before may still open something: the code
	// that registers it asks Refuses afterwards.
	OnRevoke func(r Revocation)
	// Informed, if given, reports whether this process knows the revocations of the others.
	// While it does not, the gate admits no caller.
	Informed func(now time.Time) bool
	// Services, if given, knows the keys of service accounts: what begins with
	// ServiceKeyPrefix; user is in whose name the account calls, empty for its own. Errors are
	// those of this package, and the store's.
	Services func(ctx context.Context, key, user string) (Principal, error)
}

// ServiceKeyPrefix begins the keys of service accounts, and no access token.
const ServiceKeyPrefix = "parley_sk_"

// serviceMemory is how long a service account's key is taken for what it was when it was read:
// within it every process learns of rights that were changed.
const serviceMemory = 4 * time.Second

// refusedMemory is how long a service account's key is refused that was revoked or has expired,
// without the store being asked, and maxRefused how many such keys are remembered.
const (
	refusedMemory = 2 * time.Second
	maxRefused    = 1 << 10
)

// refusal is why a key was refused, and until when that is remembered.
type refusal struct {
	err   error
	until time.Time
}

// Gate admits requests with a valid token.
type Gate struct {
	cfg Config

	revoked *revoked

	mu      sync.RWMutex
	ring    *ring                           // that the tokens were verified with
	tokens  map[[sha256.Size]byte]Principal // verified; by hash, so that no token is kept
	refused map[[sha256.Size]byte]refusal   // keys of service accounts that are good no more
	users   map[string]struct{}             // who were let in: the row is there, and the account in use
	changes uint64                          // of accounts: what was asked before one may be old
}

// NewGate makes a gate.
func NewGate(cfg Config) (*Gate, error) {
	if cfg.Key == nil || cfg.Clock == nil || cfg.EnsureUser == nil || cfg.Refuse == nil {
		return nil, errors.New("auth: key, clock, users and refusal are required")
	}
	return &Gate{
		cfg:     cfg,
		tokens:  map[[sha256.Size]byte]Principal{},
		refused: map[[sha256.Size]byte]refusal{},
		users:   map[string]struct{}{},
		revoked: newRevoked(),
	}, nil
}

// Wrap puts the gate in front of a handler. It checks headers only: the body of
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
	token, err := Bearer(r.Header)
	if err != nil {
		return Principal{}, err
	}
	var p Principal
	if strings.HasPrefix(token, ServiceKeyPrefix) {
		p, err = g.verifyService(r, token)
	} else {
		p, err = g.Verify(token)
	}
	if err != nil {
		return Principal{}, err
	}
	if p.Kind == KindService && p.UserID != ServiceUserPrefix+p.Service && !p.Scopes.Has(ScopeMakeUsers) {
		return p, nil // the user is there, or the key had been refused
	}
	return p, g.ensureUser(r.Context(), p.UserID)
}

// Verify checks an access token. Errors: ErrInvalidToken, ErrTokenExpired, ErrUninformed.
func (g *Gate) Verify(token string) (Principal, error) {
	if len(token) > maxToken {
		return Principal{}, ErrInvalidToken
	}
	var buf [1 << 10]byte // enough for our own tokens, without memory of their own
	now, hash := g.cfg.Clock(), sha256.Sum256(append(buf[:0], token...))
	keys := g.cfg.Key.ring.Load()
	p, known := g.remembered(hash, keys)
	if !known {
		var err error
		if p, err = g.cfg.Key.verify(token, now); err != nil {
			return Principal{}, err
		}
		if err := g.allowed(p, now); err != nil {
			return Principal{}, err
		}
		g.remember(hash, p, keys)
		return p, nil
	}
	if !now.Before(p.ExpiresAt.Add(leeway)) {
		g.forget(hash)
		return Principal{}, ErrTokenExpired
	}
	return p, g.allowed(p, now)
}

// verifyService checks the key of a service account. A revocation of the account has the key
// read again, which says what is left of its rights; one of the key refuses it.
func (g *Gate) verifyService(r *http.Request, key string) (Principal, error) {
	if g.cfg.Services == nil {
		return Principal{}, ErrInvalidToken
	}
	user, err := userHeader(r.Header)
	if err != nil {
		return Principal{}, err
	}
	now, hash := g.cfg.Clock(), sha256.Sum256([]byte(key+"\x00"+user))
	keys := g.cfg.Key.ring.Load()
	if err := g.refusedBefore(hash, now); err != nil {
		return Principal{}, err
	}
	if p, known := g.remembered(hash, keys); known {
		if now.Sub(p.IssuedAt) < serviceMemory && now.Before(p.ExpiresAt) && g.allowed(p, now) == nil {
			return p, nil
		}
		g.forget(hash)
	}
	p, err := g.cfg.Services(r.Context(), key, user)
	if err != nil {
		g.noteRefused(hash, err, now)
		return Principal{}, err
	}
	if !now.Before(p.ExpiresAt) {
		return Principal{}, ErrTokenExpired
	}
	p.Kind, p.IssuedAt = KindService, now // a later reading is newer
	if err := g.allowed(Principal{SessionID: p.SessionID, IssuedAt: now}, g.cfg.Clock()); err != nil {
		return Principal{}, err
	}
	g.remember(hash, p, keys)
	return p, nil
}

// refusedBefore returns why a key was refused a moment ago, nil if it was not.
func (g *Gate) refusedBefore(hash [sha256.Size]byte, now time.Time) error {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if r, ok := g.refused[hash]; ok && now.Before(r.until) {
		return r.err
	}
	return nil
}

// noteRefused remembers for a moment that a key is good no more, which does not change: other
// refusals, as of a user who may be made next, are not remembered.
func (g *Gate) noteRefused(hash [sha256.Size]byte, err error, now time.Time) {
	if !errors.Is(err, ErrRevoked) && !errors.Is(err, ErrTokenExpired) {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.refused) >= maxRefused {
		clear(g.refused)
	}
	g.refused[hash] = refusal{err, now.Add(refusedMemory)}
}

// allowed refuses callers whose access was revoked, and all callers while that is not
// known. Errors: ErrRevoked, ErrUninformed.
func (g *Gate) allowed(p Principal, now time.Time) error {
	if g.revoked.refuses(p, now) {
		return ErrRevoked
	}
	if g.cfg.Informed != nil && !g.cfg.Informed(now) {
		return ErrUninformed
	}
	return nil
}

// remembered returns whose token has a hash. A token that was verified with other keys may
// be of one that is accepted no more.
func (g *Gate) remembered(hash [sha256.Size]byte, keys *ring) (p Principal, known bool) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if g.ring != keys {
		return Principal{}, false
	}
	p, known = g.tokens[hash]
	return p, known
}

func (g *Gate) remember(hash [sha256.Size]byte, p Principal, keys *ring) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ring != keys {
		clear(g.tokens)
		g.ring = keys
	}
	if len(g.tokens) >= maxRemembered {
		forgetSome(g.tokens)
	}
	g.tokens[hash] = p
}

func (g *Gate) forget(hash [sha256.Size]byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.tokens, hash)
}

// Reason is why a request was refused, as one of few words, for metrics and logs.
func Reason(err error) string {
	for _, r := range []struct {
		is   error
		word string
	}{
		{ErrMissingToken, "missing"}, {ErrTokenExpired, "expired"}, {ErrNotBearer, "not_bearer"},
		{ErrOtherKey, "other_key"}, {ErrRevoked, "revoked"}, {ErrInvalidToken, "invalid"},
		{ErrUninformed, "uninformed"}, {ErrOtherUser, "other_user"},
	} {
		if errors.Is(err, r.is) {
			return r.word
		}
	}
	return "unavailable"
}

// forgetSome makes room; a forgotten token is verified once more.
func forgetSome[K comparable, V any](m map[K]V) {
	n := maxRemembered / 16
	for k := range m {
		delete(m, k)
		if n--; n == 0 {
			return
		}
	}
}

// Forget has EnsureUser asked again about a user, whose account has changed. An answer that is
// on its way is not remembered.
func (g *Gate) Forget(user string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.users, user)
	g.changes++
}

// Revoke makes the tokens of a session invalid from now on, until a time when all
// of them have expired.
func (g *Gate) Revoke(session string, until time.Time) {
	g.Apply(Revocation{Kind: RevokedSession, ID: session, Until: until})
}

// Apply makes a revocation hold in this process, from now on. One of a user has EnsureUser asked
// again: the account may be suspended or deleted, which refuses tokens that are issued later, too.
func (g *Gate) Apply(r Revocation) {
	remembered := r
	remembered.Until = r.Until.Add(leeway)
	g.revoked.add(remembered, g.cfg.Clock())
	if r.Kind == RevokedUser {
		g.Forget(r.ID)
	}
	if g.cfg.OnRevoke != nil {
		g.cfg.OnRevoke(r)
	}
}

// Refuses reports whether a principal's token was revoked, or its key is accepted no more.
func (g *Gate) Refuses(p Principal) bool {
	now := g.cfg.Clock()
	return p.SigningKey != "" && g.cfg.Key.ring.Load().verifier(p.SigningKey, now) == nil || g.revoked.refuses(p, now)
}

// Overflows is how often there were too many revocations to remember, and all tokens that had
// been issued until then were refused in their place.
func (g *Gate) Overflows() int64 { return g.revoked.overflows() }

func (g *Gate) ensureUser(ctx context.Context, user string) error {
	g.mu.RLock()
	_, known := g.users[user]
	changes := g.changes
	g.mu.RUnlock()
	if known {
		return nil
	}
	if err := g.cfg.EnsureUser(ctx, user); err != nil {
		return fmt.Errorf("write user: %w", err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.changes != changes {
		return nil // it is asked again by the next call
	}
	if len(g.users) >= maxRemembered {
		forgetSome(g.users)
	}
	g.users[user] = struct{}{}
	return nil
}
