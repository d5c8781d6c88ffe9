package embedded

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// The seal detects what Pebble cannot: a log file that was removed or truncated, and with
// it acknowledged writes. Once a second, while there are writes, a probe is written among
// them: a key with a number. When it is on the disk, the file SEAL beside the store records
// the number. A loss of writes also loses the probes between them.
//
// Writes after the last probe before a crash are not covered: up to a second.
const (
	sealFile   = "SEAL"
	sealEvery  = time.Second
	sealProbes = 3600 // probes that are kept and must exist
	spaceProbe = 0x03 // number → the last commit that was on the disk before
)

// ErrLost says that acknowledged data is missing.
var ErrLost = errors.New("data that was acknowledged is missing")

func probeKey(n uint64) []byte { return binary.BigEndian.AppendUint64([]byte{spaceProbe}, n) }

// seal is the content of SEAL.
type seal struct {
	generation string
	probes     uint64
}

func readSeal(fs vfs.FS, dir string) (s seal, exists bool, err error) {
	path := fs.PathJoin(dir, sealFile)
	f, err := fs.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return s, false, nil
	}
	if err != nil {
		return s, false, fmt.Errorf("read seal: %w", plain(err))
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 256))
	if err != nil {
		return s, false, fmt.Errorf("read seal: %w", plain(err))
	}
	if n, err := fmt.Sscanf(string(b), "parley 1 %s %d", &s.generation, &s.probes); n != 2 || err != nil {
		return s, false, fmt.Errorf("%w: %s cannot be read, so nothing says whether data is missing; %s", ErrDamaged, path, HowToRepair)
	}
	return s, true, nil
}

func (s *Store) writeSeal() error {
	fs := s.opts.FS
	path := fs.PathJoin(s.opts.Dir, sealFile)
	f, err := fs.Create(path+".new", vfs.WriteCategoryUnspecified)
	if err != nil {
		return plain(err)
	}
	_, err = fmt.Fprintf(f, "parley 1 %s %d\n", s.generation, s.probes)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = fs.Rename(path+".new", path)
	}
	if err != nil {
		return plain(err)
	}
	return syncDir(fs, s.opts.Dir)
}

// Lost is the refusal to open a store without its missing data.
func Lost(what, generation string) error {
	return fmt.Errorf("%w: %s; put the files back as they were, or %s, or continue without it by starting once with --accept-loss %s; after both all clients synchronise again", ErrLost, what, HowToRepair, generation)
}

// checkSeal refuses a store that lacks data by its seal. It opens the store read-only,
// because Pebble removes files that its manifest does not list, even if the manifest is
// damaged. complete finishes the opening once the store is writable.
func (s *Store) checkSeal(dir string, opts *pebble.Options) (complete func() error, err error) {
	opts.ReadOnly, opts.FS = true, withoutOptions{opts.FS}
	if s.db, err = pebble.Open(dir, opts); err != nil {
		return nil, damaged(dir, err)
	}
	defer func() {
		err = errors.Join(err, s.db.Close())
		s.db = nil
	}()
	if err := s.loadHistory(); err != nil {
		return nil, damaged(dir, fmt.Errorf("read generation: %w", err))
	}
	return s.evaluateSeal()
}

func (s *Store) evaluateSeal() (complete func() error, err error) {
	recorded, exists, err := readSeal(s.opts.FS, s.opts.Dir)
	if err != nil {
		return nil, err
	}
	have, last, err := s.countProbes()
	if err != nil {
		return nil, damaged(s.opts.FS.PathJoin(s.opts.Dir, "store"), fmt.Errorf("read its probes: %w", err))
	}
	s.probes = max(last, recorded.probes)
	crashed := len(s.ancestors) > 0 && recorded.generation == s.ancestors[0].Generation
	switch {
	case !exists: // written by a version without seals, or new
		return s.writeSeal, nil
	case crashed && s.Dropped(recorded.generation): // in Renew: the probes were dropped
		s.probes = last
		return s.writeSeal, nil
	case recorded.generation != s.generation && !crashed:
		err = Lost(fmt.Sprintf("SEAL in %s is of another store (%s)", s.opts.Dir, recorded.generation), s.generation)
	case last < recorded.probes:
		err = Lost(fmt.Sprintf("the store in %s ends before its seal, a file of it was removed or cut", s.opts.Dir),
			s.generation)
	case have < min(last, sealProbes):
		err = Lost(fmt.Sprintf("the store in %s has gaps, a file of it was removed or cut", s.opts.Dir), s.generation)
	case crashed:
		return s.writeSeal, nil
	default:
		return func() error { return nil }, nil
	}
	if s.opts.AcceptLoss != s.generation {
		return nil, err
	}
	s.opts.Logger.Warn("continuing without data that was acknowledged", "error", err)
	return func() error { return s.Renew() }, nil
}

// countProbes returns how many of the last probes there are, and the last.
func (s *Store) countProbes() (have, last uint64, err error) {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{spaceProbe}, UpperBound: []byte{spaceProbe + 1}})
	if err != nil {
		return 0, 0, err
	}
	for ok := it.Last(); ok; ok = it.Prev() {
		n := binary.BigEndian.Uint64(it.Key()[1:])
		last = max(last, n)
		if n+sealProbes > last {
			have++
		}
	}
	return have, last, it.Close()
}

// putSeal writes the next probe, and records it in SEAL once it is on the disk.
func (s *Store) putSeal() error {
	s.sealing.Lock()
	defer s.sealing.Unlock()
	b := s.db.NewBatch()
	defer func() { _ = b.Close() }()
	next := s.probes + 1
	err := b.Set(probeKey(next), binary.BigEndian.AppendUint64(nil, uint64(s.shown.Load())), nil)
	if next > sealProbes {
		err = errors.Join(err, b.Delete(probeKey(next-sealProbes), nil))
	}
	if err == nil {
		err = s.db.Apply(b, pebble.Sync)
	}
	if err != nil {
		return translate(err)
	}
	s.probes = next
	return s.writeSeal()
}

// sealLoop seals while there are writes, and a last time when the store is closed.
func (s *Store) sealLoop() {
	t := time.NewTicker(s.opts.sealEvery)
	defer t.Stop()
	sealed, failed := int64(0), false
	for end := false; !end; {
		select {
		case <-s.stop:
			end = true
		case <-t.C:
		}
		n := s.plans.Load() + s.expired.Load()
		if n == sealed || s.barrier.Failure() != nil || s.opts.noSync {
			continue
		}
		err := s.putSeal()
		if err != nil && !failed {
			s.opts.Logger.Warn("the store is not sealed; a file that is removed would not be noticed", "error", err)
		}
		if failed = err != nil; !failed {
			sealed = n
		}
	}
}

// checkAbsent refuses to create a store where one existed before. It runs before anything
// is created.
func checkAbsent(o Options, dir string) error {
	if _, err := o.FS.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		return nil
	}
	recorded, exists, err := readSeal(o.FS, o.Dir)
	if err != nil || !exists {
		return err
	}
	if o.AcceptLoss == recorded.generation {
		o.Logger.Warn("starting with an empty store: the recorded one is missing", "dir", dir)
		return o.FS.Remove(o.FS.PathJoin(o.Dir, sealFile))
	}
	return Lost(fmt.Sprintf("the store in %s is not there", dir), recorded.generation)
}
