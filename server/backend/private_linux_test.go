//go:build linux

package backend

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/parley-chat/parley/server/infra/testkit"
)

func mode(t *testing.T, path string) os.FileMode {
	t.Helper()
	info, err := os.Stat(path)
	testkit.Must(t, err)
	return info.Mode().Perm()
}

// put makes a file, or a directory if the mode says so, and sets its mode regardless of the umask.
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
	t.Parallel()
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
	testkit.Must(t, makePrivate(dir))
	for path, mode0 := range want {
		if got := mode(t, path); got != mode0 {
			t.Errorf("%s has mode %04o, want %04o", path, got, mode0)
		}
	}
	testkit.Must(t, makePrivate(filepath.Join(dir, "none")))
}

// A directory that all users share, and one of another user whose modes cannot be changed, are
// refused in one line that says what helps.
func TestCannotTighten(t *testing.T) {
	t.Parallel()
	shared := put(t, filepath.Join(t.TempDir(), "tmp"), os.ModeDir|0o777)
	testkit.Must(t, os.Chmod(shared, 0o777|os.ModeSticky))
	if err := makePrivate(shared); err == nil || !strings.Contains(err.Error(), filepath.Join(shared, "parley")) ||
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
	testkit.Must(t, os.Chmod(filepath.Dir(dir), 0o755)) // which the test made
	var there error
	err := asUser(t, 23456, func() error {
		_, there = os.Stat(dir)
		return makePrivate(dir)
	})
	if there != nil {
		t.Skipf("not run: other users cannot reach the directory of the test: %v", there)
	}
	if err == nil || !strings.Contains(err.Error(), "mode 0755") || !strings.Contains(err.Error(), "chown") ||
		strings.Contains(err.Error(), "\n") {
		t.Error(err)
	}
}

// A directory with files of others keeps its mode unless it has data of Parley's: a setting may
// name it by mistake. A disk of the server's own is not empty either.
func TestTightenLeavesForeignDirectories(t *testing.T) {
	t.Parallel()
	foreign := t.TempDir()
	put(t, foreign+"/letter.txt", 0o644)
	for _, m := range []os.FileMode{0o755, 0o770} {
		testkit.Must(t, os.Chmod(foreign, m))
		if err := makePrivate(foreign); err == nil || !strings.Contains(err.Error(), "letter.txt") ||
			!strings.Contains(err.Error(), filepath.Join(foreign, "parley")) || strings.Contains(err.Error(), "\n") {
			t.Error(err)
		}
		if got := mode(t, foreign); got != m {
			t.Errorf("the mode is %04o, was %04o", got, m)
		}
	}
	testkit.Must(t, os.Chmod(foreign, 0o700))
	testkit.Must(t, makePrivate(foreign))

	disk := t.TempDir()
	put(t, disk+"/lost+found", os.ModeDir|0o700)
	put(t, disk+"/auth.key", 0o600)
	testkit.Must(t, os.Chmod(disk, 0o755))
	testkit.Must(t, makePrivate(disk))
	if got := mode(t, disk); got != 0o700 {
		t.Errorf("a disk has mode %04o", got)
	}
}

// A link that another user has put into the directory is not followed.
func TestTightenFollowsNoForeignLink(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("not run: only root can give a link away")
	}
	dir, foreign := t.TempDir(), t.TempDir()
	put(t, dir+"/FORMAT", 0o600)
	testkit.Must(t, os.Symlink(put(t, foreign+"/etc", os.ModeDir|0o755), dir+"/log"))
	testkit.Must(t, os.Lchown(dir+"/log", 12345, 12345))
	if err := makePrivate(dir); err == nil || !strings.Contains(err.Error(), "link of another user") {
		t.Error(err)
	}
	if got := mode(t, foreign+"/etc"); got != 0o755 {
		t.Errorf("the link was followed: mode %04o", got)
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
