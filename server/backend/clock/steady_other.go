//go:build !linux

package clock

import "time"

// System are the clocks of the machine. There is none here that counts while it sleeps,
// so the wall clock is compared with itself: a sleep must not look like a jump.
func System() Clocks {
	return Clocks{Wall: time.Now, Steady: func() time.Duration { return time.Duration(time.Now().UnixNano()) }}
}
