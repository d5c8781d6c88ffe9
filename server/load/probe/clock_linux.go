package probe

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Clock sleeps to within some 50 µs, with a system call on a thread of its own: timers of
// the runtime come up to a millisecond late, which would count as the server's.
type Clock struct{}

// NewClock makes one for the goroutine that calls it, which closes it.
func NewClock() Clock {
	runtime.LockOSThread()
	return Clock{}
}

// Close ends its use.
func (Clock) Close() { runtime.UnlockOSThread() }

// Sleep sleeps for a time.
func (Clock) Sleep(d time.Duration) {
	end := time.Now().Add(d)
	for d > 0 {
		left := unix.NsecToTimespec(int64(d))
		if unix.Nanosleep(&left, nil) == nil {
			return
		}
		d = time.Until(end) // a signal came
	}
}
