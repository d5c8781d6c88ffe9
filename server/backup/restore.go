package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/parley-chat/parley/server/backup/bucket"
	"github.com/parley-chat/parley/server/infra/durable"
)

// Find resolves what a person names as a backup: an archive, a backup, or a directory of
// backups or a place in S3, of which it is the newest.
func Find(ctx context.Context, path string) (string, error) {
	if bucket.Is(path) {
		p, key, err := openPool(ctx, path)
		if err != nil || key != "" {
			return path, err
		}
		key, err = p.Find(ctx)
		return p.Objects.URL(key), err
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if !info.IsDir() {
		if !IsArchive(path) {
			return "", fmt.Errorf("%s is no backup: neither a directory nor a file *%s", path, archive)
		}
		return path, nil
	}
	if _, err := os.Stat(filepath.Join(path, ListFile)); err == nil {
		return path, nil
	}
	paths, err := All(path)
	if err != nil {
		return "", err
	}
	if len(paths) == 0 {
		return "", fmt.Errorf("%w in %s", ErrNone, path)
	}
	return paths[len(paths)-1], nil
}

// Packed reports whether a backup must be extracted before its files can be read.
func Packed(path string) bool { return IsArchive(path) || bucket.Is(path) }

// Verify reads all of a backup, which is not in S3, and compares it with its list. Errors: those that wrap
// ErrDamaged name the first file that is not as it was written.
func Verify(ctx context.Context, path string, p Progress) error {
	m := &meter{ctx: ctx, progress: p}
	if IsArchive(path) {
		m.progress = nil // the size of what it has is known at its end
		return readArchive(path, m, discard)
	}
	list, err := ReadList(path)
	if err != nil {
		return err
	}
	m.total = list.Bytes()
	for _, f := range list.Files {
		if err := check(path, f, m); err != nil {
			return err
		}
	}
	return nil
}

// Extract writes a backup's files into a directory that is not there yet, and compares each
// with the list.
func Extract(ctx context.Context, path, to string, p Progress) error {
	if bucket.Is(path) {
		pool, key, err := openPool(ctx, path)
		if err != nil {
			return err
		}
		return pool.Extract(ctx, key, to, p)
	}
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	m := &meter{ctx: ctx, progress: p}
	if IsArchive(path) {
		m.progress = nil
		return extractArchive(path, to, m)
	}
	list, err := ReadList(path)
	if err != nil {
		return err
	}
	m.total = list.Bytes()
	var g *errgroup.Group
	g, m.ctx = errgroup.WithContext(ctx)
	g.SetLimit(copiers)
	for _, f := range list.Files {
		g.Go(func() error { return extractFile(path, to, f, m) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return syncNames(to, list.Files)
}

// copiers is how many files are copied at a time: each is read, hashed, written and synced in turn.
const copiers = 8

// extractFile copies a file of a backup, and compares what it copied with the list.
func extractFile(path, to string, f File, m *meter) error {
	source, target := filepath.Join(path, filepath.FromSlash(f.Path)), filepath.Join(to, filepath.FromSlash(f.Path))
	if err := checkSize(source, f.Size); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o700); err != nil {
		return err
	}
	sum, err := copyFile(target, source, f.Size, m)
	if err == nil && sum != f.SHA256 {
		err = fmt.Errorf("%w: %s has another content than it was written with", ErrDamaged, source)
	}
	if err != nil {
		return err
	}
	return durable.File(target) // while others are copied
}

// extractArchive is Extract of an archive, whose reader compares each file with the list.
func extractArchive(path, to string, m *meter) error {
	var files []File
	err := readArchive(path, m, func(name string, r io.Reader, size int64) error {
		target := filepath.Join(to, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(target), 0o700); err != nil {
			return err
		}
		files = append(files, File{Path: name})
		_, err := create(target, func(w io.Writer) (string, error) { return copyTo(w, r, size, nil) })
		return err
	})
	if err != nil {
		return err
	}
	return syncTree(to, files)
}

// Restore puts a backup into a data directory, which must be missing or empty. prepare gets the
// directory with all files before they are where a server finds them. Incomplete files of an
// earlier restore are replaced. Errors: those that wrap ErrDamaged change nothing.
func Restore(ctx context.Context, path, dataDir string, p Progress, prepare func(dir string) error) error {
	if err := makeDir(dataDir); err != nil {
		return err
	}
	if err := CheckEmpty(dataDir, Unfinished); err != nil {
		return err
	}
	work := filepath.Join(dataDir, Unfinished)
	if err := os.RemoveAll(work); err != nil {
		return err
	}
	if err := Extract(ctx, path, work, p); err != nil {
		return errors.Join(err, os.RemoveAll(work))
	}
	if err := prepare(work); err != nil {
		return errors.Join(err, os.RemoveAll(work))
	}
	return Install(work, dataDir)
}

// CheckEmpty refuses a data directory that has anything but one directory in which it is made.
func CheckEmpty(dataDir, work string) error {
	entries, err := os.ReadDir(dataDir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() != work && e.Name() != lostAndFound {
			return fmt.Errorf("%s is not empty (it has %s): move it away, or name another directory with --data-dir",
				dataDir, e.Name())
		}
	}
	return nil
}

// Install moves the files from the directory of a restore to where a server finds them. The
// directory goes last: until then no server starts.
func Install(work, dataDir string) error {
	entries, err := os.ReadDir(work)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if skipped(e.Name()) {
			continue
		}
		if err := os.Rename(filepath.Join(work, e.Name()), filepath.Join(dataDir, e.Name())); err != nil {
			return err
		}
	}
	if err := durable.Dir(dataDir); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(work), durable.Dir(dataDir))
}

// CheckUnfinished refuses a data directory into which a backup is being restored, or an export imported.
func CheckUnfinished(dataDir string) error {
	if _, err := os.Stat(filepath.Join(dataDir, Unfinished)); err == nil {
		return fmt.Errorf("a restore into %s has not ended: empty the directory and restore the backup again", dataDir)
	}
	if _, err := os.Stat(filepath.Join(dataDir, Importing)); err == nil {
		return fmt.Errorf("an import into %s has not ended: run it again with the same export, or empty the directory", dataDir)
	}
	return nil
}

// Describe lists the files of a data directory for a backup. The caller has locked the directory.
func Describe(dataDir string, at time.Time) (*List, error) {
	l := NewList(dataDir, at)
	var err error
	l.Files, err = Scan(dataDir)
	return l, err
}

// NewList starts the list of a data directory.
func NewList(dataDir string, at time.Time) *List {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	if abs, err := filepath.Abs(dataDir); err == nil {
		dataDir = abs
	}
	return &List{Format: format, Taken: at.UTC(), Host: host, DataDir: filepath.ToSlash(dataDir)}
}
