package embedded

import (
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Writes other than deletes are refused while less than minFree percent of the disk
// is free: what Pebble needs to tidy up, and to stop in order, stays there.
const minFree = 5

// diskEvery is the time between two questions to the file system.
const diskEvery = 2 * time.Second

// diskWatch asks the file system now and then how much is free. Writes ask it: a
// store that is not written to needs no watch.
type diskWatch struct {
	next atomic.Int64 // unix ms of the next question
	full atomic.Bool
}

// full reports whether writes must be refused. A file system that does not know how
// much is free counts as free.
func (s *Store) full() bool {
	now := s.opts.now().UnixMilli()
	if next := s.disk.next.Load(); now >= next && s.disk.next.CompareAndSwap(next, now+diskEvery.Milliseconds()) {
		u, err := s.opts.FS.GetDiskUsage(s.opts.Dir)
		full := err == nil && u.TotalBytes > 0 && float64(u.AvailBytes) < float64(u.TotalBytes)*minFree/100
		if full != s.disk.full.Swap(full) {
			s.opts.Logger.Warn("free disk space changed", "writes_refused", full, "free_bytes", u.AvailBytes)
		}
	}
	return s.disk.full.Load()
}

// openReserve is what an opening needs on the disk besides what it rewrites.
const openReserve = 16 << 20

// checkSpace refuses to open a store where the disk has no room for it: Pebble writes
// its log anew as tables first, and tries for ever.
func checkSpace(fs vfs.FS, dir string) error {
	names, err := fs.List(dir)
	if err != nil {
		return nil // there is none yet, or the opening says what is wrong
	}
	need := uint64(openReserve)
	for _, name := range names {
		if info, err := fs.Stat(fs.PathJoin(dir, name)); err == nil && strings.HasSuffix(name, ".log") {
			need += uint64(info.Size())
		}
	}
	u, err := fs.GetDiskUsage(dir)
	if err != nil || u.TotalBytes == 0 || u.AvailBytes >= need {
		return nil
	}
	return fmt.Errorf("the disk of %s is full: %d MB are free, the store needs %d MB to start; nothing was changed", dir, u.AvailBytes>>20, need>>20+1)
}
