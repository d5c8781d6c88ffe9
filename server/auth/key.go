// Package auth authenticates callers: access tokens, their verification, and the gate in
// front of every handler.
//
// The server is its own issuer: tokens are EdDSA JWTs signed by one of the keys of a file,
// which are replaced without a token being refused (ring.go). The package owns those keys,
// tokens, the revocations in this process, and the principal in a request's context; it does
// not own users (it asks for their row to be there), what outlives the process (packages
// below identity), nor what a principal may do (package chat).
//
// Concurrency: everything is safe for use by many goroutines. A verified token
// is remembered, so that a request costs a hash and a few lookups.
package auth

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"time"
)

// KeyFile is the name of the key's file in the data directory.
const KeyFile = "auth.key"

const (
	pemType    = "PRIVATE KEY"
	maxKeyFile = 16 << 10 // bytes; a key takes 146, with its headers 240
)

// Key signs and verifies the tokens of one installation, with the keys of one file.
type Key struct {
	path   string
	secret []byte // from which others are derived: that of the file at the start, see root.go
	id     string // of the first key
	ring   atomic.Pointer[ring]
}

// LoadKey reads the key of a data directory, or makes it. Several processes may
// do so at once: all get the same key. Errors fit into one line.
func LoadKey(dir string) (*Key, error) {
	path := filepath.Join(dir, KeyFile)
	k, err := readKey(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return k, err
	}
	if err := createKey(dir, path); err != nil {
		return nil, fmt.Errorf("create %s: %w", path, err)
	}
	return readKey(path)
}

// KeyPath is where a server has its key: the file that is set, or else KeyFile in its data directory.
func KeyPath(set, dataDir string) string {
	if set != "" {
		return set
	}
	return filepath.Join(dataDir, KeyFile)
}

// IssueFrom returns a function that makes tokens for users with the key in a file, each valid for ttl. The file is read
// when the first token is needed; explain words its error. One goroutine uses the function.
func IssueFrom(path string, ttl time.Duration, explain func(error) error) func(user string) (string, error) {
	var key *Key
	return func(user string) (string, error) {
		if key == nil {
			k, err := ReadKey(path)
			if err != nil {
				return "", explain(err)
			}
			key = k
		}
		return key.Issue(user, time.Now(), ttl)
	}
}

// ReadKey reads a file of keys that several processes share, PEM blocks with PKCS #8
// Ed25519 keys, and never makes one. Errors fit into one line.
func ReadKey(path string) (*Key, error) { return readKey(path) }

func readKey(path string) (*Key, error) {
	removeAbandoned(path)
	r, err := readRing(path)
	if err != nil {
		return nil, err
	}
	k := &Key{path: path, secret: r.secret(), id: r.entries[0].id}
	k.ring.Store(r)
	return k, nil
}

// readText reads a file of keys, which is its owner's alone.
func readText(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat() // of the file that is read, even if its name changes meanwhile
	if err != nil {
		return nil, err
	}
	if mode := info.Mode().Perm(); runtime.GOOS != "windows" && mode&0o077 != 0 {
		return nil, fmt.Errorf("%s: others may read it (mode %#o); it must be 0600", path, mode)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxKeyFile+1))
	if err == nil && len(text) > maxKeyFile {
		err = fmt.Errorf("%s: more than %d bytes", path, maxKeyFile)
	}
	return text, err
}

// idOf names a key.
func idOf(private ed25519.PrivateKey) string {
	sum := sha256.Sum256(private.Public().(ed25519.PublicKey))
	return hex.EncodeToString(sum[:8])
}

// createKey writes a key beside its place and links it there, which fails if
// another process was faster; then the other's key counts.
func createKey(dir, path string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	block, _, err := newBlock()
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, KeyFile+freshEnding+"*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) //nolint:errcheck // after success it has another name
	err = writeBlock(f, block)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Link(f.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncDir(dir)
}

// syncDir makes the key's name durable: all tokens, also those of
// synchronisation, are void without it. Windows does so by itself.
func syncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// newBlock makes a key, and what stands for it in a file.
func newBlock() (*pem.Block, ed25519.PrivateKey, error) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	return &pem.Block{Type: pemType, Bytes: der}, private, err
}

// String names the key without telling it, in logs too.
func (k *Key) String() string { return "key " + k.id }

// GoString is String.
func (k *Key) GoString() string { return k.String() }

// LogValue implements slog.LogValuer.
func (k *Key) LogValue() slog.Value { return slog.StringValue(k.String()) }

// Derive makes a secret for another purpose, different for each. It follows from the root secret
// of the file as it was at the start, so that no rotation changes it but RotateRoot, and that
// from the next start on.
func (k *Key) Derive(purpose string, size int) []byte {
	b, err := hkdf.Key(sha256.New, k.secret, nil, "parley "+purpose, size)
	if err != nil {
		panic(err) // only for sizes beyond 8 KiB
	}
	return b
}
