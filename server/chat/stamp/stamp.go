// Package stamp gives the times of changes.
//
// It owns the process's last stamp and its row in table meta; what a stamp is for, and
// that none goes back within a chat, is the business of package chat. A Clock may be used
// by many goroutines.
package stamp

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// every is how often the last stamp is written down.
const every = 10 * time.Second

// Clock gives stamps, in unix ms, that never go back: neither in this process,
// nor, with the stamp written down every ten seconds, after a restart with a
// clock that was set back. The row is shared by all processes of a store and only
// rises.
type Clock struct {
	now func() time.Time

	mu     sync.Mutex
	last   int64
	stored int64
}

// Load makes a clock over the wall clock now that goes on from the store's last stamp.
func Load(ctx context.Context, st store.Store, now func() time.Time) (*Clock, error) {
	it, err := st.Get(ctx, table.ClockKey(), store.Strong)
	if err != nil {
		return nil, fmt.Errorf("read clock: %w", err)
	}
	last := it.Get(table.AttrStamp).Int64()
	return &Clock{now: now, last: last, stored: last}, nil
}

// Next returns the time of a change that must not be before floor.
func (c *Clock) Next(floor int64) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = max(c.now().UnixMilli(), c.last, floor)
	return c.last
}

// Keep writes the last stamp down if it is time, with transact. Only one caller writes;
// a failure is made good by the next.
func (c *Clock) Keep(ctx context.Context, transact func(context.Context, store.Plan) error) {
	c.mu.Lock()
	last := c.last
	due := last-c.stored >= every.Milliseconds()
	if due {
		c.stored = last
	}
	c.mu.Unlock()
	if !due {
		return
	}
	w := store.Write{
		Op: store.OpUpdate, Key: table.ClockKey(), Name: "clock",
		Update: store.Update{Set: []store.Attr{{Name: table.AttrStamp, Value: store.Int(last)}}},
		Cond:   store.Condition{}.Lt(table.AttrStamp, store.Int(last)),
	}
	var failed *store.ConditionError
	if errors.As(transact(ctx, store.Plan{Writes: []store.Write{w}}), &failed) && failed.Failures[0].Current == nil {
		w.Cond = store.Absent()
		_ = transact(ctx, store.Plan{Writes: []store.Write{w}}) // another process was faster, or next time
	}
}
