package backup

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/parley-chat/parley/server/backup/bucket"
)

// Write makes a backup. It counts as one when its list is stored, which is after S3 has confirmed the checksum of
// every object. An error with the path of a backup is about older ones.
func (p Pool) Write(ctx context.Context, o Options) (Report, error) {
	list := *o.Of // it gets the checksums
	list.Files, list.PieceSize, list.Pieces = slices.Clone(list.Files), pieceSize, map[string][]string{}
	source := list.source()
	w := &poolWriter{Pool: p, Options: o, list: &list, data: dataPrefix + source + "/", stored: map[string]bool{}}
	w.key = listsPrefix + list.Taken.UTC().Format(nameLayout) + "-" + source + listSuffix
	lists, err := p.lists(ctx, source)
	if err != nil {
		return Report{}, err
	}
	if slices.Contains(lists, w.key) {
		return Report{}, fmt.Errorf("%s is there already", p.Objects.URL(w.key))
	}
	unswept, err := w.survey(ctx, lists)
	if err == nil {
		err = w.upload(ctx)
	}
	if err == nil {
		err = w.putList(ctx)
	}
	if err != nil {
		return Report{}, err
	}
	r := Report{Path: p.Objects.URL(w.key), Files: len(list.Files), Bytes: list.Bytes(), Written: w.written}
	if r.Removed, err = w.prune(ctx, lists); err == nil {
		err = unswept
	}
	if err != nil {
		err = fmt.Errorf("%s is complete, but not all that is older was removed: %w", r.Path, err)
	}
	return r, err
}

// poolWriter writes one backup.
type poolWriter struct {
	Pool
	Options
	list  *List
	key   string // of the list
	data  string // prefix of the objects
	meter *meter

	mu      sync.Mutex
	stored  map[string]bool // the checksums of the objects that are there, or that a goroutine puts there
	written int64
}

// survey finds what the pool has, and removes the objects that no list names any more. unswept says that
// they could not be removed, which does not matter to a backup.
func (w *poolWriter) survey(ctx context.Context, lists []string) (unswept, err error) {
	// The lists are read before the objects: one that another process removes meanwhile names more than is there, and is
	// not relied on for that.
	read := lists
	if w.Keep <= 0 { // all lists stay, and the newest one names nearly all that can be used
		read = lists[max(0, len(lists)-1):]
	}
	named, unswept := w.named(ctx, read)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	var old []string
	now := w.list.Taken
	err = w.Objects.List(ctx, w.data, func(o bucket.Object) {
		sum, age := o.Key[len(w.data):], now.Sub(o.Changed)
		want, isNamed := named[sum]
		switch {
		case isNamed && want == o.Size, !isNamed && age < reusable:
			w.stored[sum] = true
		case !isNamed && age > garbage:
			old = append(old, o.Key)
		}
	})
	if err != nil || w.Keep <= 0 || unswept != nil {
		return unswept, err
	}
	return w.removeAll(ctx, old), ctx.Err()
}

// named are the sizes of the objects that lists name.
func (w *poolWriter) named(ctx context.Context, lists []string) (map[string]int64, error) {
	named := map[string]int64{}
	var failed error
	for _, key := range lists {
		err := w.nameAll(ctx, key, named)
		if errors.Is(err, ErrDamaged) {
			err = fmt.Errorf("%s: which objects that backup has is not known: remove it if you do not need it: %w",
				w.Objects.URL(key), err)
		}
		if failed == nil {
			failed = err
		}
	}
	return named, failed
}

// nameAll adds the objects of one list.
func (w *poolWriter) nameAll(ctx context.Context, key string, named map[string]int64) error {
	list, err := w.Pool.list(ctx, key)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // another process has removed it
	}
	if err != nil {
		return err
	}
	for _, f := range list.Files {
		sums, err := list.pieces(f)
		if err != nil {
			return err
		}
		for i, sum := range sums {
			named[sum] = min(list.PieceSize, f.Size-int64(i)*list.PieceSize)
		}
	}
	return nil
}

// removeAll removes objects.
func (w *poolWriter) removeAll(ctx context.Context, keys []string) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(transfers)
	for _, key := range keys {
		g.Go(func() error { return w.Objects.Remove(ctx, key) })
	}
	return g.Wait()
}

// upload stores the objects that the pool does not have.
func (w *poolWriter) upload(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(transfers)
	w.meter = &meter{ctx: ctx, total: 2 * w.list.Bytes(), progress: w.Progress} // each byte is read twice
	for i := range w.list.Files {
		g.Go(func() error {
			f := &w.list.Files[i]
			if err := w.file(ctx, f); err != nil {
				return fmt.Errorf("%s: %w", f.Path, err)
			}
			return nil
		})
	}
	return g.Wait()
}

func (w *poolWriter) file(ctx context.Context, f *File) error {
	src, err := os.Open(filepath.Join(w.From, filepath.FromSlash(f.Path)))
	if err != nil {
		return err
	}
	defer src.Close()
	sums, err := w.sums(src, f)
	if err != nil {
		return err
	}
	for i, sum := range sums {
		at := int64(i) * pieceSize
		size := min(pieceSize, f.Size-at)
		if w.claim(hex.EncodeToString(sum[:]), size) {
			key := w.data + hex.EncodeToString(sum[:])
			if err := w.Objects.Put(ctx, key, io.NewSectionReader(src, at, size), size, sum); err != nil {
				return err
			}
		}
		if err := w.meter.add(size); err != nil {
			return err
		}
	}
	return nil
}

// claim reports whether the caller must store an object. If another goroutine stores the same one and fails, so does
// the backup.
func (w *poolWriter) claim(sum string, size int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stored[sum] {
		return false
	}
	w.stored[sum] = true
	w.written += size
	return true
}

// sums reads a file for its checksum and those of its pieces.
func (w *poolWriter) sums(src io.Reader, f *File) (sums [][sha256.Size]byte, err error) {
	whole := sha256.New()
	to := io.Writer(whole)
	if f.Size <= pieceSize {
		to = io.Discard // its only piece has the same checksum
	}
	var names []string
	for left := f.Size; len(names) == 0 || left > 0; left -= pieceSize {
		name, err := copyTo(to, src, min(left, pieceSize), w.meter)
		if err != nil {
			return nil, err
		}
		var sum [sha256.Size]byte
		if _, err := hex.Decode(sum[:], []byte(name)); err != nil {
			return nil, err
		}
		sums, names = append(sums, sum), append(names, name)
	}
	f.SHA256 = names[0]
	if len(names) > 1 {
		f.SHA256 = hex.EncodeToString(whole.Sum(nil))
		w.mu.Lock()
		defer w.mu.Unlock()
		w.list.Pieces[f.SHA256] = names
	}
	return sums, nil
}

func (w *poolWriter) putList(ctx context.Context) error {
	b, err := w.list.encode()
	if err != nil {
		return err
	}
	if len(b) > maxList {
		return fmt.Errorf("the list of the files has %d bytes, more than %d", len(b), maxList)
	}
	return w.Objects.Put(ctx, w.key, bytes.NewReader(b), int64(len(b)), sha256.Sum256(b))
}

// prune removes the oldest lists beyond the number that is kept, but not the one that was just stored: after the
// clock was set back it is not the newest by its name.
func (w *poolWriter) prune(ctx context.Context, lists []string) (removed int, err error) {
	if w.Keep <= 0 {
		return 0, nil
	}
	for ; len(lists) >= w.Keep; lists = lists[1:] {
		if err := w.Objects.Remove(ctx, lists[0]); err != nil {
			return removed, err
		}
		removed++
	}
	return removed, nil
}

// newestOf is when the newest backup of a data directory in a pool was made; zero if there is none.
func (p Pool) newestOf(ctx context.Context, source string) (time.Time, error) {
	lists, err := p.lists(ctx, source)
	if err != nil || len(lists) == 0 {
		return time.Time{}, err
	}
	taken, _ := parseList(lists[len(lists)-1])
	return taken, nil
}
