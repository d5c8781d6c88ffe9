package issuer

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

var start = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// provider is an OpenID Connect issuer.
type provider struct {
	*httptest.Server
	mu      sync.Mutex
	now     time.Time
	keys    []map[string]string
	reads   atomic.Int64 // of the keys
	answer  func(w http.ResponseWriter, r *http.Request) bool
	issuers *Issuers
}

func newProvider(t *testing.T, algorithms ...string) *provider {
	t.Helper()
	p := &provider{now: start}
	p.Server = httptest.NewTLSServer(http.HandlerFunc(p.serve))
	t.Cleanup(p.Close)
	if len(algorithms) == 0 {
		algorithms = []string{"RS256", "ES256", "EdDSA"}
	}
	var err error
	p.issuers, err = New([]Trust{{URL: p.URL, Audiences: []string{"parley"}, Users: "acme.", Algorithms: algorithms}},
		p.clock, p.Client().Transport)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *provider) clock() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now
}

func (p *provider) sleep(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now = p.now.Add(d)
}

func (p *provider) serve(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	keys, answer := slices.Clone(p.keys), p.answer
	p.mu.Unlock()
	if answer != nil && answer(w, r) {
		return
	}
	switch r.URL.Path {
	case "/.well-known/openid-configuration":
		_ = json.NewEncoder(w).Encode(map[string]string{"issuer": p.URL, "jwks_uri": p.URL + "/keys"})
	case "/keys":
		p.reads.Add(1)
		_ = json.NewEncoder(w).Encode(map[string]any{"keys": keys})
	default:
		http.NotFound(w, r)
	}
}

// publish replaces the keys that the issuer shows.
func (p *provider) publish(keys ...map[string]string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keys = keys
}

func (p *provider) answers(f func(w http.ResponseWriter, r *http.Request) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answer = f
}

// signer is a key of an issuer.
type signer struct {
	method  jwt.SigningMethod
	private crypto.Signer
	public  map[string]string
}

func b64(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

func newSigner(t testing.TB, algorithm, kid string) signer {
	t.Helper()
	s := signer{public: map[string]string{"kid": kid, "use": "sig", "alg": algorithm}}
	switch algorithm {
	case "RS256":
		key, err := rsa.GenerateKey(rand.Reader, 2048)
		if err != nil {
			t.Fatal(err)
		}
		s.method, s.private = jwt.SigningMethodRS256, key
		s.public["kty"], s.public["n"] = "RSA", b64(key.N.Bytes())
		s.public["e"] = b64(big.NewInt(int64(key.E)).Bytes())
	case "ES256":
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		point, err := key.PublicKey.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		s.method, s.private = jwt.SigningMethodES256, key
		s.public["kty"], s.public["crv"], s.public["x"], s.public["y"] = "EC", "P-256", b64(point[1:33]), b64(point[33:])
	default:
		public, key, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		s.method, s.private = jwt.SigningMethodEdDSA, key
		s.public["kty"], s.public["crv"], s.public["x"] = "OKP", "Ed25519", b64(public)
	}
	return s
}

// token signs claims that are good, but for what is changed.
func (p *provider) token(t testing.TB, s signer, change func(header map[string]any, c jwt.MapClaims)) string {
	t.Helper()
	now := p.clock()
	c := jwt.MapClaims{"iss": p.URL, "aud": "parley", "sub": "ann", "iat": now.Unix(), "exp": now.Add(time.Hour).Unix(),
		"jti": rand.Text()}
	tok := jwt.NewWithClaims(s.method, c)
	tok.Header["kid"] = s.public["kid"]
	if change != nil {
		change(tok.Header, c)
	}
	text, err := tok.SignedString(s.private)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func (p *provider) exchange(t testing.TB, token string) (string, error) {
	t.Helper()
	proof, err := p.issuers.Exchange(t.Context(), token)
	return proof.User, err
}

// Tokens of three algorithms are taken as they are, and in none of some forty other forms.
func TestTokensOfAnIssuer(t *testing.T) { // S-01, S-02, S-03, S-05
	for _, algorithm := range []string{"RS256", "ES256", "EdDSA"} {
		t.Run(algorithm, func(t *testing.T) {
			p := newProvider(t)
			s, other := newSigner(t, algorithm, "one"), newSigner(t, algorithm, "one")
			p.publish(s.public)
			good := p.token(t, s, nil)
			if user, err := p.exchange(t, good); err != nil || user != "acme.ann" {
				t.Fatal(user, err)
			}
			with := func(change func(h map[string]any, c jwt.MapClaims)) string { return p.token(t, s, change) }
			claim := func(name string, v any) string {
				return with(func(_ map[string]any, c jwt.MapClaims) {
					if c[name] = v; v == nil {
						delete(c, name)
					}
				})
			}
			header := func(name string, v any) string {
				return with(func(h map[string]any, _ jwt.MapClaims) {
					if h[name] = v; v == nil {
						delete(h, name)
					}
				})
			}
			parts := strings.Split(good, ".")
			bad := map[string]string{
				"another key": p.token(t, other, nil), "empty": "", "dots": strings.Repeat(".", 8000),
				"long":           strings.Repeat("a", 1<<20),
				"no signature":   parts[0] + "." + parts[1] + ".",
				"zero signature": parts[0] + "." + parts[1] + "." + b64(make([]byte, 64)),
				"other claims":   parts[0] + "." + b64([]byte(`{"sub":"root"}`)) + "." + parts[2], "two parts": parts[0] + "." + parts[1],
				"spaces": good + " ", "no kid": header("kid", nil), "kid of a path": header("kid", "../one"),
				"kid a number": header("kid", 1),
				"unknown kid":  header("kid", "two"), "crit": header("crit", []string{"exp"}),
				"no issuer": claim("iss", nil), "another issuer": claim("iss", "https://evil.example"),
				"issuer with a slash": claim("iss", p.URL+"/"),
				"issuer a list":       claim("iss", []string{p.URL}), "no audience": claim("aud", nil),
				"another audience":    claim("aud", "evil"),
				"audiences of others": claim("aud", []string{"evil", "worse"}), "no subject": claim("sub", nil),
				"empty subject": claim("sub", ""),
				"long subject":  claim("sub", strings.Repeat("x", 256)), "no expiry": claim("exp", nil),
				"expired":       claim("exp", start.Add(-31*time.Second).Unix()),
				"expiry a text": claim("exp", "soon"), "no iat": claim("iat", nil),
				"issued in the future": claim("iat", start.Add(31*time.Second).Unix()),
				"issued long ago":      claim("iat", start.Add(-10*time.Minute-30*time.Second).Unix()),
				"for signing out":      header("typ", "logout+jwt"), "of no type": header("typ", ""),
				"a type that is a number": header("typ", 1), "proof of a key": header("typ", "dpop+jwt"),
				"that somebody signed out": claim("events",
					map[string]any{"http://schemas.openid.net/event/backchannel-logout": map[string]any{}}),
				"not yet": claim("nbf", start.Add(31*time.Second).Unix()),
				"issued to another": with(func(_ map[string]any, c jwt.MapClaims) {
					c["aud"], c["azp"] = []string{"parley", "evil"}, "evil"
				}),
			}
			none := jwt.NewWithClaims(jwt.SigningMethodNone, jwt.MapClaims{"iss": p.URL, "aud": "parley", "sub": "ann",
				"iat": start.Unix(), "exp": start.Add(time.Hour).Unix()})
			none.Header["kid"] = "one"
			bad["alg none"], _ = none.SignedString(jwt.UnsafeAllowNoneSignatureType)
			for _, secret := range []string{s.public["x"], s.public["n"], "one", ""} {
				hs := jwt.NewWithClaims(jwt.SigningMethodHS256, none.Claims)
				hs.Header["kid"] = "one"
				bad["HS256 with "+secret], _ = hs.SignedString([]byte(secret))
			}
			for _, with := range []string{"jku", "x5u", "jwk", "x5c"} { // another key, which the header brings
				bad["key in "+with] = p.token(t, other, func(h map[string]any, _ jwt.MapClaims) { h[with] = other.public })
			}
			for _, wrong := range []string{"RS256", "ES256", "EdDSA"} { // the name of the key, and another algorithm
				if wrong != algorithm {
					bad["alg "+wrong] = p.token(t, newSigner(t, wrong, "one"), nil)
				}
			}
			if len(bad) < 40 {
				t.Errorf("%d tokens", len(bad))
			}
			for name, token := range bad {
				if user, err := p.exchange(t, token); !errors.Is(err, ErrInvalid) || user != "" {
					t.Errorf("%s: %q, %v", name, user, err)
				}
			}
			for name, token := range map[string]string{
				"for several": claim("aud", []string{"evil", "parley"}), "type": header("typ", "at+jwt"),
				"no type": header("typ", nil), "type in small letters": header("typ", "jwt"),
				"ten minutes old": claim("iat", start.Add(-10*time.Minute).Unix()),
				"just expired":    claim("exp", start.Add(-29*time.Second).Unix()),
				"key of its own":  header("jwk", other.public),
				"issued to us": with(func(_ map[string]any, c jwt.MapClaims) {
					c["aud"], c["azp"] = []string{"x", "parley"}, "parley"
				}),
				"a little early":  claim("iat", start.Add(29*time.Second).Unix()),
				"unknown address": header("jku", "http://127.0.0.1:1/"),
			} {
				if user, err := p.exchange(t, token); err != nil || user != "acme.ann" {
					t.Errorf("%s: %q, %v", name, user, err)
				}
			}
		})
	}
}

// Only algorithms that are named for the issuer are taken.
func TestNamedAlgorithms(t *testing.T) { // S-01
	p := newProvider(t, "ES256")
	es, ed := newSigner(t, "ES256", "es"), newSigner(t, "EdDSA", "ed")
	p.publish(es.public, ed.public)
	if _, err := p.exchange(t, p.token(t, ed, nil)); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	if _, err := p.exchange(t, p.token(t, es, nil)); err != nil {
		t.Error(err)
	}
}

// An issuer's keys are replaced with an overlap: nobody is refused. A key that it removed is
// refused within five minutes. Unknown names have the keys read twice a minute at most.
func TestSec_S_06_RotationOfAnIssuer(t *testing.T) { // S-06
	p := newProvider(t)
	one, two := newSigner(t, "EdDSA", "one"), newSigner(t, "EdDSA", "two")
	p.publish(one.public)
	refused := 0
	try := func(s signer) {
		if _, err := p.exchange(t, p.token(t, s, nil)); err != nil {
			refused++
		}
	}
	try(one)
	for minute := range 30 {
		if minute == 10 {
			p.publish(one.public, two.public)
		}
		if try(one); minute >= 10 {
			try(two)
		}
		p.sleep(time.Minute)
	}
	if refused != 0 {
		t.Errorf("%d tokens were refused while keys changed", refused)
	}
	if n := p.reads.Load(); n > 10 {
		t.Errorf("keys were read %d times in half an hour", n)
	}
	p.publish(two.public)
	p.sleep(5 * time.Minute)
	if _, err := p.exchange(t, p.token(t, one, nil)); !errors.Is(err, ErrInvalid) {
		t.Errorf("a removed key: %v", err)
	}
	before := p.reads.Load()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := range 50 {
				token := p.token(t, one, func(h map[string]any, _ jwt.MapClaims) { h["kid"] = fmt.Sprint(i, n) })
				if _, err := p.exchange(t, token); !errors.Is(err, ErrInvalid) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := p.reads.Load() - before; n > 1 {
		t.Errorf("unknown names had the keys read %d times within 30 s", n)
	}
	p.sleep(30 * time.Second)
	try(one)
	if n := p.reads.Load() - before; n > 2 {
		t.Errorf("%d readings", n)
	}
}

// While an issuer is away its keys are used as they were, for an hour.
func TestSec_S_06_IssuerAway(t *testing.T) { // S-06
	p := newProvider(t)
	s := newSigner(t, "EdDSA", "one")
	p.publish(s.public)
	p.answers(func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusBadGateway)
		return true
	})
	if _, err := p.exchange(t, p.token(t, s, nil)); !errors.Is(err, ErrUnavailable) {
		t.Fatalf("keys that were never read: %v", err)
	}
	p.answers(nil)
	p.sleep(time.Minute)
	if _, err := p.exchange(t, p.token(t, s, nil)); err != nil {
		t.Fatal(err)
	}
	p.answers(func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusBadGateway)
		return true
	})
	for range 12 {
		p.sleep(5 * time.Minute)
		if _, err := p.exchange(t, p.token(t, s, nil)); err != nil {
			t.Fatal(err)
		}
	}
	p.sleep(time.Minute)
	if _, err := p.exchange(t, p.token(t, s, nil)); !errors.Is(err, ErrUnavailable) {
		t.Fatalf("after an hour: %v", err)
	}
	p.answers(nil)
	p.sleep(time.Minute)
	if _, err := p.exchange(t, p.token(t, s, nil)); err != nil {
		t.Fatal(err)
	}
}

// What an issuer answers is bounded, and leads nowhere else.
func TestSec_S_06_HostileIssuer(t *testing.T) { // S-06, S-07
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("another address was called")
	}))
	defer elsewhere.Close()
	s := newSigner(t, "EdDSA", "one")
	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	document := func(change func(map[string]string)) func(http.ResponseWriter, *http.Request, string) bool {
		return func(w http.ResponseWriter, r *http.Request, own string) bool {
			d := map[string]string{"issuer": own, "jwks_uri": own + "/keys"}
			change(d)
			_ = json.NewEncoder(w).Encode(d)
			return strings.HasPrefix(r.URL.Path, "/.well-known")
		}
	}
	for name, answer := range map[string]func(http.ResponseWriter, *http.Request, string) bool{
		"redirect": func(w http.ResponseWriter, r *http.Request, _ string) bool {
			http.Redirect(w, r, elsewhere.URL, http.StatusFound)
			return true
		},
		"no JSON": func(w http.ResponseWriter, _ *http.Request, _ string) bool {
			_, _ = w.Write([]byte("<html>"))
			return true
		},
		"too large": func(w http.ResponseWriter, _ *http.Request, _ string) bool {
			_, _ = w.Write([]byte(`{"keys":[` + strings.Repeat(" ", 64<<10) + `]}`))
			return true
		},
		"another issuer": document(func(d map[string]string) { d["issuer"] = "https://evil.example" }),
		"no TLS":         document(func(d map[string]string) { d["jwks_uri"] = elsewhere.URL }),
		"a file":         document(func(d map[string]string) { d["jwks_uri"] = "file:///etc/passwd" }),
		"no address":     document(func(d map[string]string) { delete(d, "jwks_uri") }),
	} {
		p := newProvider(t)
		p.publish(s.public)
		p.answers(func(w http.ResponseWriter, r *http.Request) bool { return answer(w, r, p.URL) })
		if _, err := p.exchange(t, p.token(t, s, nil)); !errors.Is(err, ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, public := range map[string]map[string]string{
		"weak":           {"kty": "RSA", "kid": "one", "n": b64(weak.N.Bytes()), "e": "AQAB"},
		"even exponent":  {"kty": "RSA", "kid": "one", "n": newSigner(t, "RS256", "").public["n"], "e": "AQAA"},
		"secret":         {"kty": "oct", "kid": "one", "k": "AAAA"},
		"to encrypt":     with(s.public, "use", "enc"),
		"another alg":    with(s.public, "alg", "HS256"),
		"without a name": with(s.public, "kid", ""),
		"cut":            with(s.public, "x", "AAAA"),
		"not on it":      with(with(newSigner(t, "ES256", "one").public, "x", b64(make([]byte, 32))), "alg", ""),
	} {
		p := newProvider(t)
		p.publish(public)
		method, private := jwt.SigningMethod(jwt.SigningMethodEdDSA), s.private
		if public["kty"] == "RSA" {
			method, private = jwt.SigningMethodRS256, weak
		}
		token := p.token(t, signer{method, private, map[string]string{"kid": "one"}}, nil)
		if _, err := p.exchange(t, token); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func with(m map[string]string, name, value string) map[string]string {
	out := map[string]string{}
	for k, v := range m {
		out[k] = v
	}
	out[name] = value
	return out
}

// Who waits for keys that somebody else reads gives up when the own call ends, and the
// reading continues.
func TestCallerLeaves(t *testing.T) {
	p := newProvider(t)
	s := newSigner(t, "EdDSA", "one")
	p.publish(s.public)
	came, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	p.answers(func(http.ResponseWriter, *http.Request) bool {
		once.Do(func() { close(came) })
		<-release
		return false
	})
	token := p.token(t, s, nil)
	first := make(chan error, 1)
	go func() {
		_, err := p.issuers.Exchange(context.Background(), token)
		first <- err
	}()
	<-came
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.issuers.Exchange(ctx, token); !errors.Is(err, ErrUnavailable) {
		t.Error(err)
	}
	close(release)
	if err := <-first; err != nil {
		t.Error(err)
	}
}
