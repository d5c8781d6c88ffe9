package embedded

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"syscall"
	"time"

	"github.com/parley-chat/parley/server/store/embedded/iowatch"
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

// reportEvery is the time between two checks of the calls that are under way.
const reportEvery = time.Second / 2

// fillsSoon are the times left at which a disk that fills is logged, and how often it is
// logged again between them.
var fillsSoon = []time.Duration{24 * time.Hour, 4 * time.Hour, time.Hour}

const fillsAgain = 6 * time.Hour

// ioLoop logs a disk that is slow or hangs. It makes no call to the file system, which could
// hang, too.
func (s *Store) ioLoop() {
	s.every(reportEvery, func() { s.io.Report(s.opts.Logger, s.opts.Dir) })
}

// spaceLoop asks how full the disk is, and logs one that will be full soon.
func (s *Store) spaceLoop() {
	var f filling
	s.every(space.Every, func() {
		now := s.opts.now()
		s.disk.Full(now)
		f.report(s.opts.Logger, s.opts.Dir, s.disk.State(now), now)
	})
}

// filling is what was logged of a disk that fills.
type filling struct {
	level  int // of fillsSoon
	logged time.Time
}

// report logs that the disk will be full soon: once at each time of fillsSoon, and then every
// six hours.
func (f *filling) report(log *slog.Logger, dir string, state space.State, now time.Time) {
	reached := 0
	for reached < len(fillsSoon) && state.Fills && state.Left < fillsSoon[reached] {
		reached++
	}
	if reached > f.level || reached > 0 && now.Sub(f.logged) >= fillsAgain {
		f.logged = now
		log.Warn("the disk will be full soon: writes are then refused", "dir", dir,
			"hours_left", math.Round(state.Left.Hours()*10)/10, "free_bytes", state.Free, "reserve_bytes", state.Reserve)
	}
	// The level falls only once there is plenty of time: an estimate goes to and fro.
	if reached > f.level || !state.Fills || state.Left > 2*fillsSoon[0] {
		f.level = reached
	}
}

// every calls f at intervals until the store closes.
func (s *Store) every(interval time.Duration, f func()) {
	t := time.NewTicker(interval)
	defer t.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-t.C:
			f()
		}
	}
}

// OldestCall returns the call to the disk that has been under way for the longest time.
func (s *Store) OldestCall() iowatch.Call { return s.io.Oldest() }

// SlowestCall returns the time of the slowest call to the disk within about the last minute.
func (s *Store) SlowestCall() time.Duration { return s.io.Recent() }

// Space is how full the disk is, as of at most some seconds ago. It does not wait for the disk.
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
