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

// MaxLead is by how much a stamp may be ahead of this process's clock. What is stored
// with a later time was stamped while a clock was wrong: it counts no more, so that one
// jump of a clock does not date a chat, or the store, for as long as the jump was wide.
// It is far above the 20 s from which on a process with a wrong clock is not ready.
const MaxLead = 5 * time.Minute

// Clock gives stamps, in unix ms, that never go back by less than MaxLead: neither in
// this process, nor, with the stamp written down every ten seconds, after a restart with
// a clock that was set back. The row is shared by all processes of a store. It rises,
// but for one that is ahead by more than MaxLead.
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

// Next returns the time of a change that must not be before floor, unless floor is ahead
// of the clock by more than MaxLead.
func (c *Clock) Next(floor int64) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now().UnixMilli()
	last := now
	for _, t := range [...]int64{c.last, floor} {
		if t <= now+MaxLead.Milliseconds() {
			last = max(last, t)
		}
	}
	c.last = last
	return last
}

// Keep writes the last stamp down if it is time, with transact. Only one caller writes;
// a failure is made good by the next.
func (c *Clock) Keep(ctx context.Context, transact func(context.Context, store.Plan) error) {
	c.mu.Lock()
	last, stored := c.last, c.stored
	ahead := stored > c.now().UnixMilli()+MaxLead.Milliseconds()
	due := last-stored >= every.Milliseconds() || (ahead && last < stored)
	if due {
		c.stored = last
	}
	c.mu.Unlock()
	if !due {
		return
	}
	cond := store.Condition{}.Lt(table.AttrStamp, store.Int(last))
	if ahead {
		cond = store.Condition{}.Eq(table.AttrStamp, store.Int(stored))
	}
	w := store.Write{
		Op: store.OpUpdate, Key: table.ClockKey(), Name: "clock",
		Update: store.Update{Set: []store.Attr{{Name: table.AttrStamp, Value: store.Int(last)}}},
		Cond:   cond,
	}
	var failed *store.ConditionError
	if errors.As(transact(ctx, store.Plan{Writes: []store.Write{w}}), &failed) && failed.Failures[0].Current == nil {
		w.Cond = store.Absent()
		_ = transact(ctx, store.Plan{Writes: []store.Write{w}}) // another process was faster, or next time
	}
}
