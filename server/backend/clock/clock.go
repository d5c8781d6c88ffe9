// Package clock notices that the wall clock of the machine is set.
//
// It compares the wall clock with one that cannot be set, which continues to count while
// the machine sleeps. It owns the measurement and the log messages; the caller decides what
// follows from a jump. It cannot know whether the clock was right at first.
//
// Concurrency: a Watch is safe for concurrent use; Run is called once.
package clock

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/infra/wait"
)

// Limits of a jump.
const (
	// Alert is the smallest jump that is logged.
	Alert = 5 * time.Second
	// ConfirmAfter is how long a clock that was set must stay as it is before it counts as
	// right.
	ConfirmAfter = 5 * time.Minute

	interval = time.Second
	// tolerance is how much the difference of the two clocks may change without a change by
	// a user or a program.
	tolerance = 500 * time.Millisecond
)

// Clocks are the two clocks that are compared.
type Clocks struct {
	Wall   func() time.Time
	Steady func() time.Duration // since some time, not set by anybody
}

// Watch compares them.
type Watch struct {
	clocks Clocks
	log    *slog.Logger

	mu         sync.Mutex
	right      time.Duration // wall less steady, as long as the wall clock counts as right
	reported   bool          // that it jumped
	lastOffset time.Duration // wall less steady at the last check
	since      time.Duration // steady time from which it has been like that
}

// New makes a Watch for which the wall clock is right as it is now.
func New(c Clocks, log *slog.Logger) *Watch {
	w := &Watch{clocks: c, log: log}
	w.right, w.since = w.offset()
	w.lastOffset = w.right
	return w
}

// offset is the wall clock less the steady one, and that.
func (w *Watch) offset() (offset, steady time.Duration) {
	steady = w.clocks.Steady()
	return time.Duration(w.clocks.Wall().UnixNano()) - steady, steady
}

// Skew is by how much the wall clock was set since it counted as right: ahead, or
// negative if it was set back.
func (w *Watch) Skew() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	offset, _ := w.offset()
	return offset - w.right
}

// Run compares the clocks until ctx ends. It logs a jump once, and counts the clock as
// right again when it has stayed as it is for ConfirmAfter.
func (w *Watch) Run(ctx context.Context) {
	wait.Every(ctx, interval, w.check)
}

func (w *Watch) check() {
	w.mu.Lock()
	defer w.mu.Unlock()
	offset, steady := w.offset()
	if d := offset - w.lastOffset; d.Abs() > tolerance {
		w.since = steady
	}
	w.lastOffset = offset
	skew := offset - w.right
	switch {
	case skew.Abs() <= Alert:
		if w.reported {
			w.reported = false
			w.log.Info("the clock is back", "off", skew.Round(time.Millisecond))
		}
	case steady-w.since >= ConfirmAfter:
		w.right, w.reported = offset, false
		w.log.Warn("the clock was set and has stayed so; it counts as right", "by", skew.Round(time.Millisecond))
	case !w.reported:
		w.reported = true
		w.log.Error("the clock of this machine was set", "by", skew.Round(time.Millisecond), "counts_as_right_after",
			ConfirmAfter)
	}
}
