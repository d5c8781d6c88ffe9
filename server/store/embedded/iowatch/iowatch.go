// Package iowatch measures the calls to a file system that have not returned: a disk that
// hangs returns no error.
//
// It owns which calls are under way and since when, and when a slow disk is logged. It does
// not own what follows from that, such as readiness.
//
// Concurrency: a Watch is safe for concurrent use, except for Report, which belongs to one
// goroutine. Its mutex is held for moments only, never during a call to the file system.
package iowatch

import (
	"log/slog"
	"sync"
	"time"
)

const (
	slowFrom   = time.Second      // a call that takes as long is logged
	quietFor   = 10 * time.Second // without a slow call, after which the disk counts as fast again
	repeatFor  = time.Minute      // between two lines about a disk that stays slow
	recentFor  = time.Minute      // for which Recent keeps a call that has returned
	recentPart = recentFor / 2
)

// Call is a call to the file system.
type Call struct {
	Op   string        // such as sync; empty: there is no call
	File string        // path
	Took time.Duration // or takes, until now
}

// Watch knows the calls that are under way.
type Watch struct {
	now func() time.Time

	mu    sync.Mutex
	slots []slot // without an op: free
	free  []int  // indexes of free slots
	ended Call   // the slowest that has returned since the last Report
	// The slowest in the current part of a minute, and in the one before.
	recent, before time.Duration
	part           time.Time // when the current part began

	slow     bool // as it was last logged; these belong to Report
	reported time.Duration
	logged   time.Time
	last     time.Time     // when there was a slow call
	longest  time.Duration // since the disk became slow
}

type slot struct {
	op, file string
	since    time.Time
}

// New makes a Watch. now must not go back, as time.Now does not.
func New(now func() time.Time) *Watch { return &Watch{now: now, part: now()} }

// begin records a call, and returns what ends it.
func (w *Watch) begin(op, file string) int {
	now := w.now()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.free) == 0 {
		w.free = append(w.free, len(w.slots))
		w.slots = append(w.slots, slot{})
	}
	i := w.free[len(w.free)-1]
	w.free = w.free[:len(w.free)-1]
	w.slots[i] = slot{op, file, now}
	return i
}

// end records that a call has returned.
func (w *Watch) end(i int) {
	now := w.now()
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.slots[i]
	w.slots[i] = slot{}
	w.free = append(w.free, i)
	took := now.Sub(s.since)
	if took > w.ended.Took {
		w.ended = Call{s.op, s.file, took}
	}
	w.turn(now)
	w.recent = max(w.recent, took)
}

// turn begins another part of a minute where the current one is over. The caller holds mu.
func (w *Watch) turn(now time.Time) {
	passed := now.Sub(w.part)
	if passed < recentPart {
		return
	}
	w.before, w.recent, w.part = w.recent, 0, now
	if passed >= recentFor {
		w.before = 0
	}
}

// Oldest returns the call that has been under way for the longest time.
func (w *Watch) Oldest() Call {
	now := w.now()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.oldest(now)
}

func (w *Watch) oldest(now time.Time) (c Call) {
	for _, s := range w.slots {
		if took := now.Sub(s.since); s.op != "" && took >= c.Took {
			c = Call{s.op, s.file, took}
		}
	}
	return c
}

// Recent returns the time of the slowest call that has returned within about the last
// minute, or that is under way.
func (w *Watch) Recent() time.Duration {
	now := w.now()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.turn(now)
	return max(w.recent, w.before, w.oldest(now).Took)
}

// Report logs a slow disk: at the first call that takes a second, again whenever the wait
// has doubled or a minute has passed, and once when no call was slow for 10 s. Callers repeat
// it several times a second, since it sees calls that are under way only then.
func (w *Watch) Report(log *slog.Logger, dir string) {
	now := w.now()
	w.mu.Lock()
	c := w.oldest(now)
	if w.ended.Took > c.Took {
		c = w.ended
	}
	w.ended = Call{}
	w.mu.Unlock()
	switch {
	case c.Took >= slowFrom:
		w.last, w.longest = now, max(w.longest, c.Took)
		if w.slow && c.Took < 2*w.reported && now.Sub(w.logged) < repeatFor {
			return
		}
		w.slow, w.reported, w.logged = true, c.Took, now
		log.Warn("the disk is slow or hangs: calls that need it wait", "dir", dir, "waits_for", c.Op, "file", c.File,
			"seconds", c.Took.Round(time.Second/10).Seconds())
	case w.slow && now.Sub(w.last) >= quietFor:
		log.Info("the disk is no longer slow", "dir", dir, "longest_seconds", w.longest.Round(time.Second/10).Seconds())
		w.slow, w.reported, w.longest = false, 0, 0
	}
}
