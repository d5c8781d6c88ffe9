package auth

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// What a process left beside the file that was ended in the middle is removed at the next
// start, and nothing that somebody put there, or is at work on.
func TestAbandonedFilesAreRemoved(t *testing.T) {
	now := testTime
	p := newProcess(t, nil, &now)
	old := time.Now().Add(-time.Hour)
	stay := []string{KeyFile + ".bak", KeyFile + ".new-", KeyFile + ".new-x", KeyFile + ".1", "other.new-1"}
	for _, name := range append(slices.Clone(stay), KeyFile+".new-123", KeyFile+".rotating") {
		path := filepath.Join(filepath.Dir(p.path), name)
		if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, old, old); err != nil {
			t.Fatal(err)
		}
	}
	young := filepath.Join(filepath.Dir(p.path), KeyFile+".new-7")
	if err := os.WriteFile(young, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p.load(t)
	files, err := os.ReadDir(filepath.Dir(p.path))
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, f := range files {
		left = append(left, f.Name())
	}
	want := append(stay, KeyFile, filepath.Base(young))
	slices.Sort(want)
	if !slices.Equal(left, want) {
		t.Errorf("left are %q, not %q", left, want)
	}
	if _, err := Rotate(p.path, now, time.Minute); err != nil {
		t.Error("the rotation that was broken off stops others:", err)
	}
}

// A link to the file stays one, and the file keeps its mode.
func TestRotationKeepsTheLink(t *testing.T) {
	now := testTime
	p := newProcess(t, nil, &now)
	if err := os.Chmod(p.path, 0o400); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "key")
	if err := os.Symlink(p.path, link); err != nil {
		t.Skip(err)
	}
	if _, err := Rotate(link, now, time.Minute); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Error("the link was replaced", err)
	}
	if info, err := os.Stat(p.path); err != nil || info.Mode().Perm() != 0o400 {
		t.Error(info, err)
	}
	if n := strings.Count(string(p.text(t)), "BEGIN"); n != 2 {
		t.Errorf("%d keys", n)
	}
}
