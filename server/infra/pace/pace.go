// Package pace lets work in the background go as fast as it can without slowing the work in the
// foreground: the live path.
//
// A Window measures the live path, a Pace says how much may go when, and a Throttle holds
// several workers to one Pace whose target it finds itself. While the live path is slower than
// the target, less goes at a time and the pauses are longer; then it grows again, step by step.
//
// It owns this rule, and no work.
//
// Concurrency: a Window and a Throttle are safe for concurrent use; one goroutine uses a Pace.
package pace

import (
	"slices"
	"sync"
	"time"
)

const (
	samples   = 100              // of a Window
	sampleAge = 30 * time.Second // after which one does not count any more
)

// Window holds the last latencies of the live path.
type Window struct {
	mu   sync.Mutex
	last [samples]sample
	next int
}

type sample struct {
	at      time.Time
	latency time.Duration
}

// Observe adds a latency.
func (w *Window) Observe(now time.Time, latency time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last[w.next] = sample{now, latency}
	w.next = (w.next + 1) % samples
}

// P95 returns what 95 of 100 took no longer than; 0 if nothing was observed lately.
func (w *Window) P95(now time.Time) time.Duration {
	var list []time.Duration
	w.mu.Lock()
	for _, s := range w.last {
		if !s.at.IsZero() && now.Sub(s.at) < sampleAge {
			list = append(list, s.latency)
		}
	}
	w.mu.Unlock()
	if len(list) == 0 {
		return 0
	}
	slices.Sort(list)
	return list[(len(list)*95+99)/100-1]
}

const (
	longestPause = 5 * time.Second
	leastOf      = 64                    // of a batch, what goes at a time at least, and by what that grows
	beginOf      = 8                     // of a batch, what goes first beside others
	lateness     = 50 * time.Millisecond // that the next batch may make up for
)

// Limits are those of a Pace. Batch and Rate are 1 or more.
type Limits struct {
	Batch  int64         // that goes at a time at most
	Rate   int64         // a second
	Target time.Duration // what the live path is to take at most, 95 of 100
}

func (l Limits) least() int64 { return max(l.Batch/leastOf, 1) }

// Pace says how much of some work goes when.
type Pace struct {
	limits Limits
	size   int64         // of the next batch
	next   time.Time     // not before
	slow   bool          // the last one went while the live path was slow
	worst  time.Duration // what the live path took since the last one
}

// New makes a Pace.
func New(l Limits) Pace { return Pace{limits: l, size: l.Batch} }

// Take returns how much of most may go now, 0 if nothing may yet. It is called often: the effect
// of the last batch on the live path is past when the next one is due. While that is slower than
// the target, the pause until the next one is longer by what it is slower, and each time half as
// much goes; then that grows again, step by step. A small batch is followed by the pause of a
// whole one: it is the rate that falls.
func (p *Pace) Take(now time.Time, p95 time.Duration, limit int64) int64 {
	p.worst = max(p.worst, p95)
	if now.Before(p.next) || limit <= 0 {
		return 0
	}
	p95, p.worst = p.worst, 0
	var pause time.Duration
	switch p.slow = p95 > p.limits.Target; {
	case p.slow:
		pause = min(p95-p.limits.Target, longestPause)
		p.size = max(p.size/2, p.limits.least())
	case p95 == 0: // there are no others
		p.size = p.limits.Batch
	case p.next.IsZero():
		p.size = max(p.limits.Batch/beginOf, 1)
	default:
		p.size = min(p.size+p.limits.least(), p.limits.Batch)
	}
	n := min(p.size, limit)
	from := now
	if now.Sub(p.next) < lateness {
		from = p.next
	}
	p.next = from.Add(time.Duration(p.limits.Batch)*time.Second/time.Duration(p.limits.Rate) + pause)
	return n
}

// Slow reports whether the live path was slow when something was taken last.
func (p *Pace) Slow() bool { return p.slow }

// Due is in how long the next batch may go, if the last one is taken.
func (p *Pace) Due(now time.Time) time.Duration { return p.next.Sub(now) }
