package embedded

import (
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/parley-chat/parley/server/infra/descriptors"
	"github.com/parley-chat/parley/server/infra/memory"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded/barrier"
	"github.com/parley-chat/parley/server/store/embedded/iowatch"
	"github.com/parley-chat/parley/server/store/embedded/itemcodec"
	"github.com/parley-chat/parley/server/store/embedded/space"
)

// Errors of Open, each fit for one line.
var (
	ErrLocked = errors.New("data directory is in use by another process")
	ErrFormat = errors.New("data directory has a format that this version cannot read")
)

// Options set an engine up. Only Dir is required.
type Options struct {
	Dir    string           // created if missing
	FS     vfs.FS           // default: the disk
	Clock  func() time.Time // decides what has expired; default: time.Now
	Logger *slog.Logger     // default: discards
	// Fatal is called if a sync fails, or if Pebble cannot continue: acknowledged data may
	// be lost, so it must end the process. Until then writes and Durable fail. Default: a
	// panic that no caller can recover.
	Fatal func(error)
	// AcceptLoss is the generation of a store whose loss of data is accepted: it opens with
	// the remaining data, under a new generation.
	AcceptLoss string
	// Reserve is how much of the disk must be free for writes, in bytes; 0 for the default. The
	// store never takes less than it needs itself.
	Reserve uint64
	// ReadOnly opens an existing store without changing anything; writes fail. A store that
	// lacks data by its seal opens, too: [Store.Lacks] says so.
	ReadOnly bool
	// ClockSet reports whether the clock was changed, so that expiry is uncertain: nothing
	// is removed meanwhile. Default: never.
	ClockSet func() bool

	// Seeded bugs, which tests must detect.
	noSync bool // a write does not wait for the disk
	noWait bool // Durable does not wait for what others wrote
	late   bool // a ticket is acquired after its write is visible
	stale  bool // cached items do not follow changes
	undead bool // items that expired stay cached when they are removed

	// Tests set these.
	onVisible  func()           // called as soon as a write is visible
	now        func() time.Time // of the disk watch
	sweepEvery time.Duration
	sealEvery  time.Duration
}

func (o Options) withDefaults() Options {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.ClockSet == nil {
		o.ClockSet = func() bool { return false }
	}
	if o.now == nil {
		o.now = time.Now
	}
	if o.sweepEvery == 0 {
		o.sweepEvery = sweepEvery
	}
	if o.sealEvery == 0 {
		o.sealEvery = sealEvery
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Fatal == nil {
		o.Fatal = func(err error) {
			// In a goroutine of its own: the server recovers panics of its handlers, and
			// must not survive this one.
			go panic(fmt.Errorf("embedded: the disk cannot be relied on: %w", err))
		}
	}
	return o
}

// memtableSize is the size of a memtable, in bytes, on a disk that allows so much of it, for a
// process that may use so much memory: two are in memory outside of Go's, and its collector
// knows nothing of them.
func memtableSize(disk uint64, total int64) uint64 {
	if total <= 0 {
		return disk
	}
	return min(disk, max(space.Memtable(1), uint64(total)/16))
}

// maxBlocks is how many bytes of the files' blocks stay in memory, once they were read, at
// the most: a sixteenth of a small memory.
const maxBlocks = 128 << 20

// cacheSize is the size of Pebble's cache for a process that may use so much memory, in
// bytes, and what of it blocks have; 0 where the memory is not known. Pebble takes its
// memtables out of its cache, and has two: one that is filled, and one that is written or
// waits to be filled again. A cache no larger than they keeps no block at all.
func cacheSize(total int64, memtable uint64) (size, blocks int64) {
	blocks = maxBlocks
	if total > 0 {
		blocks = min(blocks, total/16)
	}
	return blocks + 2*int64(memtable), blocks
}

// While at least busyWriters wait for a sync, syncs are busyInterval apart, which
// lets each carry more of them; alone, a writer is synced at once.
const (
	busyWriters  = 24
	busyInterval = time.Millisecond
)

// Open opens the engine in a data directory, and creates it if there is none.
// Errors: ErrLocked, ErrFormat, and those of the file system.
func Open(o Options) (*Store, error) {
	o = o.withDefaults()
	if o.Dir == "" {
		return nil, errors.New("embedded: a data directory is required")
	}
	o.Dir = o.FS.PathDir(o.FS.PathJoin(o.Dir, "x")) // without a separator at the end
	if !o.ReadOnly {
		if err := makeDir(o.FS, o.Dir); err != nil {
			return nil, err
		}
	} else if _, err := o.FS.Stat(o.FS.PathJoin(o.Dir, "store")); err != nil {
		return nil, fmt.Errorf("there is no store: %w", plain(err))
	}
	lock, err := lockDir(o.FS, o.Dir)
	if err != nil {
		return nil, err
	}
	s, err := open(o)
	if err != nil {
		_ = lock.Close()
		return nil, err
	}
	s.lock = lock
	return s, nil
}

// Lock locks an existing data directory as an open store does, so that its files can be read.
// Errors: ErrLocked, and those of the file system.
func Lock(dir string) (io.Closer, error) {
	if _, err := os.Stat(filepath.Join(dir, "store")); err != nil {
		return nil, fmt.Errorf("there is no store: %w", plain(err))
	}
	return lockDir(vfs.Default, dir)
}

func lockDir(fs vfs.FS, dir string) (io.Closer, error) {
	lock, err := fs.Lock(fs.PathJoin(dir, "LOCK"))
	if file := (*os.PathError)(nil); errors.As(err, &file) || errors.Is(err, os.ErrPermission) {
		return nil, fmt.Errorf("lock data directory: %w", plain(err))
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, ErrLocked)
	}
	return lock, nil
}

func open(o Options) (*Store, error) {
	earlier, err := checkFormat(o.FS, o.Dir)
	if err != nil {
		return nil, err
	}
	s := &Store{stop: make(chan struct{}), seed: maphash.MakeSeed(), io: iowatch.New(time.Now)}
	o.FS = s.io.FS(walFS{o.FS})
	s.opts = o
	s.barrier = barrier.New()
	s.watch()
	s.disk.Full(o.now())
	_, diskSize := space.Usage(o.FS, o.Dir)
	memtable := memtableSize(space.Memtable(diskSize), memory.Total())
	size, blocks := cacheSize(memory.Total(), memtable)
	s.blocks = blocks
	cache := pebble.NewCache(size)
	defer cache.Unref()
	opts := &pebble.Options{
		FS:                 o.FS,
		Cache:              cache,
		MemTableSize:       memtable,
		MaxOpenFiles:       descriptors.Store(),
		FormatMajorVersion: pebbleFormat,
		EventListener:      &pebble.EventListener{DataCorruption: s.corruption, BackgroundError: s.backgroundError},
		Logger:             logger{s},
		WALMinSyncInterval: func() time.Duration {
			if s.barrier.InFlight() < busyWriters {
				return 0
			}
			return busyInterval
		},
	}
	setLevels(opts, filters)
	dir := o.FS.PathJoin(o.Dir, "store")
	if !o.ReadOnly {
		if err := finishRepair(o.FS, o.Dir); err != nil {
			return nil, fmt.Errorf("finish the repair of the store: %w", plain(err))
		}
	}
	if err := checkAbsent(o, dir); err != nil {
		return nil, err
	}
	if _, err := o.FS.Stat(dir); errors.Is(err, os.ErrNotExist) {
		if err := writeFormat(o.FS, o.Dir); err != nil {
			return nil, err
		}
		earlier = false
		if err := create(o.FS, o.Dir, dir, opts.Clone()); err != nil {
			return nil, err
		}
	}
	if o.ReadOnly {
		return s, s.openReadOnly(dir, opts)
	}
	if err := space.Check(o.FS, dir); err != nil {
		return nil, err
	}
	// Without its own files Pebble would create a new store over the remaining files.
	opts.ErrorIfNotExists = true
	complete, err := s.checkSeal(dir, opts.Clone())
	if err == nil && earlier {
		err = writeFormat(o.FS, o.Dir)
	}
	if err == nil {
		err = removeBadOptions(o, dir, opts.Clone())
	}
	if err != nil {
		return nil, err
	}
	logged, err := lastLogged(o.FS, dir)
	if err != nil {
		return nil, fmt.Errorf("open store: %w", plain(err))
	}
	if s.db, err = pebble.Open(dir, opts); err != nil {
		return nil, damaged(dir, err)
	}
	if err := complete(); err != nil {
		return nil, errors.Join(fmt.Errorf("write seal: %w", err), s.db.Close())
	}
	if err := s.proceed(logged); err != nil {
		return nil, errors.Join(fmt.Errorf("begin a generation: %w", plain(err)), s.db.Close())
	}
	s.weigh()
	s.background.Go(s.sweepLoop)
	s.background.Go(s.sealLoop)
	s.background.Go(s.ioLoop)
	s.background.Go(s.spaceLoop)
	return s, nil
}

// filters are those of all levels.
var filters = bloom.FilterPolicy(10)

var generationKey = appendKey(nil, store.Key{Table: store.Meta, PK: "generation"})

// create makes a new store with a generation. It builds the store in another directory and
// renames that when it is complete: after an interruption the next attempt starts over.
func create(fs vfs.FS, parent, dir string, opts *pebble.Options) error {
	fail := func(err error) error { return fmt.Errorf("create store: %w", plain(err)) }
	tmp := dir + ".new"
	if err := fs.RemoveAll(tmp); err != nil {
		return fail(err)
	}
	db, err := pebble.Open(tmp, opts)
	if err != nil {
		return fail(err)
	}
	_, row, err := newGeneration(nil)
	if err == nil {
		err = db.Set(generationKey, itemcodec.Append(nil, row), pebble.Sync)
	}
	if err = errors.Join(err, db.Close()); err != nil {
		return fail(err)
	}
	if err := syncDir(fs, tmp); err != nil {
		return err
	}
	if err := fs.Rename(tmp, dir); err != nil {
		return fail(err)
	}
	return syncDir(fs, parent)
}

// corruption records and logs damaged data; its readers get store.ErrCorrupt, and the rest of the
// data stays available.
func (s *Store) corruption(info pebble.DataCorruptionInfo) {
	s.damaged.Store(true)
	s.opts.Logger.Error("a file of the store is damaged, and calls that need what it has fail: stop the server and run the command check --repair",
		"path", info.Path, "error", plain(info.Details).Error()) // as an error it would log Pebble's stack
}

// Damaged reports whether a file could not be read as it was written since the store was opened.
func (s *Store) Damaged() bool { return s.damaged.Load() }

// logger logs Pebble's errors and drops its informational messages.
type logger struct{ s *Store }

func (l logger) Infof(string, ...any) {}

func (l logger) Errorf(format string, args ...any) {
	// The message names the kind of error: loggers limit repetitions by message, and a full
	// disk causes thousands of the same kind a second.
	kind, _, _ := strings.Cut(format, "%")
	l.s.opts.Logger.Error("store engine: "+strings.TrimRight(kind, ": "), "message", fmt.Sprintf(format, args...))
}

// Fatalf must not return.
func (l logger) Fatalf(format string, args ...any) {
	err := fmt.Errorf("store engine: "+format, args...)
	l.s.fail(err)
	panic(err)
}
