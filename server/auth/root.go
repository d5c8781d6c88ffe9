package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"slices"
	"strings"
	"time"
)

// A file of keys has a root secret, from which the secrets for other purposes are derived. It
// is the first key, until RotateRoot puts a block of its own into the file.
const (
	rootType       = "PARLEY ROOT SECRET"
	rootSize       = 32         // bytes
	headerReplaces = "Replaces" // names of the root secrets before, the last one at the end
	maxReplaced    = 16
)

// root is such a block.
type root struct {
	secret   []byte
	replaces []string
}

func readRoot(block *pem.Block) (*root, error) {
	replaces := strings.Fields(block.Headers[headerReplaces])
	if len(block.Bytes) != rootSize || len(replaces) > maxReplaced {
		return nil, errors.New("not a root secret")
	}
	return &root{block.Bytes, replaces}, nil
}

func (r *root) block() *pem.Block {
	return &pem.Block{Type: rootType, Bytes: r.secret, Headers: map[string]string{
		headerReplaces: strings.Join(r.replaces, " ")}}
}

// secret is the root secret.
func (r *ring) secret() []byte {
	if r.root != nil {
		return r.root.secret
	}
	return r.entries[0].private.Seed()
}

// follows reports whether the file's root secret is the one that a process began with, or has
// taken its place.
func (r *ring) follows(secret []byte) bool {
	return subtle.ConstantTimeCompare(r.secret(), secret) == 1 ||
		r.root != nil && slices.Contains(r.root.replaces, rootID(secret))
}

// rootID names a root secret.
func rootID(secret []byte) string {
	sum := sha256.Sum256(append([]byte("parley root secret "), secret...))
	return hex.EncodeToString(sum[:8])
}

// RotateRoot is Rotate without a notice, and replaces the root secret, too: a copy of the old
// file becomes useless. Processes refuse the tokens of all other keys at once, and derive
// secrets from the new one when they are started again. After that, everything made with the old
// secret and keys is invalid: links to processes that were not started again, refresh tokens,
// codes, keys of service accounts, and the synchronisation tokens of devices, which
// resynchronise.
func RotateRoot(path string, now time.Time) (Info, error) {
	return rotate(path, now, 0, func(r *ring) (*root, error) {
		next := &root{secret: make([]byte, rootSize)}
		if _, err := rand.Read(next.secret); err != nil {
			return nil, err
		}
		if r.root != nil {
			next.replaces = r.root.replaces
		}
		next.replaces = append(slices.Clone(next.replaces), rootID(r.secret()))
		next.replaces = next.replaces[max(0, len(next.replaces)-maxReplaced):]
		return next, nil
	})
}
