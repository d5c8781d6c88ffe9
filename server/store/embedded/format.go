package embedded

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// The format of the data directory: a reader must know at least formatReader. A
// newer Pebble format needs a newer reader, too, and is never taken by accident.
// Format 1 has items of itemcodec.First only, and formats 1 and 2 have the event log in files of its own.
const (
	formatVersion = 3
	formatReader  = 3
	pebbleFormat  = pebble.FormatValueSeparation
)

// errNoFormat says that the version that wrote the data is unknown.
var errNoFormat = fmt.Errorf("%w", ErrFormat)

const unmarkedRemedy = "put it back, or run the command check --repair, which writes it again if this version can read all data"

// makeDir creates the data directory where it is missing. A new directory is only
// there for good once its parent was synced.
func makeDir(fs vfs.FS, dir string) error {
	parents := []string{fs.PathDir(dir)}
	existed := true
	for d := dir; ; d = fs.PathDir(d) {
		if _, err := fs.Stat(d); !errors.Is(err, os.ErrNotExist) || fs.PathDir(d) == d {
			break
		}
		if existed = false; d != dir {
			parents = append(parents, fs.PathDir(d))
		}
	}
	if err := fs.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("create data directory: %w", plain(err))
	}
	for _, d := range parents {
		// One that was there is synced again, in case the process that made it was
		// killed in between; its parent may be out of reach.
		if err := syncDir(fs, d); err != nil && !existed {
			return err
		}
	}
	return nil
}

// checkFormat reads the FORMAT file: the format's version and the oldest version that can
// read it. It reports whether the directory has an earlier format. A new directory gets
// this version's.
func checkFormat(fs vfs.FS, dir string) (earlier bool, err error) {
	path := formatPath(fs, dir)
	f, err := fs.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		// The file is written before the store is made. If a store exists without it, a
		// user has removed the file, and perhaps with it the version that a newer release
		// wrote.
		if _, err := fs.Stat(fs.PathJoin(dir, "store")); err == nil {
			return false, fmt.Errorf("%s: %w: the FORMAT file is missing: %s", dir, errNoFormat, unmarkedRemedy)
		}
		return false, writeFormat(fs, dir)
	}
	if err != nil {
		return false, fmt.Errorf("read format: %w", plain(err))
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 256))
	if err != nil {
		return false, fmt.Errorf("read format: %w", plain(err))
	}
	fields := strings.Fields(string(b))
	if len(fields) != 3 || fields[0] != "parley" {
		return false, fmt.Errorf("%s: %w: the FORMAT file is not Parley's: %s", dir, errNoFormat, unmarkedRemedy)
	}
	version, err := strconv.Atoi(fields[1])
	reader, err2 := strconv.Atoi(fields[2])
	if err != nil || err2 != nil {
		return false, fmt.Errorf("%s: %w: the FORMAT file is not Parley's: %s", dir, errNoFormat, unmarkedRemedy)
	}
	if reader > formatVersion {
		return false, fmt.Errorf("%s: %w: it needs format %s, this version knows %d",
			dir, ErrFormat, fields[2], formatVersion)
	}
	return version < formatVersion, nil
}

func formatPath(fs vfs.FS, dir string) string { return fs.PathJoin(dir, "FORMAT") }

// writeFormat says that the directory has this version's format. Nothing of the format may
// be written before.
func writeFormat(fs vfs.FS, dir string) error {
	path := formatPath(fs, dir)
	tmp := path + ".new"
	f, err := fs.Create(tmp, vfs.WriteCategoryUnspecified)
	if err != nil {
		return fmt.Errorf("write format: %w", plain(err))
	}
	_, err = fmt.Fprintf(f, "parley %d %d\n", formatVersion, formatReader)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = fs.Rename(tmp, path)
	}
	if err != nil {
		return fmt.Errorf("write format: %w", plain(err))
	}
	return syncDir(fs, dir)
}

func syncDir(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return fmt.Errorf("sync directory: %w", plain(err))
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("sync directory: %w", plain(err))
	}
	return nil
}

// carrier is a line of Pebble's errors about damaged files that says nothing.
const carrier = "<corruption detail carrier>"

// plain takes the path's repetition out of file errors, and makes what Pebble says in
// several lines one.
func plain(err error) error {
	if text := err.Error(); strings.Contains(text, "\n") {
		lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' })
		lines = slices.DeleteFunc(lines, func(l string) bool { return l == carrier })
		return oneLine{err, strings.Join(lines, "; ")}
	}
	var pe *os.PathError
	if errors.As(err, &pe) {
		return fmt.Errorf("%s: %w", pe.Path, pe.Err)
	}
	return err
}

// oneLine is an error whose text has no line breaks.
type oneLine struct {
	error
	text string
}

func (e oneLine) Error() string { return e.text }

func (e oneLine) Unwrap() error { return e.error }
