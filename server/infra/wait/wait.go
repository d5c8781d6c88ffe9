// Package wait pauses a goroutine for a time, or until something is ready or its context
// ends, and says how long pauses between retries are.
//
// It owns nothing else: its callers own retries and their number. Its functions may be
// called by many goroutines.
package wait

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// UntilReady tries something until it succeeds, and then returns nil; until explain says that
// an error is final, which no retry can help; or until ctx ends, with a pause after each
// failure. The error is what explain makes of the last one.
func UntilReady(
	ctx context.Context, pause time.Duration, try func(context.Context) error,
	explain func(error) (clear error, final bool),
) (err error, final bool) {
	var last error
	for {
		err := try(ctx)
		if err == nil {
			return nil, false
		}
		// The error before the deadline says more than the deadline.
		if last == nil || !errors.Is(err, context.DeadlineExceeded) {
			last = err
		}
		clear, final := explain(last)
		if final || For(ctx, pause) != nil {
			return clear, final
		}
	}
}

// Doubled returns the pause after n failures in a row: first, doubled n times, and at most
// last. n may be of any size.
func Doubled(first, last time.Duration, n int) time.Duration {
	d := first
	for ; n > 0 && d < last; n-- {
		d *= 2
	}
	return min(d, last)
}

// Jittered returns a random time below Doubled, so that callers that fail together do not
// come again together.
func Jittered(first, last time.Duration, n int) time.Duration {
	return rand.N(Doubled(first, last, n))
}

// For waits until d has passed and returns nil, or until ctx ends and returns its error.
// A context that has already ended wins, however short d is.
func For(ctx context.Context, d time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Every calls f at intervals, for the first time after one, until ctx ends. Intervals that pass
// during a call are made up for by one call at once.
func Every(ctx context.Context, interval time.Duration, f func()) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			f()
		}
	}
}
