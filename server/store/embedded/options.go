package embedded

import (
	"fmt"
	"io"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Pebble writes a file OPTIONS-n at each opening, and the next opening compares its own options with
// it. This package always opens with the same comparer, so the file has nothing that is needed; but
// Pebble opens no database whose file cannot be parsed.
const optionsPrefix = "OPTIONS-"

// withoutOptions hides these files. It is for a read-only database, which neither writes nor removes
// any.
type withoutOptions struct{ vfs.FS }

// List implements vfs.FS.
func (f withoutOptions) List(dir string) (names []string, err error) {
	all, err := f.FS.List(dir)
	for _, name := range all {
		if !strings.HasPrefix(name, optionsPrefix) {
			names = append(names, name)
		}
	}
	return names, err
}

// Unwrap implements vfs.FS.
func (f withoutOptions) Unwrap() vfs.FS { return f.FS }

// removeBadOptions removes such files that Pebble would refuse, and logs that. It writes another.
func removeBadOptions(o Options, dir string, opts *pebble.Options) error {
	opts.EnsureDefaults()
	names, err := o.FS.List(dir)
	if err != nil {
		return fmt.Errorf("open store: %w", plain(err))
	}
	for _, name := range names {
		if !strings.HasPrefix(name, optionsPrefix) {
			continue
		}
		path := o.FS.PathJoin(dir, name)
		text, err := readAll(o.FS, path)
		if err == nil {
			err = opts.CheckCompatibility(dir, text)
		}
		if err == nil {
			continue
		}
		o.Logger.Warn("a file of the store's options was damaged; it is written again", "file", path, "error", err)
		if err := o.FS.Remove(path); err != nil {
			return fmt.Errorf("open store: %w", plain(err))
		}
	}
	return nil
}

func readAll(fs vfs.FS, path string) (string, error) {
	f, err := fs.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	return string(b), err
}
