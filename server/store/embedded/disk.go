package embedded

import (
	"errors"
	"syscall"

	"github.com/parley-chat/parley/server/store/embedded/space"
)

// watch sets up the watch of free disk space.
func (s *Store) watch() {
	s.disk.Usage = func() (free, total uint64) { return space.Usage(s.opts.FS, s.opts.Dir) }
	s.disk.Changed = func(full bool, free uint64) {
		s.opts.Logger.Warn("free disk space changed", "writes_refused", full, "free_bytes", free)
	}
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
