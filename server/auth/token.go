package auth

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/uuid"
)

// The claims of this server's tokens.
const (
	Issuer   = "parley"
	Audience = "parley"

	tokenType = "at+jwt"
	leeway    = 30 * time.Second
	maxToken  = 8 << 10 // bytes
)

// Errors of verification.
var (
	ErrMissingToken = errors.New("auth: no bearer token")
	ErrInvalidToken = errors.New("auth: invalid token")
	ErrTokenExpired = errors.New("auth: token expired")

	// ErrNotBearer and ErrOtherKey are kinds of ErrInvalidToken that their owner can repair: a
	// header of another form, and a token that names another key than this server's, as one
	// of an older data directory does.
	ErrNotBearer = fmt.Errorf("%w: not a bearer token", ErrInvalidToken)
	ErrOtherKey  = fmt.Errorf("%w: of another key", ErrInvalidToken)

	// ErrRevoked is a kind of ErrInvalidToken, too: of a session that was ended.
	ErrRevoked = fmt.Errorf("%w: of a session that was revoked", ErrInvalidToken)

	// ErrUninformed reports that no caller is admitted, because the revocations are
	// unknown.
	ErrUninformed = errors.New("auth: what was revoked is not known just now")
)

// userID is the form of user ids, the same as in the contracts: names, UUIDs,
// e-mail addresses, subjects of identity providers. '#' separates the parts of keys, '/'
// those of paths.
var userID = regexp.MustCompile(`^[^\p{C}\p{Z}#/]+$`)

// Bytes of what stands in tokens.
const (
	maxUserID  = 64
	maxSession = 64
)

// CheckUserID returns in one line what is wrong with the form of a user id.
func CheckUserID(id string) error {
	if len(id) > maxUserID || !utf8.ValidString(id) || !userID.MatchString(id) || id == "." || id == ".." {
		return fmt.Errorf("user id %.80q must be 1 to 64 bytes of printable characters without white space, '#' and '/'; . and .. are none", id)
	}
	return nil
}

type claims struct {
	jwt.RegisteredClaims
	SessionID string `json:"sid,omitempty"`
	Service   string `json:"svc,omitempty"`  // that asked for the token
	Key       string `json:"svk,omitempty"`  // of the service, with which it asked
	Role      Role   `json:"role,omitempty"` // of an operator

	signer string // that signed the token
}

// MaxTTL is how long a token is good at most. A key that signs no more is accepted for as long.
const MaxTTL = 24 * time.Hour

// TokensEnd is the time after which no process accepts a token that any process has issued until
// now: the issuer's clock may be ahead by leeway, and verification grants leeway once more.
const TokensEnd = MaxTTL + 2*leeway

// MaxServiceTTL is how long a token is good at most that a service account asked for.
const MaxServiceTTL = time.Hour

// ServiceTokensEnd is TokensEnd for tokens that service accounts asked for.
const ServiceTokensEnd = MaxServiceTTL + 2*leeway

// Issue makes a token for a user and a new session.
func (k *Key) Issue(user string, now time.Time, ttl time.Duration) (string, error) {
	return k.IssueFor(user, NewSession(), now, ttl)
}

// NewSession makes the id of a session.
func NewSession() string { return "ses_" + rand.Text() }

// IssueFor makes a token of a user, who has a session with an id of 1 to 64 bytes. It is good
// for MaxTTL at most.
func (k *Key) IssueFor(user, session string, now time.Time, ttl time.Duration) (string, error) {
	return k.issue(claims{SessionID: session}, user, now, ttl)
}

// IssueThrough is IssueFor, asked for by a service account, with the key that the account
// calls with. The token is good for MaxServiceTTL at most.
func (k *Key) IssueThrough(by Principal, user, session string, now time.Time, ttl time.Duration) (string, error) {
	c := claims{SessionID: session, Service: by.Service, Key: by.SessionID}
	return k.issue(c, user, now, min(ttl, MaxServiceTTL))
}

func (k *Key) issue(c claims, user string, now time.Time, ttl time.Duration) (string, error) {
	if err := CheckUserID(user); err != nil {
		return "", err
	}
	if !c.sound() {
		return "", errors.New("auth: a session's id has 1 to 64 bytes, a service account's and its key's at most 64")
	}
	c.Subject, c.Audience = user, jwt.ClaimStrings{Audience}
	return k.sign(c, now, ttl)
}

// sound reports whether the ids in a user's token are of their lengths, and can be said.
func (c claims) sound() bool {
	for _, id := range []string{c.SessionID, c.Service, c.Key} {
		if len(id) > maxSession || !utf8.ValidString(id) {
			return false
		}
	}
	return c.SessionID != ""
}

// sign completes claims and signs them with the key whose turn it is.
func (k *Key) sign(c claims, now time.Time, ttl time.Duration) (string, error) {
	ttl = min(ttl, MaxTTL)
	c.Issuer, c.ID = Issuer, uuid.NewString()
	c.IssuedAt, c.NotBefore = jwt.NewNumericDate(now), jwt.NewNumericDate(now)
	c.ExpiresAt = jwt.NewNumericDate(now.Add(ttl))
	signer := k.ring.Load().signer(now)
	t := jwt.NewWithClaims(jwt.SigningMethodEdDSA, c)
	t.Header["typ"], t.Header["kid"] = tokenType, signer.id
	return t.SignedString(signer.private)
}

// verify checks a user's token: its signature, claims and session.
func (k *Key) verify(token string, now time.Time) (Principal, error) {
	c, err := k.parse(token, Audience, now)
	switch {
	case err != nil:
		return Principal{}, err
	case CheckUserID(c.Subject) != nil || !c.sound():
		return Principal{}, ErrInvalidToken
	}
	return Principal{UserID: c.Subject, SessionID: c.SessionID, ExpiresAt: c.ExpiresAt.Time, IssuedAt: c.IssuedAt.Time,
		Service: c.Service, ServiceKey: c.Key, SigningKey: c.signer}, nil
}

// parse checks the signature and the claims that all tokens have.
func (k *Key) parse(token, audience string, now time.Time) (c claims, err error) {
	if strings.ContainsAny(token, "\r\n") { // which the decoder skips: one token would have many texts
		return c, ErrInvalidToken
	}
	parser := jwt.NewParser(
		jwt.WithValidMethods([]string{jwt.SigningMethodEdDSA.Alg()}), jwt.WithStrictDecoding(),
		jwt.WithIssuer(Issuer), jwt.WithAudience(audience), jwt.WithExpirationRequired(), jwt.WithIssuedAt(),
		jwt.WithLeeway(leeway), jwt.WithTimeFunc(func() time.Time { return now }),
	)
	keys, accepted := k.ring.Load(), time.Time{}
	_, err = parser.ParseWithClaims(token, &c, func(t *jwt.Token) (any, error) {
		// Exact values only: nothing in the header chooses a key or a rule.
		if t.Header["typ"] != tokenType || t.Header["crit"] != nil {
			return nil, ErrInvalidToken
		}
		kid, _ := t.Header["kid"].(string)
		key := keys.verifier(kid, now)
		if key == nil {
			if len(kid) == len(k.id) {
				return nil, ErrOtherKey
			}
			return nil, ErrInvalidToken
		}
		accepted, c.signer = key.until, key.id
		return key.private.Public().(ed25519.PublicKey), nil
	})
	switch {
	case errors.Is(err, jwt.ErrTokenExpired):
		return c, ErrTokenExpired
	case errors.Is(err, ErrOtherKey):
		return c, ErrOtherKey
	case err != nil || c.NotBefore == nil || c.IssuedAt == nil || !numericDates(token):
		return c, ErrInvalidToken
	}
	if !accepted.IsZero() && accepted.Before(c.ExpiresAt.Time) {
		c.ExpiresAt.Time = accepted // no token outlives its key
	}
	return c, nil
}

// numericDates reports whether the times of a token are numbers, as RFC 7519
// demands; the parser takes quoted ones too.
func numericDates(token string) bool {
	_, rest, _ := strings.Cut(token, ".")
	payload, _, _ := strings.Cut(rest, ".")
	b, err := base64.RawURLEncoding.DecodeString(payload)
	var times struct {
		Exp json.RawMessage `json:"exp"`
		Nbf json.RawMessage `json:"nbf"`
		Iat json.RawMessage `json:"iat"`
	}
	if err != nil || json.Unmarshal(b, &times) != nil {
		return false
	}
	for _, t := range []json.RawMessage{times.Exp, times.Nbf, times.Iat} {
		if len(t) == 0 || t[0] == '"' {
			return false
		}
	}
	return true
}
