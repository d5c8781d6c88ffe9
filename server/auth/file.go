package auth

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Files beside a file of keys: what is to take its place, and what keeps two rotations apart.
const (
	freshEnding = ".new-" // and a number
	lockEnding  = ".rotating"
)

// abandoned is the age from which such a file is no longer in use.
const abandoned = 10 * time.Minute

// replaceFile replaces an existing file by one with a text and the same owner and mode:
// every user that could read it still can.
func replaceFile(path, text string) error {
	old, err := os.Stat(path)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+freshEnding+"*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) //nolint:errcheck // after success it has another name
	if _, err = f.WriteString(text); err == nil {
		err = errors.Join(giveTo(f, old), f.Chmod(old.Mode().Perm()), f.Sync())
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// removeAbandoned removes what is left beside a file of keys by a process that was ended in
// the middle: secrets, and what stops the next rotation. It does what it may.
func removeAbandoned(path string) {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	dir, name := filepath.Split(path)
	files, err := os.ReadDir(filepath.Clean(dir + "."))
	if err != nil {
		return
	}
	for _, f := range files {
		rest, ok := strings.CutPrefix(f.Name(), name)
		if !ok || rest != lockEnding && !isFresh(rest) {
			continue
		}
		if info, err := f.Info(); err == nil && info.Mode().IsRegular() && time.Since(info.ModTime()) > abandoned {
			_ = os.Remove(dir + f.Name())
		}
	}
}

// isFresh reports whether a file's name ends as one that replaceFile makes, and not as one
// that a user put there.
func isFresh(ending string) bool {
	number, ok := strings.CutPrefix(ending, freshEnding)
	return ok && number != "" && strings.Trim(number, "0123456789") == ""
}
