package durable_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/parley-chat/parley/server/infra/durable"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// A file takes the place of none and of another one, for its owner only, also when a process that was killed
// has left something for others to read.
func TestReplace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret")
	for _, content := range []string{"one", "another, longer", ""} {
		testkit.Must(t, os.WriteFile(path+".new", []byte("left by a process that was killed"), 0o644))
		testkit.Must(t, durable.Replace(path, []byte(content)))
		testkit.Equal(t, "the content", string(testkit.Value(os.ReadFile(path))(t)), content)
		if mode := testkit.Value(os.Stat(path))(t).Mode().Perm(); runtime.GOOS != "windows" && mode != 0o600 {
			t.Errorf("mode %#o", mode)
		}
		if _, err := os.Stat(path + ".new"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("beside it: %v", err)
		}
	}
}

// What cannot be made durable is an error, and leaves what was there.
func TestErrors(t *testing.T) {
	dir := t.TempDir()
	missing := filepath.Join(dir, "missing")
	for name, err := range map[string]error{
		"a file in a directory that is missing": durable.Replace(filepath.Join(missing, "f"), nil),
		"a missing file":                        durable.File(missing),
	} {
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := durable.Dir(missing); runtime.GOOS != "windows" && !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing directory: %v", err)
	}
	taken := filepath.Join(dir, "taken")
	testkit.Must(t, os.Mkdir(taken, 0o700))
	if err := durable.Replace(taken, []byte("x")); err == nil {
		t.Error("a directory was replaced")
	}
}
