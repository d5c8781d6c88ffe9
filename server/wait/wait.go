// Package wait pauses a goroutine for a time, or until its context ends.
//
// It owns nothing else: when to retry and how often is its callers' business. Its
// functions may be called by many goroutines.
package wait

import (
	"context"
	"time"
)

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
