package stamp

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Setbacks is what the store knows of stamps that went back by more than MaxLead, because
// a clock was wrong for a while. Who knows all changes up to a time not before From, by
// stamps from before the last setback, may miss changes with earlier stamps.
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

// fresh is how long a Watch goes by what it read. A time that a wrong clock gave lies
// ahead for minutes, MaxLead less the overlap of reads, so it is known by then.
const fresh = 10 * time.Second

// Watch reports the setbacks of a store, whichever process noticed them. It may be used
// by many goroutines.
type Watch struct {
	st   store.Store
	now  func() time.Time
	seen atomic.Pointer[seen]
}

type seen struct {
	at   time.Time
	back Setbacks
}

// NewWatch makes a Watch over the wall clock now.
func NewWatch(st store.Store, now func() time.Time) *Watch { return &Watch{st: st, now: now} }

// Setbacks returns what the store said at most ten seconds ago; a clock that was set
// makes it read again. Errors: the store's.
func (w *Watch) Setbacks(ctx context.Context) (Setbacks, error) {
	now := w.now()
	if s := w.seen.Load(); s != nil && near(now, s.at) {
		return s.back, nil
	}
	it, err := w.st.Get(ctx, table.ClockKey(), store.Strong)
	if err != nil {
		return Setbacks{}, fmt.Errorf("read clock: %w", err)
	}
	back := rowFrom(it).back
	w.seen.Store(&seen{at: now, back: back})
	return back, nil
}

// near reports whether little time lies between two, by the wall clock, which shows that
// it was set, and by the monotonic one, which shows that it was set back and has run on.
func near(a, b time.Time) bool {
	return a.Sub(b).Abs() < fresh && a.Round(0).Sub(b.Round(0)).Abs() < fresh
}

// Last returns what was read last, without a read; nothing before the first one.
func (w *Watch) Last() Setbacks {
	if s := w.seen.Load(); s != nil {
		return s.back
	}
	return Setbacks{}
}
