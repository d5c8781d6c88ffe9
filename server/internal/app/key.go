package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/store"
)

// keyPath is where the key is that signs tokens, and from which other secrets are derived.
func (c Config) keyPath() string { return auth.KeyPath(c.KeyFile, c.DataDir) }

// readKey reads the key of a server that has made it.
func (c Config) readKey() (*auth.Key, error) { return auth.ReadKey(c.keyPath()) }

// loadKey reads the key, or makes one in the data directory where used says that there are
// no data yet.
func (c Config) loadKey(used func() (bool, error)) (*auth.Key, error) {
	k, err := c.readKey()
	path := c.keyPath()
	if err == nil || c.KeyFile != "" {
		return k, err
	}
	if info, failed := os.Stat(path); failed == nil && info.Mode().Perm()&0o077 == 0 {
		return nil, fmt.Errorf("%w: %s", err, otherKey(path)) // its content is wrong
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return k, err
	}
	// With another key everybody would have to sign in and to synchronise again.
	if data, err := used(); err != nil || data {
		return nil, errors.Join(err, fmt.Errorf("%s is missing, and there are data: %s", path, otherKey(path)))
	}
	return auth.LoadKey(c.DataDir)
}

// otherKey is what to do about a key that is lost.
func otherKey(path string) string {
	return fmt.Sprintf("put it back, or make another, which ends all sessions (openssl genpkey -algorithm ed25519 -out %s, mode 0600)",
		path)
}

// issuer makes tokens with the key of a server. It needs the key's file only, so it works while a server runs, and
// makes no key: that of an empty directory would be no server's.
func (c Config) issuer() func(user string) (string, error) {
	return auth.IssueFrom(c.keyPath(), tokenTTL, c.explainNoKey)
}

// explainNoKey says what to do where there is no key to make a token with.
func (c Config) explainNoKey(err error) error {
	switch {
	case !errors.Is(err, fs.ErrNotExist) || c.KeyFile != "":
		return err
	case c.hasStore():
		return fmt.Errorf("%s is missing, and there are data: put it back", c.keyPath())
	default:
		return fmt.Errorf("%s holds no key yet: start the server there first, or say with --data-dir where it runs",
			c.DataDir)
	}
}

// hasStore says whether there are data, by the files alone.
func (c Config) hasStore() bool {
	_, err := os.Stat(filepath.Join(c.DataDir, "store"))
	return err == nil
}

// hasUsers says whether there are data, by the users: a first start that was cut off left
// a store without any.
func hasUsers(ctx context.Context, st store.Store) func() (bool, error) {
	return func() (bool, error) {
		page, err := st.Scan(ctx, store.Scan{Table: store.Users, Segments: 1, Limit: 1})
		return err == nil && len(page.Rows) > 0, err
	}
}
