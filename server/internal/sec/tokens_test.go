package sec

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/internal/sec/sectest"
)

// issuer is a key, as a server has it, and as who signs with it.
type issuer struct {
	private ed25519.PrivateKey
	key     *auth.Key
	now     time.Time
}

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// keyFile writes a private key as servers read them.
func keyFile(t testing.TB, key crypto.PrivateKey) string {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "auth.key")
	text := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func newIssuer(t testing.TB) *issuer {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key, err := auth.ReadKey(keyFile(t, private))
	if err != nil {
		t.Fatal(err)
	}
	return &issuer{private, key, noon}
}

// good is a token of alice that is good for an hour.
func (i *issuer) good() sectest.Good {
	sum := sha256.Sum256(i.private.Public().(ed25519.PublicKey))
	return sectest.Good{
		Header: map[string]any{"typ": "at+jwt", "kid": hex.EncodeToString(sum[:8])},
		Claims: jwt.MapClaims{"iss": "parley", "aud": "parley", "sub": "alice", "sid": "ses_1", "jti": "1",
			"iat": noon.Unix(), "nbf": noon.Unix(), "exp": noon.Add(time.Hour).Unix()},
		Now: noon, Leeway: 30 * time.Second,
	}
}

// ask goes through a gate with headers, and returns who was let in, and why not. Nobody is
// written down who is not let in.
func (i *issuer) ask(t testing.TB, change func(*http.Request)) (user string, refused error) {
	t.Helper()
	written, called := "", false
	gate, err := auth.NewGate(auth.Config{Key: i.key, Clock: func() time.Time { return i.now },
		EnsureUser: func(_ context.Context, user string) error { written = user; return nil },
		Refuse:     func(_ http.ResponseWriter, _ *http.Request, err error) { refused = err },
	})
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", http.NoBody)
	change(r)
	gate.Wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		called = true
		p, _ := auth.PrincipalFrom(r.Context())
		user = p.UserID
	})).ServeHTTP(httptest.NewRecorder(), r)
	if refused != nil && (called || written != "") {
		t.Errorf("refused, and let in as %q, written as %q", user, written)
	}
	return user, refused
}

func (i *issuer) bearer(t testing.TB, token string) (string, error) {
	t.Helper()
	return i.ask(t, func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) })
}

// refuses puts tokens of some classes to the gate, and returns how many there were.
func (i *issuer) refuses(t *testing.T, tokens []sectest.Forged, of ...sectest.Class) (n int) {
	t.Helper()
	for _, f := range tokens {
		wanted := len(of) == 0
		for _, c := range of {
			wanted = wanted || c == f.Class
		}
		if !wanted {
			continue
		}
		n++
		user, err := i.bearer(t, f.Text)
		if user != "" || !errors.Is(err, auth.ErrInvalidToken) && !errors.Is(err, auth.ErrTokenExpired) {
			t.Errorf("%s: %q is let in, %v", f.Name, user, err)
		}
	}
	return n
}

// The whole battery, by three methods: the issuer's own, one whose secret is the public key, and
// one of a stranger. Only the untouched token of the issuer's own is taken (S-01).
func TestSec_S_01_TheTokenChoosesNoAlgorithm(t *testing.T) {
	i := newIssuer(t)
	g := i.good()
	foreign, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	public := i.private.Public().(ed25519.PublicKey)
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if user, err := i.bearer(t, g.Untouched(t, jwt.SigningMethodEdDSA, i.private)); user != "alice" || err != nil {
		t.Fatalf("the good token: %q, %v", user, err)
	}
	for _, by := range []struct {
		method jwt.SigningMethod
		key    any
	}{{jwt.SigningMethodEdDSA, i.private}, {jwt.SigningMethodHS256, []byte(public)}, {jwt.SigningMethodRS256, foreign}} {
		tokens := g.Forge(t, by.method, by.key)
		if n := i.refuses(t, tokens); n < 40 {
			t.Errorf("%s: %d tokens, fewer than 40", by.method.Alg(), n)
		}
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	for name, token := range map[string]string{
		"HS256 with the public key":         g.Untouched(t, jwt.SigningMethodHS256, []byte(public)),
		"HS256 with the public key in DER":  g.Untouched(t, jwt.SigningMethodHS256, der),
		"HS256 with the public key in PEM":  g.Untouched(t, jwt.SigningMethodHS256, text),
		"HS512 with the public key":         g.Untouched(t, jwt.SigningMethodHS512, []byte(public)),
		"HS256 with the name of the key":    g.Untouched(t, jwt.SigningMethodHS256, []byte(g.Header["kid"].(string))),
		"HS256 with nothing":                g.Untouched(t, jwt.SigningMethodHS256, []byte{}),
		"RS256 of a stranger":               g.Untouched(t, jwt.SigningMethodRS256, foreign),
		"PS256 of a stranger":               g.Untouched(t, jwt.SigningMethodPS256, foreign),
		"ES256 of a stranger":               g.Untouched(t, jwt.SigningMethodES256, curve),
		"EdDSA of another installation":     newIssuer(t).good().Untouched(t, jwt.SigningMethodEdDSA, newIssuer(t).private),
		"EdDSA of another, named like ours": g.Untouched(t, jwt.SigningMethodEdDSA, newIssuer(t).private),
	} {
		if user, err := i.bearer(t, token); user != "" || !errors.Is(err, auth.ErrInvalidToken) {
			t.Errorf("%s: %q, %v", name, user, err)
		}
	}
}

// Each claim is demanded and checked; clocks may differ by 30 seconds (S-02).
func TestSec_S_02_Claims(t *testing.T) {
	i := newIssuer(t)
	g := i.good()
	if n := i.refuses(t, g.Forge(t, jwt.SigningMethodEdDSA, i.private), sectest.Claim); n < 30 {
		t.Errorf("%d tokens", n)
	}
	for claim, edge := range map[string]struct{ in, out time.Duration }{
		"exp": {-29 * time.Second, -30 * time.Second}, "nbf": {30 * time.Second, 31 * time.Second},
		"iat": {30 * time.Second, 31 * time.Second},
	} {
		for d, taken := range map[time.Duration]bool{edge.in: true, edge.out: false} {
			one := i.good()
			one.Claims[claim] = noon.Add(d).Unix()
			user, err := i.bearer(t, one.Untouched(t, jwt.SigningMethodEdDSA, i.private))
			if (user == "alice") != taken || (err == nil) != taken {
				t.Errorf("%s %v from now: %q, %v", claim, d, user, err)
			}
		}
	}
}

// A token is taken from one header of one form, and what is longer than 8 KiB is not checked (S-03).
func TestSec_S_03_TokensStandInOneHeader(t *testing.T) {
	i := newIssuer(t)
	token := i.good().Untouched(t, jwt.SigningMethodEdDSA, i.private)
	i.refuses(t, i.good().Forge(t, jwt.SigningMethodEdDSA, i.private), sectest.Form)
	for name, change := range map[string]func(*http.Request){
		"query":  func(r *http.Request) { r.URL.RawQuery = "access_token=" + token + "&token=" + token },
		"cookie": func(r *http.Request) { r.AddCookie(&http.Cookie{Name: "Authorization", Value: "Bearer " + token}) },
		"another header": func(r *http.Request) {
			r.Header.Set("X-Authorization", "Bearer "+token)
			r.Header.Set("Proxy-Authorization", "Bearer "+token)
		},
		"two":    func(r *http.Request) { r.Header["Authorization"] = []string{"Bearer " + token, "Bearer " + token} },
		"basic":  func(r *http.Request) { r.SetBasicAuth("alice", token) },
		"scheme": func(r *http.Request) { r.Header.Set("Authorization", "Token "+token) },
		"bare":   func(r *http.Request) { r.Header.Set("Authorization", token) },
	} {
		if user, err := i.ask(t, change); user != "" || err == nil {
			t.Errorf("%s: %q, %v", name, user, err)
		}
	}
	gate, err := auth.NewGate(auth.Config{Key: i.key, Clock: func() time.Time { return noon },
		EnsureUser: func(context.Context, string) error { return nil }, Refuse: func(http.ResponseWriter, *http.Request,
			error) {
		}})
	if err != nil {
		t.Fatal(err)
	}
	for _, long := range []string{strings.Repeat("a", 8<<10+1), strings.Repeat(".", 1<<20)} {
		if n := testing.AllocsPerRun(10, func() { _, _ = gate.Verify(long) }); n != 0 {
			t.Errorf("%d bytes: %v allocations", len(long), n)
		}
	}
}

// A token is good for what it was made for: neither a user's for operators, nor an operator's for
// users, nor one of another type (S-04).
func TestSec_S_04_KindsOfTokens(t *testing.T) {
	i := newIssuer(t)
	i.refuses(t, i.good().Forge(t, jwt.SigningMethodEdDSA, i.private), sectest.Type)
	operator, err := i.key.IssueOperator("ada", noon, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if user, err := i.bearer(t, operator); user != "" || !errors.Is(err, auth.ErrInvalidToken) {
		t.Errorf("an operator's token: %q, %v", user, err)
	}
	user, err := i.key.Issue("alice", noon, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	h := http.Header{"Authorization": {"Bearer " + user}}
	if op, err := i.key.Operator(h, noon); op.Name != "" || !errors.Is(err, auth.ErrInvalidToken) {
		t.Errorf("a user's token: %+v, %v", op, err)
	}
	for _, opaque := range []string{rand.Text(), "rt_" + rand.Text() + rand.Text(), hex.EncodeToString(make([]byte, 32))} {
		if user, err := i.bearer(t, opaque); user != "" || !errors.Is(err, auth.ErrInvalidToken) {
			t.Errorf("an opaque token: %q, %v", user, err)
		}
	}
}

// No header of a token brings a key, an address of one, or a rule (S-05).
func TestSec_S_05_HeadersBringNothing(t *testing.T) {
	i := newIssuer(t)
	asked := 0
	web := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked++ }))
	defer web.Close()
	if n := i.refuses(t, i.good().Forge(t, jwt.SigningMethodEdDSA, i.private), sectest.Header, sectest.Signature); n < 30 {
		t.Errorf("%d tokens", n)
	}
	g := i.good()
	g.Header["jku"], g.Header["x5u"] = web.URL, web.URL
	if user, err := i.bearer(t, g.Untouched(t, jwt.SigningMethodEdDSA, newIssuer(t).private)); user != "" || err == nil {
		t.Errorf("an address of a key: %q, %v", user, err)
	}
	if asked != 0 {
		t.Errorf("the address in a token was asked %d times", asked)
	}
}

// A server starts with an Ed25519 key that it alone can read, and with no other (S-07).
func TestSec_S_07_WeakKeysAreRefused(t *testing.T) {
	small, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	curve, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	secret := filepath.Join(t.TempDir(), "hmac")
	if err := os.WriteFile(secret, bytes.Repeat([]byte("k"), 16), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{
		"RSA": keyFile(t, small), "P-224": keyFile(t, curve), "a secret of 16 bytes": secret,
		"nothing": filepath.Join(t.TempDir(), "none"),
	} {
		if key, err := auth.ReadKey(path); key != nil || err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, %v", name, key, err)
		}
	}
}

// What a token says of time is judged by the clock that the gate was given, exact to the second (S-08).
func TestSec_S_08_TimeIsTheClocks(t *testing.T) {
	i := newIssuer(t)
	token := i.good().Untouched(t, jwt.SigningMethodEdDSA, i.private)
	for at, taken := range map[time.Duration]bool{
		-31 * time.Second: false, -30 * time.Second: true, 0: true, time.Hour + 29*time.Second: true,
		time.Hour + 30*time.Second: false, 24 * time.Hour: false, -24 * time.Hour: false,
	} {
		i.now = noon.Add(at)
		if user, err := i.bearer(t, token); (user == "alice") != taken || (err == nil) != taken {
			t.Errorf("%v after it was made: %q, %v", at, user, err)
		}
	}
}

// FuzzTokens: whatever a text is made of, only the issuer's own is taken, and nothing panics.
func FuzzTokens(f *testing.F) {
	i := newIssuer(f)
	good := i.good().Untouched(f, jwt.SigningMethodEdDSA, i.private)
	for _, one := range i.good().Forge(f, jwt.SigningMethodEdDSA, i.private) {
		if len(one.Text) < 4096 {
			f.Add(one.Text)
		}
	}
	gate, err := auth.NewGate(auth.Config{Key: i.key, Clock: func() time.Time { return noon },
		EnsureUser: func(context.Context, string) error { return nil }, Refuse: func(http.ResponseWriter, *http.Request,
			error) {
		}})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, token string) {
		if p, err := gate.Verify(token); err == nil && token != good {
			t.Fatalf("%q is let in as %+v", token, p)
		}
	})
}
