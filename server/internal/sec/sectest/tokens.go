// Package sectest has the attacks that every verifier of tokens must refuse. It knows what
// a good token looks like and no verifier, so that each of them is put to the same ones.
//
// Concurrency: nothing here is shared.
package sectest

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// Good describes a token that a verifier takes.
type Good struct {
	Header map[string]any // beside alg
	Claims jwt.MapClaims
	Now    time.Time
	Leeway time.Duration // that the verifier may at most grant
}

// Class is what is wrong with a token.
type Class string

// The classes.
const (
	Signature Class = "signature" // it is not its issuer's
	Header    Class = "header"    // it brings a key or a rule, or names no key
	Claim     Class = "claim"     // one is missing or wrong
	Type      Class = "type"      // it is for something else
	Form      Class = "form"      // it is no token
)

// Forged is a token that must be refused.
type Forged struct {
	Name  string
	Class Class
	Text  string
}

// Untouched is the good token, signed by a method.
func (g Good) Untouched(t testing.TB, method jwt.SigningMethod, key any) string {
	t.Helper()
	return g.sign(t, method, key, nil)
}

// sign makes a token with a header and claims that were changed.
func (g Good) sign(t testing.TB, method jwt.SigningMethod, key any, change func(h, c map[string]any)) string {
	t.Helper()
	h, c := map[string]any{"alg": method.Alg()}, map[string]any{}
	for k, v := range g.Header {
		h[k] = v
	}
	for k, v := range g.Claims {
		c[k] = v
	}
	if change != nil {
		change(h, c)
	}
	text := segment(t, h) + "." + segment(t, c)
	sig, err := method.Sign(text, key)
	if err != nil {
		t.Fatal(err)
	}
	return text + "." + base64.RawURLEncoding.EncodeToString(sig)
}

func segment(t testing.TB, v any) string {
	t.Helper()
	j, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return base64.RawURLEncoding.EncodeToString(j)
}

// Forge makes every attack with a method and its key. The key is the issuer's own where the
// verifier takes the method: then a claim, a header or the form alone is what is wrong.
func (g Good) Forge(t testing.TB, method jwt.SigningMethod, key any) []Forged {
	t.Helper()
	return slices.Concat(g.signatures(t, method, key), g.headers(t, method, key), g.claims(t, method, key),
		g.forms(t, method, key))
}

// stranger is a key that no server trusts.
func stranger(t testing.TB) ed25519.PrivateKey {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (g Good) signatures(t testing.TB, method jwt.SigningMethod, key any) []Forged {
	t.Helper()
	good := g.Untouched(t, method, key)
	parts := strings.Split(good, ".")
	head, claims, sig := parts[0], parts[1], parts[2]
	raw, err := base64.RawURLEncoding.DecodeString(sig)
	if err != nil {
		t.Fatal(err)
	}
	flipped := slices.Clone(raw)
	flipped[0] ^= 1
	other := map[string]any{}
	for k, v := range g.Claims {
		other[k] = v
	}
	other["sub"] = "root"
	unsigned := func(alg any) string {
		return g.sign(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, func(h, _ map[string]any) {
			if h["alg"] = alg; alg == nil {
				delete(h, "alg")
			}
		})
	}
	encode := base64.RawURLEncoding.EncodeToString
	var list []Forged
	for name, text := range map[string]string{
		"alg none": unsigned("none"), "alg None": unsigned("None"), "alg nOnE": unsigned("nOnE"),
		"alg empty": unsigned(""), "no alg": unsigned(nil), "alg a number": unsigned(1),
		"alg a list":                  unsigned([]string{"EdDSA"}),
		"alg none with the signature": strings.TrimSuffix(unsigned("none"), ".") + "." + sig,
		"empty signature":             head + "." + claims + ".",
		"zero signature":              head + "." + claims + "." + encode(make([]byte, len(raw))),
		"short signature":             head + "." + claims + "." + encode(raw[:len(raw)-1]),
		"long signature":              head + "." + claims + "." + encode(append(slices.Clone(raw), 0)),
		"flipped bit":                 head + "." + claims + "." + encode(flipped),
		"signature of other claims":   head + "." + segment(t, other) + "." + sig,
		"signature of a stranger":     g.sign(t, jwt.SigningMethodEdDSA, stranger(t), nil),
	} {
		list = append(list, Forged{name, Signature, text})
	}
	return list
}

func (g Good) headers(t testing.TB, method jwt.SigningMethod, key any) []Forged {
	t.Helper()
	foreign := stranger(t)
	public := base64.RawURLEncoding.EncodeToString(foreign.Public().(ed25519.PublicKey))
	own := map[string]any{"kty": "OKP", "crv": "Ed25519", "x": public}
	var list []Forged
	add := func(name string, class Class, method jwt.SigningMethod, key any, set map[string]any) {
		list = append(list, Forged{name, class, g.sign(t, method, key, func(h, _ map[string]any) {
			for k, v := range set {
				if h[k] = v; v == nil {
					delete(h, k)
				}
			}
		})})
	}
	for name, set := range map[string]map[string]any{ // a stranger brings the key along
		"jwk": {"jwk": own}, "jku": {"jku": "http://127.0.0.1:1/jwks"}, "x5u": {"x5u": "http://127.0.0.1:1/cert"},
		"x5c": {"x5c": []string{public}}, "jwk and its kid": {"jwk": own, "kid": "attacker"}, "jwk without kid": {"jwk": own,
			"kid": nil},
		"all of them": {"jwk": own, "jku": "https://evil.example", "x5u": "file:///etc/passwd", "x5c": []string{public}},
	} {
		add(name, Header, jwt.SigningMethodEdDSA, foreign, set)
	}
	kid, _ := g.Header["kid"].(string)
	for name, set := range map[string]map[string]any{
		"no kid": {"kid": nil}, "kid a path": {"kid": "../../x"}, "kid a device": {"kid": "/dev/null"},
		"kid a number": {"kid": 7},
		"kid empty":    {"kid": ""}, "kid in capitals": {"kid": strings.ToUpper(kid) + "X"},
		"kid with a NUL": {"kid": kid + "\x00"},
		"kid a list":     {"kid": []string{kid}}, "kid of a query": {"kid": "' OR 1=1 --"},
		"crit exp":     {"crit": []string{"exp"}},
		"crit unknown": {"crit": []string{"x"}, "x": 1}, "crit empty": {"crit": []string{}},
		"crit b64": {"crit": []string{"b64"}, "b64": false},
	} {
		add(name, Header, method, key, set)
	}
	for name, set := range map[string]map[string]any{
		"no type": {"typ": nil}, "plain type": {"typ": "JWT"}, "refresh token": {"typ": "rt+jwt"},
		"id token":     {"typ": "id+jwt"},
		"logout token": {"typ": "logout+jwt"}, "type a number": {"typ": 1},
	} {
		add(name, Type, method, key, set)
	}
	return list
}

func (g Good) claims(t testing.TB, method jwt.SigningMethod, key any) []Forged {
	t.Helper()
	at := func(d time.Duration) int64 { return g.Now.Add(d).Unix() }
	beyond := g.Leeway + time.Second
	long := strings.Repeat("a", 65)
	var list []Forged
	for name, values := range map[string][]any{
		"iss": {nil, "", "evil", "Parley", []string{"parley"}, 1},
		"aud": {nil, "", "evil", []string{}, []string{"evil"}, "parley2", 1},
		"exp": {nil, at(-beyond), 0, -1, "soon", "99999999999", true, []int{1}},
		"nbf": {nil, at(beyond), "later"},
		"iat": {nil, at(beyond), "later"},
		"sub": {nil, "", "a#b", "a b", "a/b", "..", "a\n", "a\x00", long, 7},
		"sid": {nil, "", long, 7},
	} {
		for _, v := range values {
			text := g.sign(t, method, key, func(_, c map[string]any) {
				if c[name] = v; v == nil {
					delete(c, name)
				}
			})
			list = append(list, Forged{name + " " + strings.TrimSpace(describe(v)), Claim, text})
		}
	}
	return list
}

func describe(v any) string {
	if v == nil {
		return "missing"
	}
	b, err := json.Marshal(v)
	if err != nil {
		return "odd"
	}
	return string(b)
}

func (g Good) forms(t testing.TB, method jwt.SigningMethod, key any) []Forged {
	t.Helper()
	good := g.Untouched(t, method, key)
	parts := strings.Split(good, ".")
	encode := base64.RawURLEncoding.EncodeToString
	raw := func(head, claims string) string {
		text := encode([]byte(head)) + "." + encode([]byte(claims))
		sig, err := method.Sign(text, key)
		if err != nil {
			t.Fatal(err)
		}
		return text + "." + encode(sig)
	}
	head, err := base64.RawURLEncoding.DecodeString(parts[0])
	if err != nil {
		t.Fatal(err)
	}
	var list []Forged
	for name, text := range map[string]string{
		"header only": parts[0], "two parts": parts[0] + "." + parts[1], "four parts": good + ".x",
		"five parts":   good + ".x.x",
		"a dot before": "." + good, "a dot behind": good + ".", "a space within": parts[0] + ". " + parts[1] + "." + parts[2],
		"a line feed": good + "\n", "padding": good + "=", "text behind": good + " x", "twice": good + "," + good,
		"a string in quotes": `"` + good + `"`, "as JSON": `{"payload":"` + parts[1] + `","signature":"` + parts[2] + `"}`,
		"header no JSON": raw("alg", "{}"), "header a list": raw("[]", "{}"), "header null": raw("null", "{}"),
		"claims a list": raw(string(head), "[]"), "claims null": raw(string(head), "null"),
		"claims a text":    raw(string(head), `"sub"`),
		"8 KiB and a byte": strings.Repeat("a", 8<<10+1), "1 MiB": strings.Repeat("a", 1<<20),
		"8,000 dots": strings.Repeat(".", 8000), "binary": "\xff\xfe\x00",
	} {
		list = append(list, Forged{name, Form, text})
	}
	return list
}
