package pace

import (
	"context"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/infra/wait"
)

// Throttle holds workers in the background to one Pace. Its target follows from what the live
// path takes when hardly anything goes beside it, which differs with disks, stores and load.
type Throttle struct {
	live  *Window
	clock func() time.Time

	mu    sync.Mutex
	pace  Pace
	idle  time.Duration // what the live path takes by itself; 0: not known
	seen  time.Time     // when it was learned last
	spare int64         // that was taken and not used
	slow  int64
}

const (
	// allowed is how much the live path may take, of what it takes by itself.
	allowed = 1.5
	// relearn is how long it takes to believe that the live path is slow by itself: while hardly
	// anything goes, longer than a Window has what went before.
	relearn = time.Minute
	// shortest is between two checks whether something may go.
	shortest = time.Millisecond
)

// NewThrottle makes a Throttle of what a Window measures; the limits' target is not used.
func NewThrottle(live *Window, l Limits, clock func() time.Time) *Throttle {
	return &Throttle{live: live, clock: clock, pace: New(l)}
}

// Wait waits until something may go, and returns how much of most, at least 1. If the live
// path is idle that is all, at once. Errors: the context's.
func (t *Throttle) Wait(ctx context.Context, limit int64) (int64, error) {
	for {
		n, due := t.take(limit)
		if n > 0 {
			return n, ctx.Err()
		}
		if err := wait.For(ctx, max(due, shortest)); err != nil {
			return 0, err
		}
	}
}

// Return refunds what was not used of what may go.
func (t *Throttle) Return(n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.spare = max(0, min(t.spare+n, t.pace.size))
}

// Slowed counts how often something went while the live path was slow.
func (t *Throttle) Slowed() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.slow
}

func (t *Throttle) take(limit int64) (n int64, due time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.clock()
	p95 := t.live.P95(now)
	if p95 == 0 {
		t.pace, t.spare = New(t.pace.limits), 0
		return limit, 0
	}
	t.learn(now, p95)
	if n = min(t.spare, limit); n > 0 {
		t.spare -= n
		return n, 0
	}
	if n = t.pace.Take(now, p95, limit); n > 0 {
		if t.pace.Slow() {
			t.slow++
		}
		// The rest of a batch beyond one worker's step is there for the next.
		t.spare = t.pace.size - n
	}
	return n, t.pace.Due(now)
}

// learn follows what the live path takes by itself: down at once, and up only while hardly
// anything goes beside it.
func (t *Throttle) learn(now time.Time, p95 time.Duration) {
	passed := now.Sub(t.seen)
	t.seen = now
	switch {
	case t.idle == 0:
		t.idle = p95
		t.pace.size, t.pace.next = t.pace.limits.least(), now // until it is known better
	case p95 < t.idle:
		t.idle -= (t.idle - p95) / 4
	case t.pace.size <= t.pace.limits.least() && passed < relearn:
		t.idle += time.Duration(float64(p95-t.idle) * passed.Seconds() / relearn.Seconds())
	}
	t.pace.limits.Target = time.Duration(allowed * float64(t.idle))
}
