package backup

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/parley-chat/parley/server/infra/durable"
)

// Progress reports how many of all bytes are done. It may be nil. It is not called twice at a time.
type Progress func(done, total int64)

// meter counts bytes for a Progress, and ends a copy when its context does.
type meter struct {
	ctx      context.Context //nolint:containedctx // of the one copy that this is
	total    int64
	progress Progress

	mu   sync.Mutex // files of a Pool are copied at the same time
	done int64
}

func (m *meter) add(n int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done += n
	if m.progress != nil {
		m.progress(m.done, m.total)
	}
	return m.ctx.Err()
}

// reader counts what is read through it, into a checksum.
type reader struct {
	from io.Reader
	sum  hash.Hash
	m    *meter // nil: uncounted
}

func (r *reader) Read(b []byte) (int, error) {
	n, err := r.from.Read(b)
	r.sum.Write(b[:n])
	if r.m != nil {
		if ended := r.m.add(int64(n)); ended != nil {
			return n, ended
		}
	}
	return n, err
}

func (r *reader) hex() string { return hex.EncodeToString(r.sum.Sum(nil)) }

// buffers are for copies.
var buffers = sync.Pool{New: func() any { return new([256 << 10]byte) }}

// copyTo copies size bytes and returns their checksum. A source that ends before is an error.
func copyTo(w io.Writer, from io.Reader, size int64, m *meter) (string, error) {
	r := &reader{from: from, sum: sha256.New(), m: m}
	b := buffers.Get().(*[256 << 10]byte)
	defer buffers.Put(b)
	n, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{io.LimitReader(r, size)}, b[:])
	if err == nil && n < size {
		err = fmt.Errorf("the file has %d bytes, not %d", n, size)
	}
	return r.hex(), err
}

// copyFile copies the first size bytes of a file, and returns their checksum.
func copyFile(to, from string, size int64, m *meter) (sum string, err error) {
	src, err := os.Open(from)
	if err != nil {
		return "", err
	}
	defer src.Close()
	return create(to, func(w io.Writer) (string, error) { return copyTo(w, src, size, m) })
}

// create makes a file for its owner only. It is durable after syncTree.
func create(path string, fill func(io.Writer) (string, error)) (sum string, err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if sum, err = fill(f); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return sum, nil
}

// sumOf is the checksum of a file's first size bytes.
func sumOf(path string, size int64, m *meter) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return copyTo(io.Discard, f, size, m)
}

// syncers is how many files are synced at a time: file systems commit them together.
const syncers = 8

// syncTree makes files durable, then their names.
func syncTree(dir string, list []File) error {
	var g errgroup.Group
	g.SetLimit(syncers)
	for _, f := range list {
		g.Go(func() error { return durable.File(filepath.Join(dir, filepath.FromSlash(f.Path))) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return syncNames(dir, list)
}

// syncNames makes the names of files durable: a directory, and those in it that they are in.
func syncNames(dir string, list []File) error {
	dirs := map[string]bool{dir: true}
	for _, f := range list {
		for d := filepath.Dir(filepath.Join(dir, filepath.FromSlash(f.Path))); len(d) > len(dir); d = filepath.Dir(d) {
			dirs[d] = true
		}
	}
	for d := range dirs {
		if err := durable.Dir(d); err != nil {
			return err
		}
	}
	return nil
}

// makeDir makes a directory, with those above it that are missing, and makes their names durable.
func makeDir(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	var parents []string // of those that are made
	for d := dir; filepath.Dir(d) != d; d = filepath.Dir(d) {
		if _, err := os.Stat(d); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		parents = append(parents, filepath.Dir(d))
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if len(parents) == 0 {
		// A process that was killed may have made it a moment ago. The parent of another one may be
		// out of reach.
		_ = durable.Dir(filepath.Dir(dir))
	}
	for _, d := range parents {
		if err := durable.Dir(d); err != nil {
			return err
		}
	}
	return nil
}
