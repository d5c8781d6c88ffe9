// Package auth knows who is calling: access tokens, their verification, and the
// gate in front of every handler.
//
// For development the server is its own issuer: tokens are EdDSA JWTs signed by
// a key in the data directory. The package owns that key, tokens, and the
// principal in a request's context; it does not own users (it asks for their row
// to be there) nor what a principal may do (package chat).
//
// Concurrency: everything is safe for use by many goroutines. A verified token
// is remembered, so that a request costs a hash and a lookup.
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
)

// KeyFile is the name of the key's file in the data directory.
const KeyFile = "auth.key"

const (
	pemType    = "PRIVATE KEY"
	maxKeyFile = 4 << 10 // bytes; a key takes 119
)

// Key signs and verifies the tokens of one data directory.
type Key struct {
	private ed25519.PrivateKey
	id      string
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

// ReadKey reads a key that several processes share, a PEM file with a PKCS #8 Ed25519
// key, and never makes one. Errors fit into one line.
func ReadKey(path string) (*Key, error) { return readKey(path) }

func readKey(path string) (*Key, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat() // of what is read, whatever happens to the name meanwhile
	if err != nil {
		return nil, err
	}
	if mode := info.Mode().Perm(); runtime.GOOS != "windows" && mode&0o077 != 0 {
		return nil, fmt.Errorf("%s: others may read it (mode %#o); it must be 0600", path, mode)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxKeyFile))
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil || block.Type != pemType {
		return nil, fmt.Errorf("%s: not a PEM private key", path)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: not a PKCS #8 key", path)
	}
	private, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%s: not an Ed25519 key", path)
	}
	return newKey(private), nil
}

func newKey(private ed25519.PrivateKey) *Key {
	sum := sha256.Sum256(private.Public().(ed25519.PublicKey))
	return &Key{private: private, id: hex.EncodeToString(sum[:8])}
}

// createKey writes a key beside its place and links it there, which fails if
// another process was faster; then the other's key counts.
func createKey(dir, path string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, KeyFile+".*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	err = pem.Encode(f, &pem.Block{Type: pemType, Bytes: der})
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

// String names the key without telling it, in logs too.
func (k *Key) String() string { return "key " + k.id }

// GoString is String.
func (k *Key) GoString() string { return k.String() }

// LogValue implements slog.LogValuer.
func (k *Key) LogValue() slog.Value { return slog.StringValue(k.String()) }

// Derive makes a secret for another purpose, different for each.
func (k *Key) Derive(purpose string, size int) []byte {
	b, err := hkdf.Key(sha256.New, k.private.Seed(), nil, "parley "+purpose, size)
	if err != nil {
		panic(err) // only for sizes beyond 8 KiB
	}
	return b
}
