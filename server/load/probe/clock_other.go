//go:build !linux

package probe

import "time"

// Clock sleeps as exactly as the runtime does.
type Clock struct{}

// NewClock makes one for the goroutine that calls it, which closes it.
func NewClock() Clock { return Clock{} }

// Close ends its use.
func (Clock) Close() {}

// Sleep sleeps for a time.
func (Clock) Sleep(d time.Duration) { time.Sleep(d) }
