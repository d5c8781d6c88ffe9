package embedded

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded/barrier"
	"github.com/parley-chat/parley/server/store/embedded/itemcodec"
	"github.com/parley-chat/parley/server/store/embedded/salvage"
	"github.com/parley-chat/parley/server/store/embedded/space"
)

// ErrDamaged says that files of the store are not as they were written.
var ErrDamaged = errors.New("the store is damaged")

// HowToRepair is the remedy of all that Repair repairs.
const HowToRepair = "run the command check --repair, which keeps the damaged store, builds another from all that can be read, with --from BACKUP also from a backup, and names what is lost; or restore a backup"

// damaged is the refusal of a store that Pebble does not open. An error of the operating system that
// says nothing about the files, such as too many open ones, is passed on.
func damaged(dir string, err error) error {
	if errno := syscall.Errno(0); errors.As(err, &errno) && errno != syscall.ENOENT && errno != syscall.EIO {
		return fmt.Errorf("open store: %w", plain(err))
	}
	return fmt.Errorf("%w: %s: %w; %s", ErrDamaged, dir, plain(err), HowToRepair)
}

// Names beside the store while another is built, when that is complete, and of the damaged one, which
// the time follows.
const (
	unfinishedSuffix = ".salvaging"
	finishedSuffix   = ".salvaged"
	asideSuffix      = ".damaged-"
)

// Repaired is what Repair did.
type Repaired struct {
	Why   error    // what was wrong; nil: the store is whole, and nothing was done
	Aside string   // where the damaged store is now
	Rows  int64    // that the new one has
	Lost  []string // what cannot be read, a line each
}

// Repair builds another store from what can be read of a damaged one, and puts it in its place. A
// store that is whole stays. The new one has another generation, so that clients synchronise from the
// start. The damaged one stays beside it.
//
// Repair may be interrupted at any time and repeated. Of o it takes Dir and Logger. Errors: ErrLocked,
// ErrFormat for data of a newer version, and those of the files and of ctx.
func Repair(ctx context.Context, o Options) (r Repaired, err error) {
	o.ReadOnly, o.FS = true, vfs.Default
	o = o.withDefaults()
	o.Dir = filepath.Clean(o.Dir)
	lock, err := lockDir(o.FS, o.Dir)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if err := o.ensureDirectory(); err != nil {
		return r, err
	}
	_, err = checkFormat(o.FS, o.Dir)
	unmarked := errors.Is(err, errNoFormat)
	if err != nil && !unmarked {
		return r, err
	}
	if err := newerPebble(o.Dir); err != nil {
		return r, err
	}
	if unmarked {
		r.Why = err
	} else if r.Why, err = o.inspect(ctx); r.Why == nil || err != nil {
		return r, err
	}
	return r, o.rebuild(ctx, &r, unmarked)
}

// ensureDirectory puts a directory where the store was, if that is gone: nothing of it can be read, but the event
// log may have what it had.
func (o Options) ensureDirectory() error {
	dir := o.FS.PathJoin(o.Dir, "store")
	if err := finishRepair(o.FS, o.Dir); err != nil {
		return fmt.Errorf("finish the repair of the store: %w", plain(err))
	}
	if _, err := o.FS.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if _, err := o.FS.Stat(o.FS.PathJoin(o.Dir, sealFile)); err != nil {
		return fmt.Errorf("there is no store: %w", plain(err))
	}
	return os.Mkdir(dir, 0o700)
}

// inspect says what is wrong with the store.
func (o Options) inspect(ctx context.Context) (why, err error) {
	s, err := open(o)
	if errors.Is(err, ErrDamaged) || errors.Is(err, ErrLost) {
		return err, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.db.Close()) }()
	if why = s.Lacks(); why != nil {
		return why, nil
	}
	levels, err := s.db.SSTables()
	if err != nil {
		return nil, err
	}
	for _, level := range levels {
		for _, t := range level {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			path := filepath.Join(o.Dir, "store", fmt.Sprintf("%06d.sst", uint64(t.BackingSSTNum)))
			if err := salvage.Verify(path); err != nil {
				return fmt.Errorf("%w: %s: %w", ErrDamaged, path, plain(err)), nil
			}
		}
	}
	return nil, nil
}

// newerPebble refuses a store whose files have a form that this version does not know.
func newerPebble(dir string) error {
	marks, err := filepath.Glob(filepath.Join(dir, "store", "marker.format-version.*"))
	if err != nil {
		return err
	}
	for _, path := range marks {
		var n, version int
		if _, err := fmt.Sscanf(filepath.Base(path), "marker.format-version.%d.%d", &n, &version); err == nil &&
			version > int(pebbleFormat) {
			return fmt.Errorf("%s: %w: a newer version has written the store", dir, ErrFormat)
		}
	}
	return nil
}

// roomForAnother refuses a repair for which the disk has no room: Pebble would try again and again to
// write.
func (o Options) roomForAnother(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var size uint64
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return err
		}
		size += uint64(info.Size())
	}
	free, total := space.Usage(o.FS, o.Dir)
	if total > 0 && free < size {
		return fmt.Errorf("a repair writes another store into %s: it needs %d MB, and %d MB are free; free some space, or run it on a copy of the data directory on a larger disk",
			o.Dir, size>>20+1, free>>20)
	}
	return nil
}

// rebuild writes the new store and puts it in its place.
func (o Options) rebuild(ctx context.Context, r *Repaired, unmarked bool) error {
	dir := o.FS.PathJoin(o.Dir, "store")
	if err := o.roomForAnother(dir); err != nil {
		return err
	}
	for _, left := range []string{unfinishedSuffix, finishedSuffix} {
		if err := os.RemoveAll(dir + left); err != nil {
			return err
		}
	}
	if err := o.copyReadable(ctx, dir, r, unmarked); err != nil {
		return fmt.Errorf("build another store: %w", plain(err))
	}
	if err := syncDir(o.FS, dir+unfinishedSuffix); err != nil {
		return err
	}
	if unmarked {
		if err := writeFormat(o.FS, o.Dir); err != nil {
			return err
		}
	}
	r.Aside = dir + asideSuffix + time.Now().UTC().Format("20060102T150405.000Z")
	// An interruption between the renames leaves no store, but a complete new one, which finishRepair
	// puts in its place. SEAL is of the damaged store: it is removed while there is none.
	if err := os.Rename(dir+unfinishedSuffix, dir+finishedSuffix); err != nil {
		return err
	}
	if err := os.Rename(dir, r.Aside); err != nil {
		return err
	}
	return finishRepair(o.FS, o.Dir)
}

// finishRepair puts a new store in its place that an interrupted Repair has completed, if the place is
// empty. Without one it does nothing.
func finishRepair(fs vfs.FS, parent string) error {
	dir := fs.PathJoin(parent, "store")
	if _, err := fs.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if _, err := fs.Stat(dir + finishedSuffix); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	}
	if err := syncDir(fs, parent); err != nil {
		return err
	}
	if err := fs.Remove(fs.PathJoin(parent, sealFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := fs.Rename(dir+finishedSuffix, dir); err != nil {
		return err
	}
	return syncDir(fs, parent)
}

// rebuildBatch is how many bytes are written at once.
const rebuildBatch = 4 << 20

// copyReadable writes all that can be read into a new store, except for the probes of the seal.
func (o Options) copyReadable(ctx context.Context, dir string, r *Repaired, unmarked bool) (err error) {
	opts := &pebble.Options{FS: o.FS, FormatMajorVersion: pebbleFormat, DisableWAL: true,
		Logger: logger{&Store{opts: o, barrier: barrier.New()}}}
	setLevels(opts, filters)
	db, err := pebble.Open(dir+unfinishedSuffix, opts)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	b := db.NewBatch()
	apply := func() error {
		err := errors.Join(b.Commit(pebble.NoSync), b.Close())
		b = db.NewBatch()
		return err
	}
	before, ancestors := "", []ancestor(nil)
	report, err := salvage.Read(ctx, filepath.Join(o.Dir, "store"), func(key, value []byte) error {
		switch {
		case key[0] == spaceProbe:
			return nil
		case string(key) == string(generationKey):
			if it, err := itemcodec.Decode(value); err == nil {
				before, ancestors, _ = historyFrom(it)
			}
		case key[0] == spaceItems && unmarked:
			if _, err := itemcodec.Decode(value); err != nil {
				return fmt.Errorf("%s: %w: the FORMAT file cannot be read, and a newer version may have written %s: %w",
					o.Dir, ErrFormat, describe(key), err)
			}
		}
		r.Rows++
		if err := b.Set(key, value, nil); err != nil || b.Len() < rebuildBatch {
			return err
		}
		return apply()
	})
	if err != nil {
		return errors.Join(err, b.Close())
	}
	if before == "" {
		if sealed, _, err := readSeal(o.FS, o.Dir); err == nil {
			before = sealed.generation
		}
	}
	for _, l := range report.Lost {
		r.Lost = append(r.Lost, lossLine(l))
	}
	if before != "" {
		ancestors = dropped(before, ancestors)
	}
	_, row, err := newGeneration(ancestors)
	if err == nil {
		err = b.Set(generationKey, itemcodec.Append(nil, row), nil)
	}
	if err = errors.Join(err, apply(), b.Close()); err != nil {
		return err
	}
	return db.Flush()
}

// lossLine says what cannot be read.
func lossLine(l salvage.Loss) string {
	line := fmt.Sprintf("%s: %s", l.Path, l.What)
	switch {
	case l.From != nil && l.To != nil:
		line += fmt.Sprintf(": rows between %s and %s", describe(l.From), describe(l.To))
	case l.From != nil:
		line += fmt.Sprintf(": rows behind %s", describe(l.From))
	case l.To != nil:
		line += fmt.Sprintf(": rows up to %s", describe(l.To))
	}
	return line
}

// describe names a key of the engine.
func describe(key []byte) string {
	switch {
	case len(key) > 1 && key[0] == spaceItems && key[1] > 0 && int(key[1]) <= len(store.Tables()):
		if k, err := parseKey(store.Tables()[key[1]-1].Name, key); err == nil {
			return k.String()
		}
	case len(key) > 0 && key[0] == spaceExpiry:
		return "the index of expiries"
	case len(key) > 0 && key[0] == spaceProbe:
		return "the probes of the seal"
	case len(key) > 0 && key[0] == spaceRecords:
		if name, _, ok := strings.Cut(string(key[1:]), "\x00"); ok {
			return fmt.Sprintf("messages of topics (%.60q)", name)
		}
	}
	return fmt.Sprintf("the key %.40x", key)
}
