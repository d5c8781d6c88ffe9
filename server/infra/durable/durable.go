// Package durable puts files where they are found after a crash of the machine, too.
//
// It owns the order of writing, syncing and naming. It does not own what is in files. Its functions may be
// called by many goroutines, for different files.
package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
)

// Replace puts a file, for its owner only, in the place of another one or of none. After a crash there is one of the
// two, whole. Temporary files of an earlier process are removed.
func Replace(path string, content []byte) error {
	fresh := path + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(fresh, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(fresh, path); err != nil {
		return err
	}
	return Dir(filepath.Dir(path))
}

// Dir makes the names in a directory durable, which Windows does by itself.
func Dir(path string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	return syncPath(path, os.O_RDONLY)
}

// File makes the content of a file durable that was written before.
func File(path string) error { return syncPath(path, os.O_RDWR) }

func syncPath(path string, flag int) error {
	f, err := os.OpenFile(path, flag, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
