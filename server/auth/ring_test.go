package auth

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// process is a server with a file of keys of its own, which gets what others have later.
type process struct {
	path string
	key  *Key
	gate *Gate
}

func newProcess(t *testing.T, text []byte, now *time.Time) *process {
	t.Helper()
	p := &process{path: filepath.Join(t.TempDir(), KeyFile)}
	if text == nil {
		if _, err := LoadKey(filepath.Dir(p.path)); err != nil {
			t.Fatal(err)
		}
	} else if err := os.WriteFile(p.path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	b := newFixture(t, p.load(t))
	b.gate.cfg.Clock = func() time.Time { return *now }
	p.gate = b.gate
	return p
}

func (p *process) load(t *testing.T) *Key {
	t.Helper()
	var err error
	if p.key, err = ReadKey(p.path); err != nil {
		t.Fatal(err)
	}
	return p.key
}

func (p *process) text(t *testing.T) []byte {
	t.Helper()
	text, err := os.ReadFile(p.path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// give puts the file of another process in place of the own one, and has it read.
func (p *process) give(t *testing.T, text []byte) {
	t.Helper()
	if err := os.WriteFile(p.path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := p.key.Reload(); err != nil {
		t.Fatal(err)
	}
}

// Keys are replaced again and again; two servers get each file at different times, within
// the notice, and no token of either is refused by either while it is good.
func TestRotationRefusesNobody(t *testing.T) { // S-06
	now := testTime
	a := newProcess(t, nil, &now)
	b := newProcess(t, a.text(t), &now)
	type token struct {
		text    string
		expires time.Time
	}
	var tokens []token
	signers := map[string]bool{}
	rotated, pending := 0, []byte(nil)
	for step := range 4 * 24 * 6 { // four days in steps of ten minutes
		if step%72 == 1 { // twice a day
			if _, err := Rotate(a.path, now, 10*time.Minute); err != nil {
				t.Fatal(err)
			}
			rotated++
			pending = a.text(t)
			if _, err := a.key.Reload(); err != nil {
				t.Fatal(err)
			}
		} else if pending != nil { // at the last moment
			b.give(t, pending)
			pending = nil
		}
		for _, p := range []*process{a, b} {
			text, err := p.key.Issue("alice", now, MaxTTL)
			if err != nil {
				t.Fatal(err)
			}
			tokens = append(tokens, token{text, now.Add(MaxTTL)})
			parsed, _, err := jwt.NewParser().ParseUnverified(text, &claims{})
			if err != nil {
				t.Fatal(err)
			}
			signers[parsed.Header["kid"].(string)] = true
		}
		if step%9 != 0 {
			now = now.Add(10 * time.Minute)
			continue
		}
		good := tokens[:0]
		for _, tok := range tokens {
			for name, p := range map[string]*process{"first": a, "second": b} {
				_, err := p.gate.Verify(tok.text)
				if late := !now.Before(tok.expires.Add(30 * time.Second)); late != (err != nil) {
					t.Fatalf("step %d, %s server, expires %v: %v", step, name, tok.expires.Sub(now), err)
				}
			}
			if now.Before(tok.expires) {
				good = append(good, tok)
			}
		}
		tokens = good
		now = now.Add(10 * time.Minute)
	}
	if rotated != 8 || len(signers) != rotated+1 {
		t.Errorf("%d rotations, %d keys signed", rotated, len(signers))
	}
	// What is over is gone, but for the first key.
	if n := len(a.key.Keys(now)); n > 5 {
		t.Errorf("%d keys are left", n)
	}
	if string(a.key.Derive("x", 32)) != string(a.load(t).Derive("x", 32)) {
		t.Error("a rotation changed a derived secret")
	}
}

// After a theft no token of the other keys is good any more, remembered or not.
func TestRotationAtOnce(t *testing.T) {
	now := testTime
	a := newProcess(t, nil, &now)
	old, fresh := issue(t, a.key, "alice"), issue(t, a.key, "bob")
	if _, err := a.gate.Verify(old); err != nil {
		t.Fatal(err)
	}
	if _, err := Rotate(a.path, now, time.Hour); err != nil { // one that does not sign yet ends, too
		t.Fatal(err)
	}
	if _, err := Rotate(a.path, now, time.Hour); err == nil || strings.Contains(err.Error(), "\n") {
		t.Fatalf("two rotations at a time: %v", err)
	}
	if _, err := Rotate(a.path, now, 0); err != nil {
		t.Fatal(err)
	}
	if changed, err := a.key.Reload(); err != nil || !changed {
		t.Fatal(changed, err)
	}
	for name, token := range map[string]string{"remembered": old, "not remembered": fresh} {
		if _, err := a.gate.Verify(token); !errors.Is(err, ErrOtherKey) {
			t.Errorf("%s: %v", name, err)
		}
	}
	text, err := a.key.Issue("alice", now, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.gate.Verify(text); err != nil {
		t.Error(err)
	}
	if keys := a.key.Keys(now); len(keys) != 2 || keys[0].Signing || !keys[1].Signing {
		t.Errorf("%+v", keys)
	}
	if bytes.Count(a.key.JWKS(now), []byte(`"kid"`)) != 1 {
		t.Errorf("a key that is accepted no more is published: %s", a.key.JWKS(now))
	}
}

// Who was admitted just before a key was ended opens nothing just after it; who was by a key
// that is accepted does.
func TestEndedKeyOpensNothing(t *testing.T) {
	now := testTime
	a := newProcess(t, nil, &now)
	admitted := func() Principal {
		t.Helper()
		token, err := a.key.Issue("ann", now, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		p, err := a.gate.Verify(token)
		if err != nil || a.gate.Refuses(p) {
			t.Fatal(p, err)
		}
		return p
	}
	old := admitted()
	for _, notice := range []time.Duration{time.Minute, 0} {
		if _, err := Rotate(a.path, now, notice); err != nil {
			t.Fatal(err)
		}
		if _, err := a.key.Reload(); err != nil {
			t.Fatal(err)
		}
		if a.gate.Refuses(old) != (notice == 0) {
			t.Errorf("with a notice of %v it is refused: %v", notice, notice != 0)
		}
	}
	admitted()
}

// No token outlives its key, whatever it says.
func TestTokenEndsWithItsKey(t *testing.T) {
	now := testTime
	a := newProcess(t, nil, &now)
	block, _ := pem.Decode(a.text(t))
	block.Headers = map[string]string{"Accepted-Until": testTime.Add(time.Minute).Format(time.RFC3339)}
	a.give(t, pem.EncodeToMemory(block))
	tok := issue(t, a.key, "alice")
	if p, err := a.gate.Verify(tok); err != nil || !p.ExpiresAt.Equal(testTime.Add(time.Minute)) {
		t.Fatal(p, err)
	}
	now = testTime.Add(time.Minute + 30*time.Second)
	if _, err := a.gate.Verify(tok); !errors.Is(err, ErrTokenExpired) {
		t.Fatal(err)
	}
	if _, err := a.key.verify(tok, now); !errors.Is(err, ErrOtherKey) {
		t.Fatal(err)
	}
}

// Of rotations at once one is done, and the file is whole.
func TestRotationsAtOnce(t *testing.T) {
	now := testTime
	a := newProcess(t, nil, &now)
	var done sync.Map
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if made, err := Rotate(a.path, now, time.Minute); err == nil {
				done.Store(made.ID, true)
			}
		})
	}
	wg.Wait()
	n := 0
	done.Range(func(any, any) bool { n++; return true })
	if keys := a.load(t).Keys(now); n != 1 || len(keys) != 2 || !keys[0].Signing {
		t.Fatalf("%d rotations, %+v", n, keys)
	}
	if left, err := os.ReadDir(filepath.Dir(a.path)); err != nil || len(left) != 1 {
		t.Fatal(left, err)
	}
}

// A file that cannot be read, or is another's, changes nothing.
func TestReloadKeepsWhatIsThere(t *testing.T) { // S-40
	now := testTime
	a, other := newProcess(t, nil, &now), newProcess(t, nil, &now)
	tok := issue(t, a.key, "alice")
	own := a.text(t)
	twice := append(bytes.Clone(own), own...)
	added, third := other.text(t), func() []byte { return newProcess(t, nil, &now).text(t) }
	for name, text := range map[string][]byte{
		"empty": {}, "cut": own[:40], "cut after the first": append(bytes.Clone(own), added[:60]...),
		"cut in the first line": append(bytes.Clone(own), added[:9]...),
		"cut in the middle":     slices.Concat(own, added[:len(added)-30], third(), third()), "another's": other.text(t), "twice": twice,
		"more than there is room for": bytes.Repeat(own, 200),
		"a bad time":                  bytes.Replace(own[bytes.Index(own, []byte(pemBegin)):], []byte("KEY-----\n"), []byte("KEY-----\nSigns-From: noon\n\n"), 1),
	} {
		if err := os.WriteFile(a.path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if changed, err := a.key.Reload(); err == nil || changed || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, %v", name, changed, err)
		}
		if _, err := a.gate.Verify(tok); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	a.give(t, own)
}

// The published document has what a verifier of RFC 8037 needs, and nothing else.
func TestJWKS(t *testing.T) { // S-06
	k := testKey(t)
	var document struct {
		Keys []map[string]string `json:"keys"`
	}
	if err := json.Unmarshal(k.JWKS(testTime), &document); err != nil || len(document.Keys) != 1 {
		t.Fatal(document, err)
	}
	key := document.Keys[0]
	if key["kty"] != "OKP" || key["crv"] != "Ed25519" || key["alg"] != "EdDSA" || key["use"] != "sig" ||
		key["kid"] != k.id || len(key["x"]) != 43 || len(key) != 6 {
		t.Errorf("%v", key)
	}
}
