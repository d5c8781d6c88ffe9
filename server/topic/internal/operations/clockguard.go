package operations

import (
	"sync"
	"time"
)

// Rules of wall.
const (
	wallJump    = time.Hour      // by which the clock may be off what has passed
	wallConfirm = 24 * time.Hour // after which a clock that was set counts as right
)

// clockGuard says whether the wall clock is to be believed when it says that something is old
// enough to be removed: removed messages do not return when the clock is corrected. It is
// believed as it was at the start, and as it slowly moves; one that was set by more than
// wallJump is, once it has stayed like that for wallConfirm. A machine that slept looks like
// one.
type clockGuard struct {
	now   func() time.Time
	began time.Time // its monotonic part, which no change of the clock affects

	mu     sync.Mutex
	right  time.Duration // of the clock against what has passed
	other  time.Duration // to which it was set
	since  time.Duration // passed when it was
	jumped bool
}

func newClockGuard(now func() time.Time) *clockGuard {
	w := &clockGuard{now: now, began: time.Now()}
	w.right, _ = w.offset()
	return w
}

// offset is the wall clock less what has passed since the start, and that.
func (w *clockGuard) offset() (offset, passed time.Duration) {
	passed = time.Since(w.began)
	return time.Duration(w.now().UnixNano()) - passed, passed
}

// trusted checks the clock. jumped says that it has just been set.
func (w *clockGuard) trusted() (ok, jumped bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	offset, passed := w.offset()
	if nearOffset(offset, w.right) {
		w.right, w.jumped = offset, false
		return true, false
	}
	if !w.jumped || !nearOffset(offset, w.other) {
		w.jumped, w.other, w.since = true, offset, passed
		return false, true
	}
	if passed-w.since < wallConfirm {
		return false, false
	}
	w.right, w.jumped = offset, false
	return true, false
}

func nearOffset(a, b time.Duration) bool { return (a - b).Abs() <= wallJump }
