package embedded

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/parley-chat/parley/server/store"
)

// Errors of Open, each fit for one line.
var (
	ErrLocked = errors.New("data directory is in use by another process")
	ErrFormat = errors.New("data directory has a format that this version cannot read")
)

// The format of the data directory: a reader must know at least formatReader.
const (
	formatVersion = 1
	formatReader  = 1
)

// Options set an engine up. Only Dir is required.
type Options struct {
	Dir    string           // created if missing
	FS     vfs.FS           // default: the disk
	Clock  func() time.Time // decides what has expired; default: time.Now
	Logger *slog.Logger     // default: discards
	// Fatal is called if a sync fails: what was promised cannot be kept, so the
	// process must end. Default: panic.
	Fatal func(error)

	noSync bool // tests only: show that they notice a store that does not sync
}

func (o Options) withDefaults() Options {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Fatal == nil {
		o.Fatal = func(err error) { panic(fmt.Errorf("embedded: sync failed: %w", err)) }
	}
	return o
}

// Sizes of Pebble's parts.
const (
	cacheSize    = 128 << 20
	memTableSize = 64 << 20
)

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
	if err := o.FS.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("create data directory: %w", plain(err))
	}
	// A directory is only there for good once its parent knows of it.
	if err := syncDir(o.FS, o.FS.PathDir(o.Dir)); err != nil {
		return nil, err
	}
	lock, err := o.FS.Lock(filepath.Join(o.Dir, "LOCK"))
	if err != nil {
		if errors.Is(err, os.ErrPermission) {
			return nil, fmt.Errorf("open data directory: %w", plain(err))
		}
		return nil, fmt.Errorf("%s: %w", o.Dir, ErrLocked)
	}
	s, err := open(o)
	if err != nil {
		_ = lock.Close()
		return nil, err
	}
	s.lock = lock
	return s, nil
}

func open(o Options) (*Store, error) {
	if err := checkFormat(o.FS, o.Dir); err != nil {
		return nil, err
	}
	s := &Store{opts: o, stop: make(chan struct{}), seed: maphash.MakeSeed()}
	s.mark.back = map[uint64]struct{}{}
	cache := pebble.NewCache(cacheSize)
	defer cache.Unref()
	opts := &pebble.Options{
		FS:                 o.FS,
		Cache:              cache,
		MemTableSize:       memTableSize,
		FormatMajorVersion: pebble.FormatNewest,
		Logger:             logger{o.Logger},
		WALMinSyncInterval: func() time.Duration {
			if s.mark.inFlight() < busyWriters {
				return 0
			}
			return busyInterval
		},
	}
	for i := range opts.Levels {
		opts.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	db, err := pebble.Open(filepath.Join(o.Dir, "store"), opts)
	if err != nil {
		return nil, fmt.Errorf("open store: %w", plain(err))
	}
	s.db = db
	if err := syncDir(o.FS, o.Dir); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	if s.generation, err = s.loadGeneration(); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	s.background.Go(s.sweepLoop)
	return s, nil
}

// plain takes the path's repetition out of file errors.
func plain(err error) error {
	var pe *os.PathError
	if errors.As(err, &pe) {
		return fmt.Errorf("%s: %w", pe.Path, pe.Err)
	}
	return err
}

// checkFormat reads the FORMAT file, or writes it in a new directory: the format's
// version and the oldest version that can read it.
func checkFormat(fs vfs.FS, dir string) error {
	path := filepath.Join(dir, "FORMAT")
	f, err := fs.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return writeFormat(fs, dir, path)
	}
	if err != nil {
		return fmt.Errorf("read format: %w", plain(err))
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 256))
	if err != nil {
		return fmt.Errorf("read format: %w", plain(err))
	}
	fields := strings.Fields(string(b))
	if len(fields) != 3 || fields[0] != "parley" {
		return fmt.Errorf("%s: %w: the FORMAT file is not Parley's", dir, ErrFormat)
	}
	if reader, err := strconv.Atoi(fields[2]); err != nil || reader > formatVersion {
		return fmt.Errorf("%s: %w: it needs format %s, this version knows %d", dir, ErrFormat, fields[2], formatVersion)
	}
	return nil
}

func writeFormat(fs vfs.FS, dir, path string) error {
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

// loadGeneration reads the store's generation, or makes one for a new store.
func (s *Store) loadGeneration() (string, error) {
	key := store.Key{Table: store.Meta, PK: "generation"}
	raw := appendKey(nil, key)
	it, err := s.load(raw)
	if err != nil {
		return "", fmt.Errorf("read generation: %w", err)
	}
	if g := it.Get("id").Str(); g != "" {
		return g, nil
	}
	var b [8]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", fmt.Errorf("make generation: %w", err)
	}
	g := hex.EncodeToString(b[:])
	if err := s.db.Set(raw, appendItem(nil, store.NewItem(store.Attr{Name: "id", Value: store.String(g)})), pebble.Sync); err != nil {
		return "", fmt.Errorf("write generation: %w", err)
	}
	return g, nil
}

// logger passes Pebble's complaints on; its chatter is not for operators.
type logger struct{ l *slog.Logger }

func (l logger) Infof(string, ...any) {}
func (l logger) Errorf(format string, args ...any) {
	l.l.Error("store engine", "message", fmt.Sprintf(format, args...))
}
func (l logger) Fatalf(format string, args ...any) {
	panic(fmt.Sprintf("store engine: "+format, args...))
}
