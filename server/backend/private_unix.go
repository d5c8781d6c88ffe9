//go:build unix

package backend

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
)

// Modes of what the server owns.
const (
	dirMode  fs.FileMode = 0o700
	fileMode fs.FileMode = 0o600
	others   fs.FileMode = 0o077
)

// owned are the names in a data directory that the server has made. An operator may keep other
// files there. The file of keys is not among them: one that others could read is refused when
// it is read, because the keys may be known.
var owned = []string{"FORMAT", "LOCK", "SEAL", "kafka.properties", "log", "store", "store.new"}

// empty are names that a data directory may have before the first start: lost+found is in the
// root of a disk, and an operator puts the file of keys there.
var empty = []string{"auth.key", "lost+found"}

// makePrivate takes the permissions of other users from a data directory and from all that the
// server owns in it. A directory that is not there yet is left to its maker. One with foreign
// files and no data of Parley's is not changed, because a wrong setting may name it. The error
// fits into one line, and says what helps.
func makePrivate(dir string) error {
	info, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || !info.IsDir() {
		return err // the opening says what is wrong with something else
	}
	if info.Mode()&fs.ModeSticky != 0 && info.Mode().Perm()&others != 0 {
		return fmt.Errorf("%s is shared by all users of this machine: choose a directory of the server's own, such as %s",
			dir, filepath.Join(dir, "parley"))
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(entries, isForeign); i >= 0 && !slices.ContainsFunc(entries, isFormat) &&
		info.Mode().Perm()&others != 0 {
		return fmt.Errorf("%s has files of others, such as %s, and other users of this machine may use it: choose a "+
			"directory of the server's own, such as %s, or take their permissions away with chmod 700", dir,
			entries[i].Name(), filepath.Join(dir, "parley"))
	}
	if err := tighten(dir, info); err != nil {
		return err
	}
	for _, e := range entries {
		if slices.Contains(owned, e.Name()) {
			if err := tightenAll(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

func isForeign(e fs.DirEntry) bool {
	return !slices.Contains(owned, e.Name()) && !slices.Contains(empty, e.Name())
}

func isFormat(e fs.DirEntry) bool { return e.Name() == "FORMAT" }

// tightenAll tightens a file, or a directory and all below. An operator may have put a link in
// place of it, to another disk; the server makes no links itself. A link of another user is
// refused: in a directory that was open to others, it may lead to anything.
func tightenAll(path string) error {
	if info, err := os.Lstat(path); err == nil && info.Mode()&fs.ModeSymlink != 0 {
		owner, ok := info.Sys().(*syscall.Stat_t)
		if ok && owner.Uid != 0 && int(owner.Uid) != os.Geteuid() {
			return fmt.Errorf("%s is a link of another user: remove it", path)
		}
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return unlessGone(err)
	}
	return filepath.WalkDir(real, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrPermission) && e != nil && e.Name() == "lost+found" {
			return fs.SkipDir // the link leads to the root of a disk
		}
		if err != nil {
			return unlessGone(err)
		}
		if e.Type()&fs.ModeSymlink != 0 {
			return nil
		}
		info, err := e.Info()
		if err != nil {
			return unlessGone(err)
		}
		return tighten(path, info)
	})
}

// unlessGone leaves out what a server that runs on the directory has removed meanwhile: the lock,
// which is taken later, tells the two apart.
func unlessGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func tighten(path string, info fs.FileInfo) error {
	if info.Mode().Perm()&others == 0 {
		return nil
	}
	mode := fileMode
	if info.IsDir() {
		mode = dirMode
	}
	err := unlessGone(os.Chmod(path, mode))
	if err == nil {
		return nil
	}
	if inner := (*fs.PathError)(nil); errors.As(err, &inner) {
		err = inner.Err
	}
	return fmt.Errorf("other users of this machine may use %s (mode %04o), and it cannot be changed: %w; "+
		"make it the server's user's own with chown, or choose a data-dir that is, such as a directory in it", path,
		info.Mode().Perm(), err)
}
