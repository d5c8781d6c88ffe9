package testkit

import (
	"testing/synctest"
	"time"
)

// Advance lets d pass in the simulated time of a bubble of testing/synctest, and returns when
// every other goroutine of the bubble is blocked. It costs no real time. Outside a bubble it
// panics at once, so no test waits for a real clock with it. Only one goroutine of a bubble
// may be in it.
func Advance(d time.Duration) {
	synctest.Wait()
	time.Sleep(d)
	synctest.Wait()
}
