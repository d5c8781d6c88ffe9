package issuer

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

// How keys are read.
const (
	// fresh is how long keys are used without reading them again: a key that the issuer
	// removed is refused after it.
	fresh = 4 * time.Minute
	// stale is how long they are used where they cannot be read again.
	stale = time.Hour
	// between is the least time between two readings, regardless of the tokens that come.
	between = 30 * time.Second

	readTime    = 5 * time.Second
	maxDocument = 64 << 10 // bytes
	maxKeys     = 64
	minRSA      = 2048 // bits
	maxRSA      = 8192
	discovery   = "/.well-known/openid-configuration"
)

// newClient makes a client that goes to no other address than the one it is given.
func newClient(transport http.RoundTripper) *http.Client {
	return &http.Client{Transport: transport, Timeout: readTime,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// keySet is the keys of an issuer.
type keySet struct {
	issuer string
	client *http.Client
	clock  func() time.Time

	mu      sync.Mutex
	keys    map[string]publicKey
	read    time.Time     // when keys were last read
	tried   time.Time     // when that was last tried
	reading chan struct{} // closed when the reading that is under way has ended; nil: there is none
}

type publicKey struct {
	algorithm string
	key       crypto.PublicKey
}

// find returns the key of a name, for an algorithm. An unknown name has the keys read again,
// at most once in a while. Errors: ErrInvalid, ErrUnavailable.
func (s *keySet) find(ctx context.Context, kid, algorithm string) (crypto.PublicKey, error) {
	if kid == "" {
		return nil, ErrInvalid
	}
	key, known, age := s.cached(kid)
	if !known || age > fresh {
		s.refresh(ctx)
		key, known, age = s.cached(kid)
	}
	switch {
	case age > stale:
		return nil, ErrUnavailable
	case !known || key.algorithm != algorithm:
		return nil, ErrInvalid
	}
	return key.key, nil
}

// cached returns a key, and how old the keys are.
func (s *keySet) cached(kid string) (key publicKey, known bool, age time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key, known = s.keys[kid]
	if s.read.IsZero() {
		return key, false, stale + 1
	}
	return key, known, s.clock().Sub(s.read)
}

// refresh reads the keys, or waits for a reading that is under way, unless one was tried a
// moment ago.
func (s *keySet) refresh(ctx context.Context) {
	s.mu.Lock()
	if under := s.reading; under != nil {
		s.mu.Unlock()
		select {
		case <-under:
		case <-ctx.Done():
		}
		return
	}
	now := s.clock()
	if !s.tried.IsZero() && now.Sub(s.tried) < between {
		s.mu.Unlock()
		return
	}
	done := make(chan struct{})
	s.tried, s.reading = now, done
	s.mu.Unlock()
	// It is for all callers that wait, not only for this one.
	keys, err := s.fetch(context.WithoutCancel(ctx))
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.keys, s.read = keys, now
	}
	s.reading = nil
	close(done)
}

// fetch reads the discovery document, and the keys where it says.
func (s *keySet) fetch(ctx context.Context) (map[string]publicKey, error) {
	var about struct {
		Issuer string `json:"issuer"`
		Keys   string `json:"jwks_uri"`
	}
	if err := s.get(ctx, strings.TrimSuffix(s.issuer, "/")+discovery, &about); err != nil {
		return nil, err
	}
	if about.Issuer != s.issuer {
		return nil, fmt.Errorf("the document is of issuer %.80q", about.Issuer)
	}
	if u, err := url.Parse(about.Keys); err != nil || u.Scheme != "https" || u.Host == "" {
		return nil, errors.New("the keys have no address with https")
	}
	var set struct {
		Keys []jwk `json:"keys"`
	}
	if err := s.get(ctx, about.Keys, &set); err != nil {
		return nil, err
	}
	if len(set.Keys) > maxKeys {
		return nil, fmt.Errorf("%d keys, more than %d", len(set.Keys), maxKeys)
	}
	keys := map[string]publicKey{}
	for _, j := range set.Keys {
		key, ok := j.public()
		if !ok {
			continue // of another kind, or too weak: no token of it is good here
		}
		if _, twice := keys[j.ID]; twice {
			return nil, fmt.Errorf("two keys are called %.80q", j.ID)
		}
		keys[j.ID] = key
	}
	return keys, nil
}

func (s *keySet) get(ctx context.Context, address string, to any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	res, err := s.client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", address, res.Status)
	}
	text, err := io.ReadAll(io.LimitReader(res.Body, maxDocument+1))
	if err != nil {
		return err
	}
	if len(text) > maxDocument {
		return fmt.Errorf("%s: more than %d bytes", address, maxDocument)
	}
	return json.Unmarshal(text, to)
}

// jwk is a key as RFC 7517, 7518 and 8037 write it.
type jwk struct {
	Type      string `json:"kty"`
	Use       string `json:"use"`
	Algorithm string `json:"alg"`
	ID        string `json:"kid"`
	Curve     string `json:"crv"`
	X         string `json:"x"`
	Y         string `json:"y"`
	N         string `json:"n"`
	E         string `json:"e"`
}

// public returns the key, if it is one to verify with, of a kind and strength that are taken.
func (j jwk) public() (key publicKey, ok bool) {
	switch j.Type + " " + j.Curve {
	case "RSA ":
		key.algorithm = "RS256"
		key.key, ok = j.rsa()
	case "EC P-256":
		key.algorithm = "ES256"
		key.key, ok = j.ecdsa()
	case "OKP Ed25519":
		key.algorithm = "EdDSA"
		x, err := base64.RawURLEncoding.DecodeString(j.X)
		key.key, ok = ed25519.PublicKey(x), err == nil && len(x) == ed25519.PublicKeySize
	}
	return key, ok && j.ID != "" && (j.Use == "" || j.Use == "sig") && (j.Algorithm == "" || j.Algorithm == key.algorithm)
}

func (j jwk) rsa() (*rsa.PublicKey, bool) {
	n, err := base64.RawURLEncoding.DecodeString(j.N)
	e, exponent := base64.RawURLEncoding.DecodeString(j.E)
	if err != nil || exponent != nil || len(e) > 4 {
		return nil, false
	}
	modulus, public := new(big.Int).SetBytes(n), new(big.Int).SetBytes(e).Int64()
	bits := modulus.BitLen()
	return &rsa.PublicKey{N: modulus, E: int(public)},
		bits >= minRSA && bits <= maxRSA && modulus.Bit(0) == 1 && public >= 3 && public < 1<<31 && public%2 == 1
}

func (j jwk) ecdsa() (*ecdsa.PublicKey, bool) {
	const size = 32 // bytes of a coordinate
	x, first := base64.RawURLEncoding.DecodeString(j.X)
	y, second := base64.RawURLEncoding.DecodeString(j.Y)
	if first != nil || second != nil || len(x) != size || len(y) != size {
		return nil, false
	}
	key, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), append(append([]byte{4}, x...), y...))
	return key, err == nil // it is on the curve
}
