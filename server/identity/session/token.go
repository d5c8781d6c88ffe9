package session

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"strings"
	"unicode/utf8"
)

// A refresh token is opaque to clients: prefix, and in base64url the ids of user and session,
// each behind its length, a secret of 256 bits, and a mark that proves that this
// installation has made it.
//
// The first secret is random, each following one the keyed hash of the one before. So all
// refreshes with the same token get the same successor, and nothing that can be used is stored.
// Only the hash of the token in the store makes a token valid. The mark distinguishes a formerly
// valid token from a forged one, so that a session's id is not enough to end it.
const (
	tokenPrefix = "prt_"
	secretSize  = 32
	markSize    = 16
	maxToken    = 512
)

// token is a refresh token, taken apart.
type token struct {
	user, session string
	secret        [secretSize]byte
	genuine       bool // made by this installation, with the key that it has now
}

// keys make secrets and marks.
type keys struct{ pepper []byte }

// first makes the first token of a session.
func (k keys) first(user, session string) token {
	t := token{user: user, session: session, genuine: true}
	_, _ = rand.Read(t.secret[:]) // never fails
	return t
}

// successor makes the token after t, always the same.
func (k keys) successor(t token) token {
	next := token{user: t.user, session: t.session, genuine: true}
	copy(next.secret[:], k.mac("refresh token after", t))
	return next
}

func (k keys) mac(purpose string, t token) []byte {
	h := hmac.New(sha256.New, k.pepper)
	for _, part := range []string{purpose, t.user, t.session} { // none has a zero byte
		_, _ = h.Write([]byte(part + "\x00"))
	}
	_, _ = h.Write(t.secret[:])
	return h.Sum(nil)
}

func (k keys) mark(t token) []byte { return k.mac("refresh token made", t)[:markSize] }

// text is the token as clients have it.
func (k keys) text(t token) string {
	b := make([]byte, 0, 2+len(t.user)+len(t.session)+secretSize+markSize)
	b = append(append(b, byte(len(t.user))), t.user...)
	b = append(append(b, byte(len(t.session))), t.session...)
	b = append(append(b, t.secret[:]...), k.mark(t)...)
	return tokenPrefix + base64.RawURLEncoding.EncodeToString(b)
}

// parse takes a token apart. ok is false for what has another form.
func (k keys) parse(text string) (t token, ok bool) {
	encoded, ok := strings.CutPrefix(text, tokenPrefix)
	if !ok || len(text) > maxToken {
		return t, false
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(encoded)
	if err != nil {
		return t, false
	}
	for _, id := range []*string{&t.user, &t.session} {
		if len(b) < 1 || len(b) < 1+int(b[0]) || b[0] == 0 {
			return t, false
		}
		*id, b = string(b[1:1+b[0]]), b[1+b[0]:]
	}
	if ids := t.user + t.session; len(b) != secretSize+markSize || strings.ContainsAny(ids, "#\x00") ||
		!utf8.ValidString(ids) {
		return t, false
	}
	copy(t.secret[:], b)
	t.genuine = hmac.Equal(b[secretSize:], k.mark(t))
	return t, true
}

// hash is what the store has of a token.
func (t token) hash() [sha256.Size]byte {
	h := sha256.New()
	_, _ = h.Write([]byte(t.user + "\x00" + t.session + "\x00"))
	_, _ = h.Write(t.secret[:])
	return [sha256.Size]byte(h.Sum(nil))
}
