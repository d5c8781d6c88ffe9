package auth

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

var testTime = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

func testKey(t testing.TB) *Key {
	t.Helper()
	k, err := LoadKey(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func firstKey(k *Key) ed25519.PrivateKey { return k.ring.Load().entries[0].private }

type fixture struct {
	gate    *Gate
	now     time.Time
	refused error
	ensured []string
	fail    error
}

func newFixture(t testing.TB, k *Key) *fixture {
	t.Helper()
	b := &fixture{now: testTime}
	var err error
	b.gate, err = NewGate(Config{
		Key: k, Clock: func() time.Time { return b.now },
		EnsureUser: func(_ context.Context, user string) error { b.ensured = append(b.ensured, user); return b.fail },
		Refuse: func(w http.ResponseWriter, _ *http.Request, err error) {
			b.refused = err
			w.WriteHeader(http.StatusUnauthorized)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// unread is a body that must not be touched.
type unread struct{ t *testing.T }

func (u unread) Read([]byte) (int, error) {
	u.t.Error("the body of a refused request was read")
	return 0, io.EOF
}

// try sends a request with headers through the gate and returns who was let in.
func (b *fixture) try(t *testing.T, headers ...string) (p Principal, err error) {
	t.Helper()
	b.refused = nil
	r := httptest.NewRequest(http.MethodPost, "/x?access_token=nope", unread{t})
	for _, h := range headers {
		r.Header.Add("Authorization", h)
	}
	b.gate.Wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		p, _ = PrincipalFrom(r.Context())
	})).ServeHTTP(httptest.NewRecorder(), r)
	return p, b.refused
}

func issue(t testing.TB, k *Key, user string) string {
	t.Helper()
	tok, err := k.Issue(user, testTime, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func TestValidTokenIsAdmittedAndUserWrittenOnce(t *testing.T) {
	k := testKey(t)
	b := newFixture(t, k)
	tok := issue(t, k, "alice")
	for range 3 {
		p, err := b.try(t, "bearer "+tok)
		if err != nil || p.UserID != "alice" || p.SessionID == "" || !p.ExpiresAt.Equal(testTime.Add(time.Hour)) {
			t.Fatalf("%+v, %v", p, err)
		}
	}
	if len(b.ensured) != 1 {
		t.Fatalf("the row was written %d times", len(b.ensured))
	}
	b.fail = errors.New("store is away")
	if _, err := b.try(t, "Bearer "+issue(t, k, "bob")); !errors.Is(err, b.fail) {
		t.Fatalf("without a row: %v", err)
	}
	b.fail = nil
	if _, err := b.try(t, "Bearer "+issue(t, k, "bob")); err != nil {
		t.Fatal(err)
	}
}

func TestExpiry(t *testing.T) { // S-02, S-08
	k := testKey(t)
	tok := issue(t, k, "alice")
	for _, remembered := range []bool{true, false} {
		b := newFixture(t, k)
		if remembered {
			if _, err := b.try(t, "Bearer "+tok); err != nil {
				t.Fatal(err)
			}
		}
		b.now = testTime.Add(time.Hour + leeway - time.Second)
		if _, err := b.try(t, "Bearer "+tok); err != nil {
			t.Fatalf("within the leeway: %v", err)
		}
		for _, after := range []time.Duration{0, time.Second} { // remembered or not, at the same instant
			b.now = testTime.Add(time.Hour + leeway + after)
			if _, err := b.try(t, "Bearer "+tok); !errors.Is(err, ErrTokenExpired) {
				t.Fatalf("%v after expiry: %v", after, err)
			}
		}
	}
}

func TestRevocation(t *testing.T) { // S-14
	k := testKey(t)
	b := newFixture(t, k)
	var notified []string
	b.gate.cfg.OnRevoke = func(r Revocation) {
		if !b.gate.Refuses(Principal{SessionID: r.ID}) {
			t.Error("notified before it was so")
		}
		notified = append(notified, r.ID)
	}
	tok := issue(t, k, "alice")
	p, err := b.try(t, "Bearer "+tok)
	if err != nil || b.gate.Refuses(p) {
		t.Fatal(p, err)
	}
	b.gate.Revoke(p.SessionID, p.ExpiresAt)
	b.gate.Revoke(p.SessionID, testTime) // does not end it earlier
	if len(notified) != 2 || notified[0] != p.SessionID {
		t.Fatalf("notified of %v", notified)
	}
	b.now = p.ExpiresAt.Add(leeway - time.Second)
	if _, err := b.try(t, "Bearer "+tok); !errors.Is(err, ErrInvalidToken) {
		t.Fatalf("after revocation: %v", err)
	}
	b.now = testTime
	if _, err := b.try(t, "Bearer "+issue(t, k, "alice")); err != nil {
		t.Fatalf("another session: %v", err)
	}
	// Nothing is kept of a session whose tokens have all expired.
	b.now = p.ExpiresAt.Add(leeway)
	for i := range 64 {
		b.gate.Revoke(fmt.Sprint("ses_", i), b.now.Add(time.Hour))
	}
	if b.gate.Refuses(p) || len(b.gate.revoked.of) != 64 {
		t.Fatalf("still kept: %d", len(b.gate.revoked.of))
	}
	if _, err := b.try(t, "Bearer "+tok); !errors.Is(err, ErrTokenExpired) {
		t.Fatalf("after both: %v", err)
	}
}

// A token that is verified while its session is revoked is not remembered: run
// with the race detector, whatever comes first.
func TestRevocationDuringVerification(t *testing.T) {
	k := testKey(t)
	b := newFixture(t, k)
	for range 20 {
		tok := issue(t, k, "alice")
		p, err := k.verify(tok, testTime)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if _, err := b.gate.Verify(tok); err != nil && !errors.Is(err, ErrInvalidToken) {
					t.Error(err)
				}
			})
		}
		b.gate.Revoke(p.SessionID, p.ExpiresAt)
		if _, err := b.gate.Verify(tok); !errors.Is(err, ErrInvalidToken) {
			t.Fatalf("after revocation: %v", err)
		}
		wg.Wait()
		if _, err := b.gate.Verify(tok); !errors.Is(err, ErrInvalidToken) {
			t.Fatalf("after all: %v", err)
		}
	}
}

// Refusing what is far too long takes no memory that grows with it (S-03).
func TestLongTokensCostNothing(t *testing.T) {
	b := newFixture(t, testKey(t))
	tok := strings.Repeat("a", 1<<20)
	if n := testing.AllocsPerRun(10, func() { _, _ = b.gate.Verify(tok) }); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

// Nothing that is printed or logged tells the key (S-38).
func TestKeyIsNotPrinted(t *testing.T) {
	k := testKey(t)
	var log strings.Builder
	for _, h := range []slog.Handler{slog.NewTextHandler(&log, nil), slog.NewJSONHandler(&log, nil)} {
		slog.New(h).Info("key", "key", k)
	}
	fmt.Fprintf(&log, "%v %+v %#v %s %q", k, k, k, k, k)
	seed := firstKey(k).Seed()
	for _, secret := range []string{
		fmt.Sprint(seed), fmt.Sprintf("%x", seed), fmt.Sprint(seed[:4])[1:8], base64.StdEncoding.EncodeToString(firstKey(k)),
	} {
		if strings.Contains(log.String(), secret) {
			t.Fatalf("logged: %s", log.String())
		}
	}
	if strings.Count(log.String(), k.id) < 7 {
		t.Fatalf("which key? %s", log.String())
	}
}

// forge signs a token whose header and claims were changed.
func forge(
	t *testing.T, method jwt.SigningMethod, key any, change func(header map[string]any, c jwt.MapClaims),
) string {
	t.Helper()
	c := jwt.MapClaims{
		"iss": Issuer, "aud": Audience, "sub": "alice", "sid": "ses_1",
		"iat": testTime.Unix(), "nbf": testTime.Unix(), "exp": testTime.Add(time.Hour).Unix(),
	}
	tok := jwt.NewWithClaims(method, c)
	tok.Header["typ"] = tokenType
	change(tok.Header, c)
	s, err := tok.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestForgedTokensAreRefused(t *testing.T) { // S-01…S-05
	k := testKey(t)
	b := newFixture(t, k)
	public := firstKey(k).Public().(ed25519.PublicKey)
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, other, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	kid := func(h map[string]any, _ jwt.MapClaims) { h["kid"] = k.id }
	with := func(f func(h map[string]any, c jwt.MapClaims)) string {
		return forge(t, jwt.SigningMethodEdDSA, firstKey(k), func(h map[string]any, c jwt.MapClaims) { kid(h, c); f(h, c) })
	}
	if _, err := b.try(t, "Bearer "+with(func(map[string]any, jwt.MapClaims) {})); err != nil {
		t.Fatalf("the untouched token: %v", err)
	}
	good := issue(t, k, "alice")
	parts := strings.Split(good, ".")
	segment := func(v any) string {
		j, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(j)
	}
	for name, tok := range map[string]string{
		"alg none":             forge(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, kid),
		"HS256 with public":    forge(t, jwt.SigningMethodHS256, []byte(public), kid),
		"ES256":                forge(t, jwt.SigningMethodES256, ec, kid),
		"another key":          forge(t, jwt.SigningMethodEdDSA, other, kid),
		"empty signature":      parts[0] + "." + parts[1] + ".",
		"zero signature":       parts[0] + "." + parts[1] + "." + base64.RawURLEncoding.EncodeToString(make([]byte, 64)),
		"other claims":         parts[0] + "." + segment(map[string]any{"sub": "root"}) + "." + parts[2],
		"header only":          parts[0],
		"kid as path":          with(func(h map[string]any, _ jwt.MapClaims) { h["kid"] = "../../x" }),
		"no kid":               with(func(h map[string]any, _ jwt.MapClaims) { delete(h, "kid") }),
		"refresh token":        with(func(h map[string]any, _ jwt.MapClaims) { h["typ"] = "rt+jwt" }),
		"plain type":           with(func(h map[string]any, _ jwt.MapClaims) { h["typ"] = "JWT" }),
		"crit":                 with(func(h map[string]any, _ jwt.MapClaims) { h["crit"] = []string{"exp"} }),
		"foreign issuer":       with(func(_ map[string]any, c jwt.MapClaims) { c["iss"] = "evil" }),
		"no issuer":            with(func(_ map[string]any, c jwt.MapClaims) { delete(c, "iss") }),
		"foreign audience":     with(func(_ map[string]any, c jwt.MapClaims) { c["aud"] = "evil" }),
		"no audience":          with(func(_ map[string]any, c jwt.MapClaims) { delete(c, "aud") }),
		"no expiry":            with(func(_ map[string]any, c jwt.MapClaims) { delete(c, "exp") }),
		"expiry as text":       with(func(_ map[string]any, c jwt.MapClaims) { c["exp"] = "99999999999" }),
		"no nbf":               with(func(_ map[string]any, c jwt.MapClaims) { delete(c, "nbf") }),
		"not yet":              with(func(_ map[string]any, c jwt.MapClaims) { c["nbf"] = testTime.Add(time.Hour).Unix() }),
		"no iat":               with(func(_ map[string]any, c jwt.MapClaims) { delete(c, "iat") }),
		"issued in the future": with(func(_ map[string]any, c jwt.MapClaims) { c["iat"] = testTime.Add(time.Hour).Unix() }),
		"no subject":           with(func(_ map[string]any, c jwt.MapClaims) { delete(c, "sub") }),
		"subject with #":       with(func(_ map[string]any, c jwt.MapClaims) { c["sub"] = "a#b" }),
		"subject with a space": with(func(_ map[string]any, c jwt.MapClaims) { c["sub"] = "a b" }),
		"subject of a path":    with(func(_ map[string]any, c jwt.MapClaims) { c["sub"] = ".." }),
		"long subject":         with(func(_ map[string]any, c jwt.MapClaims) { c["sub"] = strings.Repeat("a", 65) }),
		"no session":           with(func(_ map[string]any, c jwt.MapClaims) { delete(c, "sid") }),
		"long session":         with(func(_ map[string]any, c jwt.MapClaims) { c["sid"] = strings.Repeat("s", 65) }),
		"own key in header": forge(t, jwt.SigningMethodEdDSA, other,
			func(h map[string]any, c jwt.MapClaims) { kid(h, c); h["jwk"] = map[string]string{"kty": "OKP"} }),
		"key addresses": forge(t, jwt.SigningMethodEdDSA, other, func(h map[string]any, c jwt.MapClaims) {
			kid(h, c)
			h["jku"], h["x5u"] = "http://127.0.0.1:1/", "http://127.0.0.1:1/"
		}),
		"certificate chain": forge(t, jwt.SigningMethodEdDSA, other,
			func(h map[string]any, c jwt.MapClaims) { kid(h, c); h["x5c"] = []string{"AAAA"} }),
		"1 MiB":       strings.Repeat("a", 1<<20),
		"8,000 dots":  strings.Repeat(".", 8000),
		"with spaces": good + " x",
	} {
		if p, err := b.try(t, "Bearer "+tok); !errors.Is(err, ErrInvalidToken) || p.UserID != "" {
			t.Errorf("%s: %+v, %v", name, p, err)
		}
	}
	for name, headers := range map[string][]string{
		"basic": {"Basic " + good}, "bare": {good}, "two": {"Bearer " + good, "Bearer " + good},
	} {
		if _, err := b.try(t, headers...); !errors.Is(err, ErrInvalidToken) || !errors.Is(err, ErrNotBearer) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, header := range []string{"Bearer", "Bearer ", "bearer "} {
		if _, err := b.try(t, header); !errors.Is(err, ErrMissingToken) {
			t.Errorf("%q: %v", header, err)
		}
	}
	if _, err := b.try(t, "Bearer "+issue(t, testKey(t), "alice")); !errors.Is(err, ErrInvalidToken) ||
		!errors.Is(err, ErrOtherKey) {
		t.Errorf("a token of another data directory: %v", err)
	}
	if _, err := b.try(t, "Bearer "+with(func(h map[string]any, _ jwt.MapClaims) { h["kid"] = 7 })); errors.Is(err,
		ErrOtherKey) || !errors.Is(err, ErrInvalidToken) {
		t.Errorf("a key's name that is none: %v", err)
	}
	if _, err := b.try(t); !errors.Is(err, ErrMissingToken) { // also with one in the query
		t.Errorf("no token: %v", err)
	}
}

func TestKeyFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	keys := make([]*Key, 8)
	var wg sync.WaitGroup
	for i := range keys {
		wg.Go(func() {
			k, err := LoadKey(dir)
			if err != nil {
				t.Error(err)
				return
			}
			keys[i] = k
		})
	}
	wg.Wait()
	for _, k := range keys {
		if k == nil || k.id != keys[0].id {
			t.Fatal("processes that start together have different keys")
		}
	}
	path := filepath.Join(dir, KeyFile)
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Fatalf("left behind: %v, %v", entries, err)
	}
	if string(keys[0].Derive("a", 32)) == string(keys[0].Derive("b", 32)) {
		t.Fatal("secrets for two purposes are equal")
	}
	if runtime.GOOS != "windows" {
		if err := os.Chmod(path, 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadKey(dir); err == nil || strings.Contains(err.Error(), "\n") {
			t.Fatalf("a key that others can read: %v", err)
		}
		if err := os.Chmod(path, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, text := range []string{"", "nonsense", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadKey(dir); err == nil || strings.Contains(err.Error(), "\n") {
			t.Fatalf("key file %q: %v", text, err)
		}
	}
}

func TestIssueRefusesBadUsers(t *testing.T) {
	k := testKey(t)
	for _, user := range []string{"", "a b", "a#b", "a/b", "..", strings.Repeat("a", 65), "a\n"} {
		if _, err := k.Issue(user, testTime, time.Hour); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("a token for %q: %v", user, err)
		}
	}
}

func TestMemoryIsBounded(t *testing.T) {
	m := map[int]int{}
	for i := range maxRemembered {
		m[i] = i
	}
	forgetSome(m)
	if n := len(m); n >= maxRemembered || n < maxRemembered/2 {
		t.Fatalf("%d left", n)
	}
}

// BenchmarkVerify compares a remembered token with a new one.
func BenchmarkVerify(b *testing.B) {
	k := testKey(b)
	tok := issue(b, k, "alice")
	b.Run("remembered", func(b *testing.B) {
		g := newFixture(b, k).gate
		for b.Loop() {
			if _, err := g.Verify(tok); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("signature", func(b *testing.B) {
		for b.Loop() {
			if _, err := k.verify(tok, testTime); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// An account that is suspended while its row is read is not remembered as one in use.
func TestAccountThatChangesMeanwhile(t *testing.T) {
	k := testKey(t)
	b := newFixture(t, k)
	b.gate.cfg.EnsureUser = func(_ context.Context, user string) error {
		b.ensured = append(b.ensured, user)
		if len(b.ensured) == 1 {
			b.gate.Apply(Revocation{Kind: RevokedUser, ID: user, Before: b.now, Until: b.now.Add(time.Hour)})
		}
		return nil
	}
	b.now = b.now.Add(time.Minute)
	for range 3 {
		if err := b.gate.ensureUser(t.Context(), "ann"); err != nil {
			t.Fatal(err)
		}
	}
	if len(b.ensured) != 2 {
		t.Errorf("asked %d times, want again after the change, and then no more", len(b.ensured))
	}
}
