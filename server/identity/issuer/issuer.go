// Package issuer trusts OpenID Connect issuers: it verifies their tokens and says whose they
// are here.
//
// An installation names its issuers; for each it reads the discovery document and the keys
// that it leads to (keys.go). The claims of a token choose among the named issuers, by the
// exact text, and nothing else: neither a key, nor an address, nor an algorithm that was not
// named for the issuer.
//
// # Users
//
// A subject is a user of its own: its id is the issuer's beginning of ids and the subject. No
// beginning is the beginning of another, so that subjects of two issuers are never one user. A
// subject that can be no user's id, or looks like what takes its place, is replaced by a hash.
//
// The package owns the verification and the mapping. Other packages decide what a user gets
// for a token.
//
// Concurrency: Issuers is safe for use by many goroutines.
package issuer

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/parley-chat/parley/server/auth"
)

// Limits.
const (
	leeway     = 30 * time.Second
	maxToken   = 8 << 10 // bytes
	maxIssuers = 16
	maxSubject = 255 // bytes, as OpenID Connect has it
	maxBegins  = 32

	// maxAge is how old a token may be: a user who signed in there just now has one that is
	// younger.
	maxAge = 10 * time.Minute
)

// Errors of verification.
var (
	// ErrInvalid says that a token is not one that is good here.
	ErrInvalid = errors.New("issuer: the token is not valid")
	// ErrUnavailable says that the issuer's keys cannot be had just now.
	ErrUnavailable = errors.New("issuer: the issuer's keys cannot be read")
)

// Trust is an issuer that is trusted.
type Trust struct {
	URL       string   // its tokens' iss, exactly; https
	Audiences []string // the audiences of its tokens: the names by which the issuer knows this installation
	// Users is how the ids of its users begin; "*" for as the subjects are, where there is no
	// other issuer.
	Users      string
	Algorithms []string // of RS256, ES256 and EdDSA
}

// algorithms are those that there are.
var algorithms = []string{"EdDSA", "ES256", "RS256"}

// Parse reads a list of issuers: with semicolons between them, each a URL, then, with commas
// between them, aud=AUDIENCE (one or more), users=BEGINNING and alg=ALGORITHM (none: all three).
func Parse(text string) ([]Trust, error) {
	var list []Trust
	for part := range strings.SplitSeq(text, ";") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		address, options, _ := strings.Cut(part, ",")
		t := Trust{URL: strings.TrimSpace(address)}
		for option := range strings.SplitSeq(options, ",") {
			name, value, _ := strings.Cut(strings.TrimSpace(option), "=")
			switch {
			case name == "" && value == "":
			case name == "aud" && value != "":
				t.Audiences = append(t.Audiences, value)
			case name == "users" && value != "" && t.Users == "":
				t.Users = value
			case name == "alg" && value != "":
				t.Algorithms = append(t.Algorithms, value)
			default:
				return nil, fmt.Errorf("issuer %.80q: %.40q is not aud=, users= or alg=, or comes twice", t.URL, option)
			}
		}
		if len(t.Algorithms) == 0 {
			t.Algorithms = algorithms
		}
		list = append(list, t)
	}
	return list, check(list)
}

func check(list []Trust) error {
	if len(list) > maxIssuers {
		return fmt.Errorf("%d issuers, more than %d", len(list), maxIssuers)
	}
	for i, t := range list {
		u, err := url.Parse(t.URL)
		switch {
		case err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
			return fmt.Errorf("issuer %.80q: must be a URL with https and without a query", t.URL)
		case len(t.Audiences) == 0:
			return fmt.Errorf("issuer %.80q: needs aud=, as the issuer calls this installation", t.URL)
		case t.Users == "*" && len(list) > 1:
			return fmt.Errorf("issuer %.80q: users=* is for one issuer alone", t.URL)
		case t.Users != "*" && (auth.CheckUserID(t.Users+"x") != nil || t.Users == "" || len(t.Users) > maxBegins ||
			overlap(t.Users, auth.ServiceUserPrefix) || overlap(t.Users, auth.PersonPrefix)):
			return fmt.Errorf("issuer %.80q: needs users=, how the ids of its users begin and no others do, 1 to %d bytes such as acme. (or * for as its subjects are)",
				t.URL, maxBegins)
		}
		for _, a := range t.Algorithms {
			if !slices.Contains(algorithms, a) {
				return fmt.Errorf("issuer %.80q: alg=%.20s is not one of %v", t.URL, a, algorithms)
			}
		}
		for _, other := range list[:i] {
			if other.URL == t.URL || overlap(t.Users, other.Users) {
				return fmt.Errorf("issuer %.80q: its URL, or how its users begin, is another issuer's, too", t.URL)
			}
		}
	}
	return nil
}

// overlap reports whether an id can begin with both.
func overlap(a, b string) bool { return strings.HasPrefix(a, b) || strings.HasPrefix(b, a) }

// Issuers are those that are trusted.
type Issuers struct {
	clock func() time.Time
	of    map[string]*trusted
}

type trusted struct {
	Trust
	keys *keySet
}

// New makes Issuers. transport may be nil; redirects are never followed.
func New(list []Trust, clock func() time.Time, transport http.RoundTripper) (*Issuers, error) {
	if err := check(list); err != nil {
		return nil, err
	}
	i := &Issuers{clock: clock, of: map[string]*trusted{}}
	client := newClient(transport)
	for _, t := range list {
		i.of[t.URL] = &trusted{t, &keySet{issuer: t.URL, client: client, clock: clock}}
	}
	return i, nil
}

// claims are those that count.
type claims struct {
	jwt.RegisteredClaims
	// AuthorizedParty is to whom the token was issued, where it is for several.
	AuthorizedParty string `json:"azp"`
	// Events are present in tokens that report an event, for example a sign-out.
	Events json.RawMessage `json:"events"`
}

// Proof is what a token proves. It is valid once: the caller that accepts it stores its hash
// until it is too old.
type Proof struct {
	User  string
	Hash  [sha256.Size]byte // of what was signed: a signature may have more than one form
	Until time.Time
}

// Exchange returns the user whom a token of a trusted issuer stands for. A token is good in the
// minutes after it was issued. Errors: ErrInvalid, ErrUnavailable.
func (i *Issuers) Exchange(ctx context.Context, token string) (Proof, error) {
	if len(token) > maxToken {
		return Proof{}, ErrInvalid
	}
	parser := jwt.NewParser(jwt.WithValidMethods(algorithms), jwt.WithStrictDecoding(), jwt.WithExpirationRequired(),
		jwt.WithIssuedAt(), jwt.WithLeeway(leeway), jwt.WithTimeFunc(i.clock))
	var c claims
	var from *trusted
	_, err := parser.ParseWithClaims(token, &c, func(t *jwt.Token) (any, error) {
		// The claims are decoded, and not verified yet: they only choose among the issuers.
		if from = i.of[c.Issuer]; from == nil || !slices.Contains(from.Algorithms, t.Method.Alg()) ||
			t.Header["crit"] != nil || !typed(t.Header) {
			return nil, ErrInvalid
		}
		kid, _ := t.Header["kid"].(string)
		return from.keys.find(ctx, kid, t.Method.Alg())
	})
	switch {
	case errors.Is(err, ErrUnavailable):
		return Proof{}, ErrUnavailable
	case err != nil || c.IssuedAt == nil || !from.meant(c) || len(c.Events) > 0:
		return Proof{}, ErrInvalid
	}
	end := c.IssuedAt.Add(maxAge + leeway)
	if !i.clock().Before(end) {
		return Proof{}, ErrInvalid
	}
	user, err := from.user(c.Subject)
	if err != nil {
		return Proof{}, err
	}
	signed := token[:strings.LastIndexByte(token, '.')]
	return Proof{User: user, Hash: sha256.Sum256([]byte(signed)), Until: end}, nil
}

// typed reports whether a token's type is that of a token that identifies a user, or
// missing. Tokens of other types, such as those for signing out or for proving the
// possession of a key, are not accepted.
func typed(header map[string]any) bool {
	typ, said := header["typ"]
	text, _ := typ.(string)
	return !said || strings.EqualFold(text, "JWT") || strings.EqualFold(text, "at+jwt")
}

// meant reports whether a token is for this installation.
func (t *trusted) meant(c claims) bool {
	ours := func(audience string) bool { return slices.Contains(t.Audiences, audience) }
	if !slices.ContainsFunc(c.Audience, ours) {
		return false
	}
	return len(c.Audience) == 1 || c.AuthorizedParty == "" || ours(c.AuthorizedParty)
}

// hashed begins what takes the place of a subject.
const hashed = "h-"

// user is the id of the user whom a subject is.
func (t *trusted) user(subject string) (string, error) {
	if subject == "" || len(subject) > maxSubject {
		return "", ErrInvalid
	}
	begins := t.Users
	if begins == "*" {
		begins = ""
	}
	user := begins + subject
	if auth.CheckUserID(user) != nil || strings.HasPrefix(subject, hashed) ||
		strings.HasPrefix(user, auth.ServiceUserPrefix) || strings.HasPrefix(user, auth.PersonPrefix) {
		sum := sha256.Sum256([]byte(subject))
		user = begins + hashed + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:16]))
	}
	return user, nil
}
