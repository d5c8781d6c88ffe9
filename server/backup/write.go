package backup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/parley-chat/parley/server/backup/bucket"
	"github.com/parley-chat/parley/server/infra/durable"
)

// nameLayout is the name of a backup: its moment, so that names are in the order of time.
const nameLayout = "20060102T150405.000Z"

// Options say how a backup is written.
type Options struct {
	// From has the files of one moment, and Of lists them. Until Write returns, they may only be
	// appended to.
	From string
	Of   *List
	// To is the directory of the backups, made if it is missing, the name of one archive, or an address of
	// S3.
	To string
	// Keep is how many backups of this data directory stay there; 0: all.
	Keep     int
	Progress Progress
}

// Report says what a backup has cost.
type Report struct {
	Path    string // of the backup, or its address
	Files   int
	Bytes   int64 // of all files
	Written int64 // of those that no earlier backup had
	Removed int   // backups beyond Keep
}

// IsArchive reports whether the name of a backup is that of a backup in one file.
func IsArchive(path string) bool { return strings.HasSuffix(path, archive) }

// CheckTarget refuses a directory or archive for backups that is in the data directory: it would
// be in the next backup itself, and be lost with what it is for. It refuses an address that is none of S3, too.
// Without a name there is none.
func CheckTarget(to, dataDir string) error {
	if to == "" {
		return nil
	}
	if bucket.Is(to) {
		_, err := bucket.Parse(to)
		if err == nil && (IsArchive(to) || strings.HasSuffix(to, listSuffix)) {
			err = fmt.Errorf("%s names one file: name the bucket or a prefix, below which backups share objects", to)
		}
		return err
	}
	if strings.Contains(to, "://") {
		return fmt.Errorf("%s is neither a path nor an address of S3 (s3://BUCKET/PREFIX)", to)
	}
	a, errA := filepath.Abs(to)
	b, errB := filepath.Abs(filepath.FromSlash(dataDir))
	if errA != nil || errB != nil {
		return errors.Join(errA, errB)
	}
	if rel, err := filepath.Rel(b, a); err == nil && filepath.IsLocal(rel) {
		return fmt.Errorf("%s is in the data directory: name another place", to)
	}
	return nil
}

// Write makes a backup and reads it once more before it counts as one. Files of a backup that
// fails are removed. An error with the path of a backup is about older ones.
func Write(ctx context.Context, o Options) (Report, error) {
	if len(o.Of.Files) == 0 {
		return Report{}, fmt.Errorf("%s has no files", o.From)
	}
	if err := CheckTarget(o.To, o.Of.DataDir); err != nil {
		return Report{}, err
	}
	if bucket.Is(o.To) {
		p, _, err := openPool(ctx, o.To)
		if err != nil {
			return Report{}, err
		}
		return p.Write(ctx, o)
	}
	list := *o.Of // it gets the checksums
	list.Files, o.Of = slices.Clone(list.Files), &list
	if IsArchive(o.To) {
		return writeArchive(ctx, o)
	}
	if err := makeDir(o.To); err != nil {
		return Report{}, err
	}
	suffix := "." + o.Of.source() + partial // others may write there, too
	if err := removePartial(o.To, suffix); err != nil {
		return Report{}, err
	}
	name := o.Of.Taken.UTC().Format(nameLayout)
	w := &writer{Options: o, path: filepath.Join(o.To, name), tmp: filepath.Join(o.To, name+suffix)}
	w.meter = &meter{ctx: ctx, total: 2 * o.Of.Bytes(), progress: o.Progress} // each byte is read twice
	report, err := w.write()
	if err != nil {
		return Report{}, errors.Join(err, os.RemoveAll(w.tmp))
	}
	if report.Removed, err = prune(report.Path, o.Of, o.Keep); err != nil {
		err = fmt.Errorf("%s is complete, but an older one was not removed: %w", report.Path, err)
	}
	return report, err
}

// writer writes one backup.
type writer struct {
	Options
	path, tmp string
	meter     *meter
	earlier   string            // the newest backup; "": none
	had       map[string]string // its checksums by path
	report    Report
}

func (w *writer) write() (Report, error) {
	if _, err := os.Stat(w.path); err == nil {
		return Report{}, fmt.Errorf("%s is there already", w.path)
	}
	w.had = map[string]string{}
	if paths, lists := allOf(w.To, w.Of); len(paths) > 0 {
		w.earlier = paths[len(paths)-1]
		for _, f := range lists[len(lists)-1].Files {
			w.had[f.Path] = f.SHA256
		}
	}
	list := w.Of
	for i := range list.Files {
		if err := w.file(&list.Files[i]); err != nil {
			return Report{}, err
		}
	}
	for _, f := range list.Files {
		if err := check(w.tmp, f, w.meter); err != nil {
			return Report{}, err
		}
	}
	err := list.Write(w.tmp)
	if err == nil {
		err = syncTree(w.tmp, append(list.Files, File{Path: ListFile}))
	}
	if err == nil {
		err = os.Rename(w.tmp, w.path)
	}
	if err == nil {
		err = durable.Dir(w.To)
	}
	w.report.Path, w.report.Files, w.report.Bytes = w.path, len(list.Files), list.Bytes()
	return w.report, err
}

// file adds a file: a link to that of the earlier backup if the content is the same. One there
// that is damaged is not used.
func (w *writer) file(f *File) (err error) {
	source, target := filepath.Join(w.From, filepath.FromSlash(f.Path)), filepath.Join(w.tmp, filepath.FromSlash(f.Path))
	if err := os.MkdirAll(filepath.Dir(target), 0o700); err != nil {
		return err
	}
	if sum, ok := w.had[f.Path]; ok {
		if f.SHA256, err = sumOf(source, f.Size, nil); err != nil {
			return fmt.Errorf("read %s: %w", source, err)
		}
		old := filepath.Join(w.earlier, filepath.FromSlash(f.Path))
		if sum == f.SHA256 && check(w.earlier, *f, nil) == nil && os.Link(old, target) == nil {
			return w.meter.add(f.Size)
		}
	}
	f.SHA256, err = copyFile(target, source, f.Size, w.meter)
	w.report.Written += f.Size
	return err
}

// check compares a file of a backup with the list.
func check(dir string, f File, m *meter) error {
	path := filepath.Join(dir, filepath.FromSlash(f.Path))
	if err := checkSize(path, f.Size); err != nil {
		return err
	}
	sum, err := sumOf(path, f.Size, m)
	if err != nil {
		return err
	}
	if sum != f.SHA256 {
		return fmt.Errorf("%w: %s has another content than it was written with", ErrDamaged, path)
	}
	return nil
}

func checkSize(path string, want int64) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: %s is not there", ErrDamaged, path)
	case err != nil:
		return err
	case info.Size() != want:
		return fmt.Errorf("%w: %s has %d bytes, not %d", ErrDamaged, path, info.Size(), want)
	}
	return nil
}

// All lists the backups in a directory, the oldest first.
func All(dir string) (paths []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if _, err := os.Stat(filepath.Join(path, ListFile)); err == nil && !strings.HasSuffix(path, partial) {
			paths = append(paths, path)
		}
	}
	slices.SortFunc(paths, func(a, b string) int { return cmp.Compare(filepath.Base(a), filepath.Base(b)) })
	return paths, nil
}

// allOf lists the backups of one data directory whose lists can be read, the oldest first.
func allOf(dir string, of *List) (paths []string, lists []*List) {
	all, _ := All(dir)
	for _, path := range all {
		if l, err := ReadList(path); err == nil && l.source() == of.source() {
			paths, lists = append(paths, path), append(lists, l)
		}
	}
	return paths, lists
}

// removePartial removes what an earlier process did not finish.
func removePartial(dir, suffix string) error {
	left, err := filepath.Glob(filepath.Join(dir, "*"+suffix))
	for _, path := range left {
		err = errors.Join(err, os.RemoveAll(path))
	}
	return err
}

// prune removes the oldest backups of a data directory beyond a number, but not the one that
// was just made: after the clock was set back it is not the newest by its name.
func prune(made string, of *List, keep int) (removed int, err error) {
	if keep <= 0 {
		return 0, nil
	}
	own, _ := allOf(filepath.Dir(made), of)
	own = slices.DeleteFunc(own, func(path string) bool { return path == made })
	for ; len(own) >= keep; own = own[1:] {
		// Its list goes first: the remaining files count as no backup.
		if err := os.Remove(filepath.Join(own[0], ListFile)); err != nil {
			return removed, err
		}
		if err := os.RemoveAll(own[0]); err != nil {
			return removed, err
		}
		removed++
	}
	return removed, nil
}
