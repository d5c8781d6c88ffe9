package backup

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"

	"github.com/parley-chat/parley/server/infra/durable"
)

// writeArchive writes a backup as one file: a tar of the files, the list last, compressed.
func writeArchive(ctx context.Context, o Options) (Report, error) {
	if _, err := os.Stat(o.To); err == nil {
		return Report{}, fmt.Errorf("%s is there already", o.To)
	}
	dir, tmp := filepath.Dir(o.To), o.To+partial
	if err := makeDir(dir); err != nil {
		return Report{}, err
	}
	if err := os.RemoveAll(tmp); err != nil {
		return Report{}, err
	}
	list := o.Of
	m := &meter{ctx: ctx, total: 2 * list.Bytes(), progress: o.Progress}
	_, err := create(tmp, func(w io.Writer) (string, error) { return "", pack(w, o.From, list, m) })
	if err == nil {
		err = durable.File(tmp)
	}
	if err == nil { // it is read once more before it counts as one
		err = readArchive(tmp, m, discard)
	}
	if err == nil {
		err = os.Rename(tmp, o.To)
	}
	if err != nil {
		return Report{}, errors.Join(err, os.RemoveAll(tmp))
	}
	info, err := os.Stat(o.To)
	if err != nil {
		return Report{}, err
	}
	return Report{Path: o.To, Files: len(list.Files), Bytes: list.Bytes(), Written: info.Size()}, durable.Dir(dir)
}

func pack(w io.Writer, from string, list *List, m *meter) error {
	z, err := zstd.NewWriter(w)
	if err != nil {
		return err
	}
	t := tar.NewWriter(z)
	for i := range list.Files {
		f := &list.Files[i]
		if err := packFile(t, from, f, m); err != nil {
			return fmt.Errorf("%s: %w", f.Path, err)
		}
	}
	b, err := list.encode()
	if err != nil {
		return err
	}
	if err := t.WriteHeader(&tar.Header{Name: ListFile, Mode: 0o600, Size: int64(len(b))}); err != nil {
		return err
	}
	_, err = t.Write(b)
	return errors.Join(err, t.Close(), z.Close())
}

func packFile(t *tar.Writer, from string, f *File, m *meter) error {
	src, err := os.Open(filepath.Join(from, filepath.FromSlash(f.Path)))
	if err != nil {
		return err
	}
	defer src.Close()
	if err := t.WriteHeader(&tar.Header{Name: f.Path, Mode: 0o600, Size: f.Size}); err != nil {
		return err
	}
	f.SHA256, err = copyTo(t, src, f.Size, m)
	return err
}

// readArchive passes each file of an archive to a function, and then compares all with the
// list at its end: without it the archive was cut off.
func readArchive(path string, m *meter, file func(path string, r io.Reader, size int64) error) error {
	src, err := os.Open(path)
	if err != nil {
		return err
	}
	defer src.Close()
	z, err := zstd.NewReader(src)
	if err != nil {
		return err
	}
	defer z.Close()
	damaged := func(err error) error {
		if m.ctx.Err() != nil {
			return m.ctx.Err()
		}
		return fmt.Errorf("%w: %s: %w", ErrDamaged, path, err)
	}
	t, had := tar.NewReader(z), map[string]File{}
	for {
		h, err := t.Next()
		if err != nil { // io.EOF, too: the list ends an archive
			return damaged(err)
		}
		if h.Name == ListFile {
			list, err := decodeList(t)
			if err != nil {
				return damaged(err)
			}
			return compare(path, list, had)
		}
		if !filepath.IsLocal(filepath.FromSlash(h.Name)) || h.Typeflag != tar.TypeReg {
			return fmt.Errorf("%w: %s has %.100q", ErrDamaged, path, h.Name)
		}
		r := &reader{from: t, sum: sha256.New(), m: m}
		if err := file(h.Name, r, h.Size); err != nil {
			return damaged(err)
		}
		had[h.Name] = File{h.Name, h.Size, r.hex()}
	}
}

// discard reads a file of an archive for its checksum alone.
func discard(_ string, r io.Reader, _ int64) error {
	_, err := io.Copy(io.Discard, r)
	return err
}

func compare(path string, list *List, had map[string]File) error {
	for _, f := range list.Files {
		if had[f.Path] != f {
			return fmt.Errorf("%w: %s lacks %s as it was written", ErrDamaged, path, f.Path)
		}
	}
	if len(had) != len(list.Files) {
		return fmt.Errorf("%w: %s has files that its list has not", ErrDamaged, path)
	}
	return nil
}
