//go:build unix

package auth

import (
	"os"
	"syscall"
	"testing"
	"time"
)

// Whoever rotates, the file stays its owner's: the server must be able to read it.
func TestRotationKeepsTheOwner(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can give files away")
	}
	now := testTime
	p := newProcess(t, nil, &now)
	if err := os.Chown(p.path, 12345, 54321); err != nil {
		t.Fatal(err)
	}
	if _, err := Rotate(p.path, now, time.Minute); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(p.path)
	if err != nil {
		t.Fatal(err)
	}
	if s := info.Sys().(*syscall.Stat_t); s.Uid != 12345 || s.Gid != 54321 || info.Mode().Perm() != 0o600 {
		t.Errorf("the file belongs to %d:%d now, mode %v", s.Uid, s.Gid, info.Mode())
	}
}
