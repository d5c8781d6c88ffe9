package timestamp

import (
	"context"
	"fmt"
	"time"

	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Setbacks is what the store knows of stamps that went back by more than MaxLead, because a
// clock was wrong for a while. A reader that knows all changes up to a time not before
// From, by stamps from before the last setback, may miss changes with earlier stamps.
type Setbacks struct {
	Count int64 // how often stamps went back
	From  int64 // unix ms: the earliest time that they went back to
}

// row is the clock's row.
type row struct {
	stamp int64
	back  Setbacks
	to    int64 // unix ms: the greatest stamp from which stamps went back
}

func rowFrom(it store.Item) row {
	return row{
		stamp: it.Get(table.AttrStamp).Int64(),
		back:  Setbacks{Count: it.Get(table.AttrSetbacks).Int64(), From: it.Get(table.AttrSetbackFrom).Int64()},
		to:    it.Get(table.AttrSetbackTo).Int64(),
	}
}

// attrs returns what a write of the row sets.
func (r row) attrs(back bool) []store.Attr {
	set := []store.Attr{{Name: table.AttrStamp, Value: store.Int(r.stamp)}}
	if back {
		set = append(set,
			store.Attr{Name: table.AttrSetbacks, Value: store.Int(r.back.Count)},
			store.Attr{Name: table.AttrSetbackFrom, Value: store.Int(r.back.From)},
			store.Attr{Name: table.AttrSetbackTo, Value: store.Int(r.to)})
	}
	return set
}

// unchanged holds while the row in the store is this one.
func (r row) unchanged() store.Condition {
	switch {
	case r.stamp == 0:
		return store.Absent()
	case r.back.Count == 0: // a row of a release that did not count, too
		return store.Condition{}.Eq(table.AttrStamp, store.Int(r.stamp)).Without(table.AttrSetbacks)
	}
	return store.Condition{}.Eq(table.AttrStamp, store.Int(r.stamp)).Eq(table.AttrSetbacks, store.Int(r.back.Count))
}

// newer reports whether r was stored after o: a setback lowers the stamp, and nothing else
// does.
func (r row) newer(o row) bool {
	return r.back.Count > o.back.Count || (r.back.Count == o.back.Count && r.stamp > o.stamp)
}

// fresh is how long readers go by the row that was read. A time that a wrong clock gave
// lies ahead for minutes, MaxLead less the overlap of reads, so it is known by then.
const fresh = 10 * time.Second

// raiseEvery is how old the row's stamp may be before a reader raises it. A reader's time
// may lie past the row by reach.
const (
	raiseEvery = time.Minute
	reach      = raiseEvery + fresh
)

// RaisePause is the pause between two calls of Raise. With raiseIdle it is less than
// reach, so that the row covers every read of a process that calls Raise.
const (
	RaisePause = 20 * time.Second
	raiseIdle  = 30 * time.Second
)

// Start is where reads begin: they show every change that is stamped before At, by stamps
// that went back as often as Setbacks says.
type Start struct {
	At       time.Time
	Setbacks int64
}

// Setbacks returns what the store said at most ten seconds ago; a clock that was set
// makes it read again. Errors: the store's.
func (c *Clock) Setbacks(ctx context.Context) (Setbacks, error) {
	if err := c.refresh(ctx, c.now()); err != nil {
		return Setbacks{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.row.back, nil
}

// Begin returns where reads that follow begin. A caller that gets the time may rely on
// having every change that is stamped before it, just as if the time were a stamp. So later
// stamps of this process are not before it, and the row covers it: if the clock turns out
// to have been ahead, every process sees the setback, although no command ran meanwhile. A
// time that the row does not cover, because it could not be written, is not given out.
// Errors: the store's.
func (c *Clock) Begin(ctx context.Context) (Start, error) {
	at := c.now()
	if err := c.refresh(ctx, at); err != nil {
		return Start{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if covered := time.UnixMilli(c.row.stamp); at.After(covered.Add(reach)) {
		at = covered
	}
	return Start{At: at, Setbacks: c.row.back.Count}, nil
}

// Run calls Raise at once, and then every RaisePause until ctx ends. It is ready after the first call.
func (c *Clock) Run(ctx context.Context, ready func()) error {
	c.Raise(ctx)
	ready()
	for wait.For(ctx, RaisePause) == nil {
		c.Raise(ctx)
	}
	return nil
}

// Raise writes the present time into the row if the row is older by raiseIdle. Called
// every RaisePause, it keeps the row close enough that reads which begin together after
// an idle time need not wait for a write to be covered. A write that fails is repeated.
func (c *Clock) Raise(ctx context.Context) {
	c.observe(c.now().UnixMilli())
	c.keep(ctx, c.st.Transact, raiseIdle)
}

// refresh takes a reader's time in. It reads the row, unless that was done a moment ago,
// and writes it if a setback or this time is missing. A write that fails is not an error:
// the next one repeats it.
func (c *Clock) refresh(ctx context.Context, now time.Time) error {
	c.observe(now.UnixMilli())
	c.mu.Lock()
	known := near(now, c.readAt)
	c.mu.Unlock()
	if known {
		return nil
	}
	it, err := c.st.Get(ctx, table.ClockKey(), store.Strong)
	if err != nil {
		return fmt.Errorf("read clock: %w", err)
	}
	c.mu.Lock()
	c.readAt = now
	if r := rowFrom(it); r.newer(c.row) {
		c.row = r
	}
	c.mu.Unlock()
	c.keep(context.WithoutCancel(ctx), c.st.Transact, raiseEvery) // a client that leaves must not make times old
	return nil
}

// near reports whether little time lies between two, by the wall clock, which shows that
// it was set, and by the monotonic one, which shows that it was set back and has run on.
func near(a, b time.Time) bool {
	return a.Sub(b).Abs() < fresh && a.Round(0).Sub(b.Round(0)).Abs() < fresh
}
