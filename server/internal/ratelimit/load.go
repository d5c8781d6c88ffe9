package ratelimit

import (
	"sync"
	"time"
)

// Load bounds the calls under way by how long they take: while many take too long, fewer are
// let in, so that those that are let in are answered in time, and the rest learns at once
// that it has to retry. The bound grows again while calls are fast and there are as many as
// it allows.
type Load struct {
	mu       sync.Mutex
	most     int // never more than that; 0: no bound
	bound    int
	underWay int
	refused  int64

	cut         time.Time // the bound was lowered
	until       time.Time // end of the period that is counted
	peak        int       // most under way in it
	ended, slow int       // calls that ended in it
}

const (
	slowAfter = time.Second // a later answer is too late
	period    = 250 * time.Millisecond

	firstBound = 512
	lowest     = 32
)

// NewLoad makes a bound of at most so many calls; 0: none, and calls are only counted.
func NewLoad(limit int) *Load { return &Load{most: limit, bound: min(limit, firstBound)} }

// Enter lets a call in at a time; Leave must follow. ok is false if it must not proceed.
func (l *Load) Enter(now time.Time) (began time.Time, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.review(now)
	if l.most > 0 && l.underWay >= l.bound {
		l.refused++
		l.peak = l.bound
		return now, false
	}
	l.underWay++
	l.peak = max(l.peak, l.underWay)
	return now, true
}

// Leave ends a call that began at a time.
func (l *Load) Leave(began, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.underWay--
	l.ended++
	if now.Sub(began) > slowAfter {
		l.slow++
	}
	l.review(now)
}

// Stats are the calls under way, how many there may be, and how many were refused.
func (l *Load) Stats() (underWay, bound int, refused int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.underWay, l.bound, l.refused
}

// review sets the bound at the end of a period. The caller holds the lock.
func (l *Load) review(now time.Time) {
	if now.Before(l.until) && l.until.Sub(now) <= period { // else the clock was set back
		return
	}
	switch {
	case 2*l.slow > l.ended && now.Sub(l.cut).Abs() > slowAfter: // what began before a cut is slow after it
		l.cut = now
		l.bound = max(min(lowest, l.most), min(l.bound, l.peak)*4/5)
	case l.slow == 0 && 10*l.peak >= 9*l.bound:
		l.bound = min(l.most, l.bound+l.bound/16+1)
	}
	l.until, l.peak, l.ended, l.slow = now.Add(period), l.underWay, 0, 0
}
