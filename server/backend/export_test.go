package backend

import (
	"context"
	"errors"
	"time"

	"github.com/parley-chat/parley/server/store/dynamo"
	"github.com/parley-chat/parley/server/store/dynamo/tables"
)

// WatchEvery sets how often Run looks.
func (e *Backend) WatchEvery(d time.Duration) { e.watchEvery = d }

// HeartbeatEvery sets how often a process records a heartbeat of the tables.
func (e *Backend) HeartbeatEvery(d time.Duration) {
	e.seen.every = d
	e.seen.due = time.Now()
}

// Tables is the engine of the distributed mode.
func (e *Backend) Tables() *dynamo.Store { return e.dynamo }

// Observe sets for how long Running watches, and how long at most.
func (r *Restored) Observe(d, limit time.Duration) { r.observe, r.lease = d, limit }

// OpenHasty is Open for a test in which the time of a call is up after three tries.
func (t Tables) OpenHasty(ctx context.Context) (*tables.Tables, error) {
	c, tries := t.wire(), 0
	c.Sleep = func(context.Context, time.Duration) error {
		if tries++; tries == 3 {
			return errors.New("the time is up")
		}
		return nil
	}
	return tables.Open(ctx, c, t.Prefix)
}
