package stamp_test

import (
	"context"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/chat/stamp"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/store/table"
)

type world struct {
	t   *testing.T
	st  store.Store
	now time.Time
}

func (w *world) load() *stamp.Clock {
	w.t.Helper()
	c, err := stamp.Load(w.t.Context(), w.st, func() time.Time { return w.now })
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

func (w *world) keep(c *stamp.Clock) (stored int64) {
	w.t.Helper()
	c.Keep(w.t.Context(), func(ctx context.Context, p store.Plan) error { return w.st.Transact(ctx, p) })
	it, err := w.st.Get(w.t.Context(), table.ClockKey(), store.Strong)
	if err != nil {
		w.t.Fatal(err)
	}
	return it.Get(table.AttrStamp).Int64()
}

// Stamps do not go back with a clock that is set back by up to five minutes, nor with a
// restart.
func TestStampsDoNotGoBack(t *testing.T) {
	w := &world{t: t, st: storetest.NewMap(time.Now), now: time.UnixMilli(1_700_000_000_000)}
	c := w.load()
	first := c.Next(0)
	w.keep(c)
	w.now = w.now.Add(-4 * time.Minute)
	if next := c.Next(0); next < first {
		t.Errorf("%d after %d", next, first)
	}
	if next := w.load().Next(0); next < first {
		t.Errorf("after a restart %d, before %d", next, first)
	}
	if next := w.load().Next(first + 60_000); next != first+60_000 {
		t.Errorf("%d is before the floor", next)
	}
}

// A clock that was a year ahead for one change dates nothing when it is right again: not
// the process, not the chat whose head has that time, not the next process.
func TestAJumpDoesNotLast(t *testing.T) {
	const start = 1_700_000_000_000
	w := &world{t: t, st: storetest.NewMap(time.Now), now: time.UnixMilli(start)}
	c := w.load()
	c.Next(0)
	w.keep(c)
	w.now = w.now.AddDate(1, 0, 0)
	far := c.Next(0)
	if stored := w.keep(c); stored != far {
		t.Fatalf("stored %d, not %d", stored, far)
	}
	w.now = time.UnixMilli(start + 1000)
	if next := c.Next(far); next != start+1000 {
		t.Errorf("the process stamps %d", next)
	}
	if next := w.load().Next(far); next != start+1000 {
		t.Errorf("the next process stamps %d", next)
	}
	again := w.load()
	again.Next(far)
	if stored := w.keep(again); stored != start+1000 {
		t.Errorf("%d is stored", stored)
	}
}
