package embedded

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// watch sets up the watch of free disk space.
func (s *Store) watch() {
	s.disk.Usage = func() (free, total uint64) { return diskUsage(s.opts.FS, s.opts.Dir) }
	s.disk.Changed = func(full bool, free uint64) {
		s.opts.Logger.Warn("free disk space changed", "writes_refused", full, "free_bytes", free)
	}
}

// diskUsage returns the free and total size of a file system; 0 if it is unknown.
func diskUsage(fs vfs.FS, dir string) (free, total uint64) {
	u, err := fs.GetDiskUsage(dir)
	if err != nil {
		return 0, 0
	}
	return u.AvailBytes, u.TotalBytes
}

// full reports whether writes other than deletes must be refused.
func (s *Store) full() bool { return s.disk.Full(s.opts.now()) }

// Crowded reports whether the disk is so full that optional work must wait.
func (s *Store) Crowded() bool { return s.disk.Crowded(s.opts.now()) }

// backgroundError handles an error of Pebble's background work.
func (s *Store) backgroundError(err error) {
	if errors.Is(err, syscall.ENOSPC) {
		s.disk.Failed(s.opts.now())
	}
}

// openReserve is what an opening needs on the disk besides what it rewrites.
const openReserve = 16 << 20

// checkSpace refuses to open a store without enough free space: Pebble first rewrites its
// log as tables, and retries for ever.
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
	free, total := diskUsage(fs, dir)
	if total == 0 || free >= need {
		return nil
	}
	return fmt.Errorf("the disk of %s is full: %d MB are free, the store needs %d MB to start; nothing was changed", dir, free>>20, need>>20+1)
}
