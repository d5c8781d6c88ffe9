package auth

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/subtle"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Headers of a key in its file, both RFC 3339 in UTC. Without the first a key signs from the
// beginning, without the second it is accepted for good.
const (
	headerSigns    = "Signs-From"
	headerAccepted = "Accepted-Until"
)

// pemBegin and pemEnd are in each block once.
const (
	pemBegin = "-----BEGIN "
	pemEnd   = "-----END "
)

// maxKeys bounds the keys of a file.
const maxKeys = 16

// DefaultNotice is how long a new key is known before it signs, unless something else is
// asked for: in that time every process must have got the file, and every reader of the
// published keys must have read them again.
const DefaultNotice = 10 * time.Minute

// WatchEvery is how often processes check the file: far less than a notice.
const WatchEvery = 2 * time.Second

// ring is the keys of a file at one time; it never changes. The file alone says which key
// signs and which ones are accepted, so that processes with the same file agree.
type ring struct {
	entries []entry // in the order of the file
	byID    map[string]*entry
	root    *root  // nil: the first key is it
	text    string // of the file
}

type entry struct {
	private ed25519.PrivateKey
	id      string
	signs   time.Time // zero: from the beginning
	until   time.Time // zero: for good
}

func readRing(path string) (*ring, error) {
	text, err := readText(path)
	if err != nil {
		return nil, err
	}
	r, err := parseRing(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

func parseRing(text []byte) (*ring, error) {
	r := &ring{text: string(text), byID: map[string]*entry{}}
	rest := text
	for {
		before, _, _ := bytes.Cut(rest, []byte(pemBegin))
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if err := r.add(block, before); err != nil {
			return nil, err
		}
	}
	blocks := len(r.entries)
	if r.root != nil {
		blocks++
	}
	switch {
	case len(r.entries) == 0 || len(r.entries) > maxKeys:
		return nil, fmt.Errorf("not a PEM private key, nor 2 to %d", maxKeys)
	case len(bytes.TrimSpace(rest)) > 0, bytes.Count(text, []byte(pemBegin)) != blocks,
		bytes.Count(text, []byte(pemEnd)) != blocks:
		// Decoding passes over what is no block, as one that is half written, or whose first line is damaged.
		return nil, errors.New("something in it is no whole PEM private key")
	}
	for i := range r.entries {
		if r.byID[r.entries[i].id] != nil {
			return nil, fmt.Errorf("key %s stands there twice", r.entries[i].id)
		}
		r.byID[r.entries[i].id] = &r.entries[i]
	}
	return r, nil
}

// add takes a block of the file over, with the text before it.
func (r *ring) add(block *pem.Block, before []byte) (err error) {
	if err := compareChecksum(block, before); err != nil {
		return err
	}
	if block.Type == rootType {
		if r.root != nil {
			return errors.New("two root secrets")
		}
		r.root, err = readRoot(block)
		return err
	}
	e, err := readEntry(block)
	r.entries = append(r.entries, e)
	return err
}

func readEntry(block *pem.Block) (e entry, err error) {
	if block.Type != pemType {
		return e, errors.New("not a PEM private key")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return e, errors.New("not a PKCS #8 key")
	}
	private, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return e, errors.New("not an Ed25519 key")
	}
	e = entry{private: private, id: idOf(private)}
	for name, at := range map[string]*time.Time{headerSigns: &e.signs, headerAccepted: &e.until} {
		if text, ok := block.Headers[name]; ok {
			if *at, err = time.Parse(time.RFC3339, text); err != nil {
				return e, fmt.Errorf("key %s: %s is no time of RFC 3339", e.id, name)
			}
		}
	}
	return e, nil
}

func (e *entry) accepted(now time.Time) bool {
	return e.until.IsZero() || now.Before(e.until.Add(leeway))
}

// signer is the key whose turn it is: of those that sign by now, the last to have begun.
func (r *ring) signer(now time.Time) *entry {
	best := &r.entries[0]
	for i := range r.entries[1:] {
		if e := &r.entries[i+1]; !now.Before(e.signs) && !e.signs.Before(best.signs) {
			best = e
		}
	}
	return best
}

// verifier is the key of a name, nil unless it is accepted. A key is accepted before it
// signs: another process may have begun.
func (r *ring) verifier(id string, now time.Time) *entry {
	e := r.byID[id]
	if e == nil || !e.accepted(now) {
		return nil
	}
	return e
}

// lacks reports whether a key of another ring is accepted no more that was there.
func (r *ring) lacks(before *ring, now time.Time) bool {
	return slices.ContainsFunc(before.entries, func(e entry) bool {
		return e.accepted(now) && r.verifier(e.id, now) == nil
	})
}

// Reload reads the file again. On an error, also of a file with another root secret that does
// not follow on the one of the start, the keys stay as they were.
func (k *Key) Reload() (changed bool, err error) {
	r, err := readRing(k.path)
	if err != nil {
		return false, err
	}
	if !r.follows(k.secret) {
		return false, fmt.Errorf("%s has another root secret (its first key, where it has none of its own) than at the start, which would end links and synchronisations: restart all processes with it, or put the one of before back", k.path)
	}
	if r.text == k.ring.Load().text {
		return false, nil
	}
	k.ring.Store(r)
	return true, nil
}

// Info is what may be shown of a key.
type Info struct {
	ID      string
	Signs   time.Time // from when on it signs; zero: from the beginning
	Until   time.Time // until when it is accepted; zero: for good
	Signing bool      // it is the one that signs
}

// Keys describes the keys of the file, in its order.
func (k *Key) Keys(now time.Time) []Info {
	r := k.ring.Load()
	list := make([]Info, len(r.entries))
	for i, e := range r.entries {
		list[i] = Info{ID: e.id, Signs: e.signs, Until: e.until, Signing: r.signer(now) == &r.entries[i]}
	}
	return list
}

// JWKS is the document of the public keys that are accepted, after RFC 7517 and RFC 8037.
func (k *Key) JWKS(now time.Time) []byte {
	type key struct {
		Type      string `json:"kty"`
		Curve     string `json:"crv"`
		Algorithm string `json:"alg"`
		Use       string `json:"use"`
		ID        string `json:"kid"`
		X         string `json:"x"`
	}
	document := struct {
		Keys []key `json:"keys"`
	}{Keys: []key{}}
	for _, e := range k.ring.Load().entries {
		if e.accepted(now) {
			x := base64.RawURLEncoding.EncodeToString(e.private.Public().(ed25519.PublicKey))
			document.Keys = append(document.Keys, key{"OKP", "Ed25519", "EdDSA", "sig", e.id, x})
		}
	}
	text, err := json.Marshal(document)
	if err != nil {
		panic(err) // of strings only
	}
	return text
}

// Rotate adds a key to a file, which signs from notice after now on; the key that signs
// until then is accepted for MaxTTL longer. With a notice of 0 the change is at once: the
// other keys are accepted no more, which ends their tokens, as after a theft. Keys that are
// over are removed, but the first one stays where it is the root secret. Errors fit into one
// line.
func Rotate(path string, now time.Time, notice time.Duration) (Info, error) {
	return rotate(path, now, notice, func(r *ring) (*root, error) { return r.root, nil })
}

// rotate is Rotate, with a root secret in place of what is there.
func rotate(path string, now time.Time, notice time.Duration, next func(*ring) (*root, error)) (Info, error) {
	path, err := filepath.EvalSymlinks(path) // the file is replaced, not a link to it
	if err != nil {
		return Info{}, err
	}
	lock := path + lockEnding
	f, err := os.OpenFile(lock, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, os.ErrExist) {
		return Info{}, fmt.Errorf("%s exists: another process rotates the keys; if none does, remove the file", lock)
	}
	if err != nil {
		return Info{}, err
	}
	defer os.Remove(lock) //nolint:errcheck // the next rotation says so
	if err := f.Close(); err != nil {
		return Info{}, err
	}
	r, err := readRing(path)
	if err != nil {
		return Info{}, err
	}
	now = now.UTC().Truncate(time.Second)
	signs := now.Add(notice)
	for _, e := range r.entries {
		if notice > 0 && e.signs.After(now) {
			return Info{}, fmt.Errorf("key %s signs from %s on: the last rotation is not over", e.id,
				e.signs.Format(time.RFC3339))
		}
	}
	secret, err := next(r)
	if err != nil {
		return Info{}, err
	}
	kept := r.succeeded(now, signs, notice == 0, secret)
	if len(kept) >= maxKeys {
		return Info{}, fmt.Errorf("%s has %d keys that are still accepted, which is as many as can be", path, len(kept))
	}
	_, private, err := newBlock()
	if err != nil {
		return Info{}, err
	}
	e := entry{private: private, id: idOf(private), signs: signs}
	return Info{ID: e.id, Signs: signs}, replaceRing(path, secret, append(kept, e))
}

// succeeded returns the keys once another one signs from a time on, without those that are over.
func (r *ring) succeeded(now, signs time.Time, atOnce bool, secret *root) []entry {
	var kept []entry
	for i, e := range r.entries {
		switch {
		case atOnce:
			e.until = now.Add(-leeway) // which verification adds
		case e.until.IsZero():
			e.until = signs.Add(MaxTTL)
		}
		if i == 0 && secret == nil || e.accepted(now) {
			kept = append(kept, e)
		}
	}
	return kept
}

// replaceRing writes a file of keys in place of the one that is there.
func replaceRing(path string, secret *root, entries []entry) error {
	var text strings.Builder
	if secret != nil {
		if err := writeBlock(&text, secret.block()); err != nil {
			return err
		}
	}
	for _, e := range entries {
		der, err := x509.MarshalPKCS8PrivateKey(e.private)
		if err != nil {
			return err
		}
		block := &pem.Block{Type: pemType, Bytes: der, Headers: map[string]string{}}
		for name, at := range map[string]time.Time{headerSigns: e.signs, headerAccepted: e.until} {
			if !at.IsZero() {
				block.Headers[name] = at.UTC().Format(time.RFC3339)
			}
		}
		if err := writeBlock(&text, block); err != nil {
			return err
		}
	}
	return replaceFile(path, text.String())
}

// KeyWatch reads the file of a key again when it changed.
type KeyWatch struct {
	Key    *Key
	Logger *slog.Logger
	// Ended, if given, is called when a key that was accepted is accepted no more: the streams
	// and sessions of its tokens must end, too.
	Ended func()
}

// Run watches the file until ctx ends. A file that cannot be read is logged once, and changes
// nothing.
func (w *KeyWatch) Run(ctx context.Context, ready func()) error {
	ready()
	k, log := w.Key, w.Logger
	tick := time.NewTicker(WatchEvery)
	defer tick.Stop()
	last := ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		before := k.ring.Load()
		changed, err := k.Reload()
		text := ""
		if err != nil {
			text = err.Error()
		}
		switch {
		case text != last && err != nil:
			log.Error("the file of keys cannot be used; the keys stay as they are", "error", err)
		case changed:
			log.Info("the keys changed", "keys", len(k.ring.Load().entries))
			if subtle.ConstantTimeCompare(k.ring.Load().secret(), k.secret) != 1 {
				log.Warn("the root secret was replaced: this process uses the one before until it is started again")
			}
			if now := time.Now(); w.Ended != nil && k.ring.Load().lacks(before, now) {
				w.Ended()
			}
		}
		last = text
	}
}
