package timestamp_test

import (
	"context"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/chat/timestamp"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/store/table"
)

type fixture struct {
	t   *testing.T
	st  store.Store
	now time.Time
}

func (w *fixture) clock() *timestamp.Clock {
	return timestamp.New(w.st, func() time.Time { return w.now })
}

func (w *fixture) load() *timestamp.Clock {
	w.t.Helper()
	c := w.clock()
	if err := c.Load(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	return c
}

func (w *fixture) keep(c *timestamp.Clock) (stored int64) {
	w.t.Helper()
	c.Keep(w.t.Context(), func(ctx context.Context, p store.Plan) error { return w.st.Transact(ctx, p) })
	it, err := w.st.Get(w.t.Context(), table.ClockKey(), store.Strong)
	if err != nil {
		w.t.Fatal(err)
	}
	return it.Get(table.AttrStamp).Int64()
}

// Reads that begin together after a night without any, while the row cannot be written,
// begin now and not in the evening, if the process called Raise meanwhile.
func TestReadsAfterAnIdleTime(t *testing.T) {
	for _, raised := range []bool{true, false} {
		w := &fixture{t: t, st: storetest.NewMemory(time.Now), now: time.UnixMilli(1_700_000_000_000)}
		c := w.load()
		for night := w.now.Add(10 * time.Hour); w.now.Before(night); w.now = w.now.Add(timestamp.RaisePause) {
			if raised {
				c.Raise(t.Context())
			}
		}
		w.st = refusing{w.st}
		start, err := timestamp.New(w.st, func() time.Time { return w.now }).Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if late := w.now.Sub(start.At); late > 0 == raised {
			t.Errorf("raised %t: the read begins %v ago", raised, late)
		}
	}
}

// A write of the row whose outcome is unknown is repeated, so that the read begins now,
// whether the write was done or not.
func TestReadAfterAnUnknownOutcome(t *testing.T) {
	for _, done := range []bool{true, false} {
		w := &fixture{t: t, st: storetest.NewMemory(time.Now), now: time.UnixMilli(1_700_000_000_000)}
		w.keep(w.load())
		w.now = w.now.Add(time.Hour)
		w.st = &undecided{Store: w.st, done: done}
		if start, err := w.load().Begin(t.Context()); err != nil || !start.At.Equal(w.now) {
			t.Errorf("done %t: the read begins at %v, not %v; %v", done, start.At, w.now, err)
		}
	}
}

// undecided is a store whose first write has an unknown outcome.
type undecided struct {
	store.Store
	done, over bool
}

func (u *undecided) Transact(ctx context.Context, p store.Plan) error {
	if u.over {
		return u.Store.Transact(ctx, p)
	}
	u.over = true
	if u.done {
		if err := u.Store.Transact(ctx, p); err != nil {
			return err
		}
	}
	return store.ErrAmbiguous
}

// refusing is a store that cannot be written.
type refusing struct{ store.Store }

func (refusing) Transact(context.Context, store.Plan) error { return store.ErrUnavailable }

// Stamps do not go back with a clock that is set back by up to five minutes, nor with a
// restart.
func TestStampsDoNotGoBack(t *testing.T) {
	w := &fixture{t: t, st: storetest.NewMemory(time.Now), now: time.UnixMilli(1_700_000_000_000)}
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
	w := &fixture{t: t, st: storetest.NewMemory(time.Now), now: time.UnixMilli(start)}
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

// Stamps that go back because the clock had been wrong are reported to every process, before
// the first of them is issued, and once: not again for each chat of that time.
func TestSetbacksAreReported(t *testing.T) {
	const start = 1_700_000_000_000
	w := &fixture{t: t, st: storetest.NewMemory(time.Now), now: time.UnixMilli(start)}
	watch := w.clock()
	wantSetbacks := func(what string, want timestamp.Setbacks) {
		t.Helper()
		got, err := watch.Setbacks(t.Context())
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v", what, got, err)
		}
	}
	c := w.load()
	c.Next(0)
	w.keep(c)
	wantSetbacks("before", timestamp.Setbacks{})
	other := w.load()
	other.Next(0)

	w.now = time.UnixMilli(start + 3_600_000)
	far := c.Next(0)
	w.keep(c)
	w.now = time.UnixMilli(start + 60_000)
	w.keep(c)
	wantSetbacks("after an hour ahead", timestamp.Setbacks{Count: 1, From: start + 60_000})
	if next := c.Next(far); next != start+60_000 {
		t.Errorf("stamp %d", next)
	}

	// Neither the chat of that time nor a process that never saw the row makes it two.
	w.now = time.UnixMilli(start + 90_000)
	w.keep(c)
	other.Next(far)
	w.keep(other)
	w.keep(other)
	again := w.load()
	again.Next(far)
	w.keep(again)
	w.now = time.UnixMilli(start + 120_000)
	wantSetbacks("the same", timestamp.Setbacks{Count: 1, From: start + 60_000})

	// Another one, of another process that wrote nothing while its clock was wrong.
	w.now = time.UnixMilli(start + 1_800_000)
	other.Next(0)
	w.now = time.UnixMilli(start + 150_000)
	w.keep(other)
	wantSetbacks("twice", timestamp.Setbacks{Count: 2, From: start + 60_000})
}

// A process whose clock is right hears of the others' from a chat that they changed.
func TestSetbackHeardFromAChat(t *testing.T) {
	const start = 1_700_000_000_000
	w := &fixture{t: t, st: storetest.NewMemory(time.Now), now: time.UnixMilli(start)}
	c := w.load()
	c.Next(start + 3_600_000)
	c.Keep(t.Context(), func(context.Context, store.Plan) error { return store.ErrUnavailable })
	w.keep(c)
	got, err := w.clock().Setbacks(t.Context())
	if want := (timestamp.Setbacks{Count: 1, From: start}); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
}
