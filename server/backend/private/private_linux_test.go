//go:build linux

package private

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/parley-chat/parley/server/testkit"
)

func mode(t *testing.T, path string) os.FileMode {
	t.Helper()
	info, err := os.Stat(path)
	testkit.Must(t, err)
	return info.Mode().Perm()
}

// put makes a file, or a directory if the mode says so, whatever the umask is.
func put(t *testing.T, path string, mode os.FileMode) string {
	t.Helper()
	if mode.IsDir() {
		testkit.Must(t, os.Mkdir(path, 0o700))
	} else {
		testkit.Must(t, os.WriteFile(path, nil, 0o600))
	}
	testkit.Must(t, os.Chmod(path, mode.Perm()))
	return path
}

// What the server owns is tightened, also behind a link; what it does not own is left alone,
// and so is a file of keys, which others may have read.
func TestTighten(t *testing.T) {
	dir, elsewhere := t.TempDir(), t.TempDir()
	testkit.Must(t, os.Chmod(dir, 0o755))
	log := put(t, filepath.Join(elsewhere, "log"), os.ModeDir|0o777)
	testkit.Must(t, os.Symlink(log, filepath.Join(dir, "log")))
	want := map[string]os.FileMode{
		dir:                             0o700,
		put(t, log+"/00.dat", 0o666):    0o600,
		log:                             0o700,
		elsewhere:                       mode(t, elsewhere),
		put(t, dir+"/FORMAT", 0o644):    0o600,
		put(t, dir+"/auth.key", 0o644):  0o644,
		put(t, dir+"/notes.txt", 0o644): 0o644,
	}
	store := put(t, dir+"/store", os.ModeDir|0o755)
	want[store], want[put(t, store+"/000001.sst", 0o640)] = 0o700, 0o600
	foreign := put(t, filepath.Join(elsewhere, "foreign"), 0o644)
	testkit.Must(t, os.Symlink(foreign, filepath.Join(store, "link")))
	want[foreign] = 0o644
	testkit.Must(t, Tighten(dir))
	for path, mode0 := range want {
		if got := mode(t, path); got != mode0 {
			t.Errorf("%s has mode %04o, want %04o", path, got, mode0)
		}
	}
	testkit.Must(t, Tighten(filepath.Join(dir, "none")))
}

// A directory of all users is no place for data, and one that is somebody else's cannot be
// tightened: both are said in one line, with what helps.
func TestCannotTighten(t *testing.T) {
	shared := put(t, filepath.Join(t.TempDir(), "tmp"), os.ModeDir|0o777)
	testkit.Must(t, os.Chmod(shared, 0o777|os.ModeSticky))
	if err := Tighten(shared); err == nil || !strings.Contains(err.Error(), filepath.Join(shared, "parley")) ||
		strings.Contains(err.Error(), "\n") {
		t.Error(err)
	}
	if got := mode(t, shared); got != 0o777 {
		t.Errorf("mode %04o", got)
	}
	if os.Getuid() != 0 {
		t.Skip("not run: only root can give a directory away")
	}
	dir := put(t, filepath.Join(t.TempDir(), "data"), os.ModeDir|0o755)
	testkit.Must(t, os.Chown(dir, 12345, 12345))
	for d := dir; d != "/tmp" && d != "/"; d = filepath.Dir(d) { // whom this becomes must get there
		testkit.Must(t, os.Chmod(d, 0o755))
	}
	err := asUser(t, 23456, func() error { return Tighten(dir) })
	if err == nil || !strings.Contains(err.Error(), "mode 0755") || !strings.Contains(err.Error(), "chown") ||
		strings.Contains(err.Error(), "\n") {
		t.Error(err)
	}
}

// asUser calls f on a thread that has another user's rights to files.
func asUser(t *testing.T, uid int, f func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if _, _, e := syscall.RawSyscall(syscall.SYS_SETFSUID, uintptr(uid), 0, 0); e != 0 {
			t.Error(e)
		}
		done <- f()
	}()
	return <-done
}
