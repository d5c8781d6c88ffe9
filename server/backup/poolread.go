package backup

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"
)

// extraction reads one backup of a pool.
type extraction struct {
	Pool
	list  *List
	data  string // prefix of its objects
	to    string
	meter *meter
}

func (x *extraction) run(ctx context.Context, progress Progress) error {
	if err := os.Mkdir(x.to, 0o700); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(transfers)
	x.meter = &meter{ctx: ctx, total: x.list.Bytes(), progress: progress}
	for _, f := range x.list.Files {
		g.Go(func() error { return x.file(ctx, f) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return syncTree(x.to, x.list.Files)
}

func (x *extraction) file(ctx context.Context, f File) error {
	sums, err := x.list.pieces(f)
	if err != nil {
		return err
	}
	target := filepath.Join(x.to, filepath.FromSlash(f.Path))
	if err := os.MkdirAll(filepath.Dir(target), 0o700); err != nil {
		return err
	}
	sum, err := create(target, func(w io.Writer) (string, error) {
		if len(sums) == 1 {
			return sums[0], x.piece(ctx, w, sums[0], f.Size)
		}
		whole := sha256.New()
		for i, sum := range sums {
			size := min(x.list.PieceSize, f.Size-int64(i)*x.list.PieceSize)
			if err := x.piece(ctx, io.MultiWriter(w, whole), sum, size); err != nil {
				return "", err
			}
		}
		return hex.EncodeToString(whole.Sum(nil)), nil
	})
	if err == nil && sum != f.SHA256 {
		err = fmt.Errorf("%w: %s is made of other pieces than it was written as", ErrDamaged, f.Path)
	}
	return err
}

// piece copies an object, whole or not at all.
func (x *extraction) piece(ctx context.Context, w io.Writer, sum string, size int64) error {
	at := x.Objects.URL(x.data + sum)
	b, err := x.Objects.Get(ctx, x.data+sum, size)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: %s is not there", ErrDamaged, at)
	case err != nil:
		return err
	}
	if got := sha256.Sum256(b); int64(len(b)) != size || hex.EncodeToString(got[:]) != sum {
		return fmt.Errorf("%w: %s has another content than it was written with: remove it, and the next backup stores it again "+
			"if the data directory still has it", ErrDamaged, at)
	}
	if _, err := w.Write(b); err != nil {
		return err
	}
	return x.meter.add(size)
}
