package streamwriter

import (
	"context"
	"time"
)

const (
	gatherTime = 2 * time.Millisecond // between responses of a stream under load
	gatherFrom = 4                    // responses that may follow each other at once
)

// Pace spaces the responses of a stream under load: frames that come meanwhile are one
// response. It lets some pass at once, so that a response waits only if several came just
// before it.
type Pace struct {
	due   time.Time // when the responses so far would have been sent, each gatherTime after the one before
	timer *time.Timer
}

// Spend records a response.
func (p *Pace) Spend(now time.Time) {
	if p.due.Before(now) {
		p.due = now
	}
	p.due = p.due.Add(gatherTime)
	// Frames that are sent without a wait, as when a stream catches up, are not made up for
	// later.
	if latest := now.Add((gatherFrom + 1) * gatherTime); p.due.After(latest) {
		p.due = latest
	}
}

// wait is how long the next response has to wait.
func (p *Pace) wait(now time.Time) time.Duration {
	if p.due.Before(now) {
		return 0
	}
	return max(0, p.due.Sub(now)-gatherFrom*gatherTime)
}

// Gather waits for more to send where the stream has sent many responses just now. The
// error is the context's.
func (p *Pace) Gather(ctx context.Context) error {
	wait := p.wait(time.Now())
	if wait == 0 {
		return nil
	}
	if p.timer == nil {
		p.timer = time.NewTimer(wait)
	} else {
		p.timer.Reset(wait)
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-p.timer.C:
		return nil
	}
}
