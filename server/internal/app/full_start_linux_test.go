package app_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parley-chat/parley/server/infra/testkit"
)

// On a real file system of 1 TB a server with 45 GB free takes writes, and one with 2 GB free
// starts and refuses them.
func TestStartOnALargeDisk(t *testing.T) {
	t.Parallel()
	image := filepath.Join(t.TempDir(), "disk")
	at := t.TempDir()
	shell := func(line string) {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), "sh", "-ec", line).CombinedOutput(); err != nil {
			t.Skipf("not run: a large file system cannot be made here: %v: %s", err, out)
		}
	}
	shell(fmt.Sprintf("truncate -s 1000G %[1]s; mkfs.ext4 -q -m 0 -O ^has_journal -E lazy_itable_init=1 %[1]s; mount -o loop %[1]s %[2]s",
		image, at))
	t.Cleanup(func() {
		// A process that another test has just forked holds the files of this one until it executes its program.
		testkit.Succeeds(t, "unmount", func() error { return exec.Command("umount", at).Run() })
	})
	shell(fmt.Sprintf("fallocate -l 500G %[1]s/a; fallocate -l 440G %[1]s/b", at))
	dir := filepath.Join(at, "data")
	start := func() *screened { return startScreened(t, "--listen", "127.0.0.1:0", "--data-dir", dir) }
	s := start()
	s.as(t, dir, "bob").list(t)
	if _, err := s.as(t, dir, "alice").chats.CreateChat(t.Context(), group()); err != nil ||
		strings.Contains(s.said.String(), "REFUSED") {
		t.Errorf("with 45 GB: %v, %s", err, &s.said)
	}
	s.stop()
	shell(fmt.Sprintf("fallocate -l 42G %s/c", at))
	s = start()
	if _, err := s.as(t, dir, "alice").chats.CreateChat(t.Context(), group()); !isFull(err) ||
		!strings.Contains(s.said.String(), "REFUSED") || !strings.Contains(s.said.String(), "4.0 GB must be") {
		t.Errorf("with 2 GB: %v, %s", err, &s.said)
	}
	s.as(t, dir, "alice").list(t)
	s.stop()
	if err := os.Remove(filepath.Join(at, "c")); err != nil {
		t.Fatal(err)
	}
	s = start()
	if _, err := s.as(t, dir, "alice").chats.CreateChat(t.Context(), group()); err != nil {
		t.Errorf("with room again: %v", err)
	}
	s.stop()
}
