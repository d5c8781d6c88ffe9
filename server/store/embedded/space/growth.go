package space

import (
	"sync"
	"time"
)

// The growth of what is used is measured over the last hour and over the last day; the faster
// one counts. Less than ten minutes say nothing.
const (
	sampleEvery = 5 * time.Minute
	shortWindow = time.Hour
	longWindow  = 24 * time.Hour
	leastWindow = 10 * time.Minute
)

// growth measures how fast a disk fills.
//
// Concurrency: it is safe for concurrent use.
type growth struct {
	mu      sync.Mutex
	samples []sample // by time, at most a day's
}

type sample struct {
	at   time.Time
	free uint64 // bytes
}

// add records how much is free.
func (g *growth) add(now time.Time, free uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := len(g.samples); n > 0 {
		passed := now.Sub(g.samples[n-1].at)
		if passed < 0 { // the clock was set back: earlier measurements have no known age
			g.samples = g.samples[:0]
		} else if passed < sampleEvery {
			return
		}
	}
	old := 0
	for old < len(g.samples) && now.Sub(g.samples[old].at) > longWindow {
		old++
	}
	g.samples = append(g.samples[:0], g.samples[old:]...)
	g.samples = append(g.samples, sample{now, free})
}

// left returns the time after which room bytes are used up at the measured growth, and false
// if the disk does not fill. Temporary files, such as those that are being merged, do not
// count: noise is their size in bytes.
func (g *growth) left(now time.Time, free, room, noise uint64) (left time.Duration, fills bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	rate := 0.0 // bytes a second
	for _, window := range []time.Duration{shortWindow, longWindow} {
		for _, s := range g.samples {
			elapsed := now.Sub(s.at)
			if elapsed > window {
				continue
			}
			if elapsed >= leastWindow && s.free > free+noise {
				rate = max(rate, float64(s.free-free-noise)/elapsed.Seconds())
			}
			break // the oldest of the window
		}
	}
	if rate == 0 {
		return 0, false
	}
	seconds := min(float64(room)/rate, maxLeft.Seconds())
	return time.Duration(seconds * float64(time.Second)), true
}

// maxLeft is the longest time that is computed.
const maxLeft = 10 * 365 * 24 * time.Hour
