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

// What tokens of this server say.
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

	// ErrNotBearer and ErrOtherKey are kinds of ErrInvalidToken that their owner can mend: a
	// header of another form, and a token that names another key than this server's, as one
	// of an older data directory does.
	ErrNotBearer = fmt.Errorf("%w: not a bearer token", ErrInvalidToken)
	ErrOtherKey  = fmt.Errorf("%w: of another key", ErrInvalidToken)

	// ErrRevoked is a kind of ErrInvalidToken, too: of a session that was ended.
	ErrRevoked = fmt.Errorf("%w: of a session that was revoked", ErrInvalidToken)
)

// userID is the form of user ids, the same as in the contracts: names, UUIDs,
// e-mail addresses, subjects of identity providers. '#' separates the parts of keys, '/'
// those of paths.
var userID = regexp.MustCompile(`^[^\p{C}\p{Z}#/]+$`)

const maxUserID = 64 // bytes

// CheckUserID returns in one line what is wrong with the form of a user id.
func CheckUserID(id string) error {
	if len(id) > maxUserID || !utf8.ValidString(id) || !userID.MatchString(id) || id == "." || id == ".." {
		return fmt.Errorf("user id %.80q must be 1 to 64 bytes of printable characters without white space, '#' and '/'; . and .. are none", id)
	}
	return nil
}

// Principal is who is calling.
type Principal struct {
	UserID    string
	SessionID string
	ExpiresAt time.Time
}

type claims struct {
	jwt.RegisteredClaims
	SessionID string `json:"sid,omitempty"`
}

// Issue makes a token for a user and a new session.
func (k *Key) Issue(user string, now time.Time, ttl time.Duration) (string, error) {
	if err := CheckUserID(user); err != nil {
		return "", err
	}
	return k.sign(user, Audience, "ses_"+rand.Text(), now, ttl)
}

func (k *Key) sign(subject, audience, session string, now time.Time, ttl time.Duration) (string, error) {
	t := jwt.NewWithClaims(jwt.SigningMethodEdDSA, claims{
		RegisteredClaims: jwt.RegisteredClaims{
			Issuer: Issuer, Audience: jwt.ClaimStrings{audience}, Subject: subject, ID: uuid.NewString(),
			IssuedAt: jwt.NewNumericDate(now), NotBefore: jwt.NewNumericDate(now), ExpiresAt: jwt.NewNumericDate(now.Add(ttl)),
		},
		SessionID: session,
	})
	t.Header["typ"], t.Header["kid"] = tokenType, k.id
	return t.SignedString(k.private)
}

// verify checks a user's token: its signature, claims and session.
func (k *Key) verify(token string, now time.Time) (Principal, error) {
	c, err := k.parse(token, Audience, now)
	switch {
	case err != nil:
		return Principal{}, err
	case CheckUserID(c.Subject) != nil || c.SessionID == "" || len(c.SessionID) > 64:
		return Principal{}, ErrInvalidToken
	}
	return Principal{UserID: c.Subject, SessionID: c.SessionID, ExpiresAt: c.ExpiresAt.Time}, nil
}

// parse checks the signature and the claims that all tokens have.
func (k *Key) parse(token, audience string, now time.Time) (c claims, err error) {
	parser := jwt.NewParser(
		jwt.WithValidMethods([]string{jwt.SigningMethodEdDSA.Alg()}), jwt.WithStrictDecoding(),
		jwt.WithIssuer(Issuer), jwt.WithAudience(audience), jwt.WithExpirationRequired(), jwt.WithIssuedAt(),
		jwt.WithLeeway(leeway), jwt.WithTimeFunc(func() time.Time { return now }),
	)
	_, err = parser.ParseWithClaims(token, &c, func(t *jwt.Token) (any, error) {
		// Exact values only: nothing in the header chooses a key or a rule.
		if t.Header["typ"] != tokenType || t.Header["crit"] != nil {
			return nil, ErrInvalidToken
		}
		if kid, _ := t.Header["kid"].(string); kid != k.id {
			if len(kid) == len(k.id) {
				return nil, ErrOtherKey
			}
			return nil, ErrInvalidToken
		}
		return k.private.Public().(ed25519.PublicKey), nil
	})
	switch {
	case errors.Is(err, jwt.ErrTokenExpired):
		return c, ErrTokenExpired
	case errors.Is(err, ErrOtherKey):
		return c, ErrOtherKey
	case err != nil || c.NotBefore == nil || c.IssuedAt == nil || !numericDates(token):
		return c, ErrInvalidToken
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
