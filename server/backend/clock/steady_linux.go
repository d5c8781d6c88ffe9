package clock

import (
	"time"

	"golang.org/x/sys/unix"
)

// System are the clocks of the machine. The steady one counts while it sleeps.
func System() Clocks {
	return Clocks{Wall: time.Now, Steady: func() time.Duration {
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
			return time.Duration(time.Now().UnixNano()) // then no jump is seen
		}
		return time.Duration(ts.Nano())
	}}
}
