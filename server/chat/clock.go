package chat

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// clockEvery is how often the last stamp is written down.
const clockEvery = 10 * time.Second

// clock gives stamps, in unix ms, that never go back: neither in this process,
// nor, with the stamp written down every clockEvery, after a restart with a
// clock that was set back. The row is shared by all processes of a store and only
// rises.
type clock struct {
	mu     sync.Mutex
	last   int64
	stored int64
}

func (c *clock) load(ctx context.Context, cfg Config) error {
	it, err := cfg.Store.Get(ctx, table.ClockKey(), store.Strong)
	if err != nil {
		return fmt.Errorf("read clock: %w", err)
	}
	c.last = it.Get(table.AttrStamp).Int64()
	c.stored = c.last
	return nil
}

// stamp returns the time of a change that must not be before floor.
func (s *Service) stamp(floor int64) int64 {
	c := &s.clock
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = max(s.cfg.Clock().UnixMilli(), c.last, floor)
	return c.last
}

// keepClock writes the last stamp down if it is time. Only one caller writes;
// a failure is made good by the next.
func (s *Service) keepClock(ctx context.Context) {
	c := &s.clock
	c.mu.Lock()
	last := c.last
	due := last-c.stored >= clockEvery.Milliseconds()
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
	failed := conditionError(s.transact(ctx, store.Plan{Writes: []store.Write{w}}))
	if failed != nil && failed.Failures[0].Current == nil {
		w.Cond = store.Absent()
		_ = s.transact(ctx, store.Plan{Writes: []store.Write{w}}) // another process was faster, or next time
	}
}
