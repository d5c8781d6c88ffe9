// Package timestamp gives the times of changes.
//
// It owns the process's last stamp and its row in table meta; package chat owns the use of
// a stamp, and the rule that none goes back within a chat. A Clock may be used by many
// goroutines.
package timestamp

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

// MaxLead is by how much a stamp may be ahead of this process's clock. A row with a later
// time was stamped while a clock was wrong: it counts no more, so that one jump of a clock
// does not date a chat, or the store, for as long as the jump was wide. It is far above the
// 20 s from which on a process with a wrong clock is not ready.
const MaxLead = 5 * time.Minute

// Clock gives stamps, in unix ms, that never go back by less than MaxLead: neither in
// this process, nor, with the stamp written down every ten seconds, after a restart with
// a clock that was set back. The row is shared by all processes of a store. It rises,
// but for one that is ahead by more than MaxLead; then it also says that stamps go back.
type Clock struct {
	st  store.Store
	now func() time.Time

	mu      sync.Mutex
	last    int64
	row     row       // as far as this process knows it
	readAt  time.Time // when Setbacks or Begin read the row
	writing bool      // a caller of Keep is at work
	tried   int64     // the last stamp that was to be written down

	// A setback that the row does not have yet.
	from  int64 // stamps go back to this time; 0: nowhere
	own   int64 // the last stamp, or the row's, that was dropped; 0: none
	floor int64 // the greatest floor that was dropped; it counts if above row.to
}

// New makes a clock over the wall clock now that knows nothing of the store's last stamp
// yet. A process has one for each store.
func New(st store.Store, now func() time.Time) *Clock { return &Clock{st: st, now: now} }

// Load has the clock continue from the store's last stamp.
func (c *Clock) Load(ctx context.Context) error {
	it, err := c.st.Get(ctx, table.ClockKey(), store.Strong)
	if err != nil {
		return fmt.Errorf("read clock: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := rowFrom(it); r.newer(c.row) {
		c.row = r
	}
	c.last = max(c.last, c.row.stamp)
	return nil
}

// Next returns the time of a change that must not be before floor, unless floor is ahead
// of the clock by more than MaxLead.
func (c *Clock) Next(floor int64) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now().UnixMilli()
	c.drop(now)
	c.last = max(c.last, now)
	if floor <= now+MaxLead.Milliseconds() {
		c.last = max(c.last, floor)
	} else if floor > max(c.row.to, c.floor) {
		c.floor, c.from = floor, earlier(c.from, now)
	}
	return c.last
}

// drop forgets stamps that are too far ahead, and notes that stamps go back.
func (c *Clock) drop(now int64) {
	t := max(c.last, c.row.stamp)
	if t <= now+MaxLead.Milliseconds() {
		return
	}
	c.own, c.from, c.tried = max(c.own, t), earlier(c.from, now), 0
	if c.last > now+MaxLead.Milliseconds() {
		c.last = now
	}
}

// tries is how often a row that other processes write, too, is tried.
const tries = 3

// Keep writes down the time that the next stamps are not before, if the row is older by
// ten seconds, and at once that stamps go back, before the first of them is given out. It
// comes before the stamps, because the write shows a row that is ahead: of another
// process, or of reads. Only one caller writes; a failure is made good by the next.
func (c *Clock) Keep(ctx context.Context, transact func(context.Context, store.Plan) error) {
	c.observe(c.now().UnixMilli())
	c.keep(ctx, transact, every)
}

// observe takes a time in that stamps must not be before.
func (c *Clock) observe(now int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop(now)
	c.last = max(c.last, now)
}

func (c *Clock) keep(ctx context.Context, transact func(context.Context, store.Plan) error, every time.Duration) {
	for range tries {
		w, next, ok := c.begin(every)
		if !ok {
			return
		}
		err := transact(ctx, store.Plan{Writes: []store.Write{w}})
		if !c.end(next, err) {
			return
		}
	}
}

// begin returns the write of the row that is due, and the row that it makes.
func (c *Clock) begin(every time.Duration) (w store.Write, next row, due bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop(c.now().UnixMilli())
	back := c.own != 0 || c.floor > c.row.to
	late := c.last-max(c.row.stamp, c.tried) >= every.Milliseconds()
	if c.writing || !back && !late {
		return w, next, false
	}
	next, cond := c.row, store.Condition{}.Lt(table.AttrStamp, store.Int(c.last))
	next.stamp = c.last
	if back {
		next.back = Setbacks{Count: c.row.back.Count + 1, From: earlier(c.row.back.From, c.from)}
		next.to = max(c.row.to, c.own, c.floor)
		cond = c.row.unchanged()
	} else if c.row.stamp == 0 {
		cond = store.Absent()
	}
	c.writing, c.tried = true, c.last
	return store.Write{
		Op: store.OpUpdate, Key: table.ClockKey(), Name: "clock",
		Update: store.Update{Set: next.attrs(back)}, Cond: cond,
	}, next, true
}

// end takes over how a write of the row ended, and reports whether to look again.
func (c *Clock) end(next row, err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writing = false
	var failed *store.ConditionError
	switch {
	case err == nil:
		if next.back != c.row.back {
			c.own = 0
			if c.floor <= next.to {
				c.from = 0
			}
		}
		c.row = next
		return false
	case errors.As(err, &failed): // another process was faster
		c.row, c.tried = rowFrom(failed.Failures[0].Current), 0
		return true
	case errors.Is(err, store.ErrAmbiguous): // the repetition shows which
		c.tried = 0
		return true
	}
	return false
}

// earlier returns the earlier of two times, of which 0 is none.
func earlier(a, b int64) int64 {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}
