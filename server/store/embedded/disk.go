package embedded

import (
	"context"
	"errors"
	"log/slog"
	"syscall"

	"github.com/parley-chat/parley/server/store/embedded/space"
)

// watch sets up the watch of free disk space.
func (s *Store) watch() {
	s.disk.Usage = func() (free, total uint64) { return space.Usage(s.opts.FS, s.opts.Dir) }
	s.disk.Asked = s.opts.Reserve
	s.disk.Changed = func(now space.State) {
		level, text := slog.LevelInfo, "there is room on the disk again: writes are accepted"
		if now.Full {
			level, text = slog.LevelWarn, "the disk is nearly full: writes are refused, reads work; free some space or lower disk-reserve"
		}
		s.opts.Logger.Log(context.Background(), level, text, "dir", s.opts.Dir, "free_bytes", now.Free,
			"reserve_bytes", now.Reserve)
	}
}

// Space is how full the disk is.
func (s *Store) Space() space.State { return s.disk.State(s.opts.now()) }

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
