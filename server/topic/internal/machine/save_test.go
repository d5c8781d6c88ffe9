package machine

import (
	"bytes"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/internal/racetest"
)

// saved is a cursor with something of everything.
func saved(t testing.TB) []byte {
	r := newFixture(t)
	c := plain("g")
	r.messages(20)
	g := r.begin(c, Begin{Start: 0})
	r.messages(100)
	m := r.member(g, "m")
	r.next(g)
	r.ack(m, 0, 5)
	r.ack(m, 7, 9)
	m.Nack(Positions{Base: 10, Count: 3}, time.Hour, "", r.now, nil)
	m.Nack(Positions{Base: 20}, 0, "", r.now, nil)
	return g.AppendCursor(nil)
}

// moved is a cursor of a group that was moved twice, and then began a backfill.
func moved(t testing.TB) []byte {
	r := newFixture(t)
	g := r.group(plain("g"))
	r.messages(30)
	for _, to := range []int64{25, 20} {
		_, err := g.SeekTo(to)
		must(t, err)
	}
	_, err := g.BeginBackfill(Backfill{Number: 7, From: 3, Limit: -1})
	must(t, err)
	return g.AppendCursor(nil)
}

// A cursor that was read writes the same bytes again.
func TestCursorRoundTrip(t *testing.T) {
	again := moved(t)
	if g, err := New(0, 0, 30, nil).Restore(plain("g"), Active, again); err != nil || g.moves != 2 ||
		!bytes.Equal(g.AppendCursor(nil), again) {
		t.Errorf("a group that was moved: %v, %+v", err, g)
	}
	cursor := saved(t)
	p := New(0, 0, 120, nil)
	g, err := p.Restore(plain("g"), Active, cursor)
	must(t, err)
	if got := g.AppendCursor(nil); !bytes.Equal(got, cursor) {
		t.Errorf("%x, was %x", got, cursor)
	}
	is(t, "due", g.fails.Get(10).Due >= time.Unix(1_003_600, 0).UnixNano(), true)
	is(t, "due in steps", g.fails.Get(10).Due < time.Unix(1_003_601, 0).UnixNano(), true)
	_, err = p.Restore(plain("g"), Active, cursor)
	is(t, "twice", errors.Is(err, ErrState), true)
	c := plain("h")
	c.Generation = 2
	_, err = p.Restore(c, Active, cursor)
	is(t, "of another generation", errors.Is(err, ErrCursor), true)
	for i := range cursor {
		if _, err := p.Restore(plain("h"), Active, cursor[:i]); !errors.Is(err, ErrCursor) {
			t.Fatalf("the first %d of %d bytes: %v", i, len(cursor), err)
		}
	}
	if _, err := p.Restore(plain("h"), Active, append(cursor, 0)); !errors.Is(err, ErrCursor) {
		t.Errorf("a byte more: %v", err)
	}
}

// What failed long ago, as what is parked, makes nothing else due at once after a restart.
func TestCursorWithLongDue(t *testing.T) {
	r := newFixture(t)
	c := plain("g")
	c.Exhausted, c.MaxAttempts = ParkKey, 2
	g := r.group(c)
	m := r.member(g, "m")
	r.messages(2)
	for range 2 {
		r.next(g)
		m.Nack(Positions{Base: 0}, 0, "", r.now, nil)
	}
	r.wait(30 * 24 * time.Hour)
	due := r.now.Add(24*time.Hour - time.Nanosecond)
	m.Nack(Positions{Base: 1}, due.Sub(r.now), "", r.now, nil)
	for _, first := range []int64{g.fails.Get(0).Due, 0, -1} {
		g.fails.Put(0, Failure{Attempts: 2, Due: first})
		restored, err := New(0, 0, 2, r).Restore(c, Active, g.AppendCursor(nil))
		must(t, err)
		is(t, "due", restored.fails.Get(1).Due >= due.UnixNano(), true)
		is(t, "due for long", restored.fails.Get(0).Due < r.now.UnixNano(), true)
		is(t, "attempts", restored.fails.Get(0).Attempts, 2)
	}
}

// Whatever the bytes are: an error, or a group that works and can be saved again.
func FuzzCursor(f *testing.F) {
	f.Add(saved(f), byte(Active))
	f.Add(moved(f), byte(Active))
	f.Add([]byte{Version, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, byte(Dead))
	f.Fuzz(func(t *testing.T, cursor []byte, state byte) {
		r := newFixture(t)
		r.messages(30)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		g, err := r.p.Restore(plain("g"), State(state%4+1), cursor)
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20+uint64(len(cursor))*200 {
			t.Errorf("%d bytes for %d", n, len(cursor))
		}
		if err != nil {
			if !errors.Is(err, ErrCursor) {
				t.Error(err)
			}
			return
		}
		r.p.Reconcile(func(*GroupState) int64 { return -1 })
		m := r.member(g, "m")
		for _, h := range r.next(g) {
			m.Ack(Positions{Base: h.position}, nil)
		}
		r.p.TrimLimit(Cutoffs{Complete: 10, Unrequired: 20})
		r.p.Trimmed(7)
		again := g.AppendCursor(nil)
		p := New(0, 7, 30, r)
		if _, err := p.Restore(plain("g"), g.State(), again); err != nil {
			t.Errorf("what was written again: %v", err)
		}
	})
}

// As FuzzCursor, for the state of the machine.
func FuzzState(f *testing.F) {
	r := newFixture(f)
	g := r.group(plain("g"))
	r.messages(20)
	r.work(g, r.member(g, "m"))
	must(f, g.Cancel())
	must(f, r.p.Remove(g))
	f.Add(r.p.AppendState(nil))
	f.Add([]byte{StateVersion, 0, 0})
	f.Fuzz(func(t *testing.T, state []byte) {
		p := New(0, 5, 30, nil)
		if err := p.RestoreState(state); err != nil {
			if !errors.Is(err, ErrCursor) {
				t.Error(err)
			}
			return
		}
		if w := p.Watermark(); w < 5 || w > 30 {
			t.Errorf("watermark %d", w)
		}
		if err := New(0, 5, 30, nil).RestoreState(p.AppendState(nil)); err != nil {
			t.Errorf("what was written again: %v", err)
		}
	})
}

// A group whose history is in pieces and whose messages all fail, often and each for another
// time, gets no more than its cursor has room for; it continues once some are done.
func TestCursorStopsTheGroup(t *testing.T) {
	racetest.SkipSerial(t)
	r := newFixture(t)
	c := plain("g")
	c.MaxAttempts = 1000
	g := r.group(c)
	m, err := g.Attach("m", nil, NewBudget(MaxMessages, MaxBytes, true))
	must(t, err)
	r.messages(40_000)
	for i, p := range r.positions(g) {
		if i%2 == 0 {
			r.ack(m, p, p+1)
		}
	}
	must(t, g.Die())
	_, err = g.Release()
	must(t, err)
	_, err = g.Resurrect(0, ByBound)
	must(t, err)
	base := r.end
	r.messages(MaxOpen)
	for n := range 130 {
		for p := base; p < r.end; p++ {
			delay := time.Duration(0)
			if n == 129 {
				delay = time.Duration(p%2) * 60 * time.Hour
			}
			m.Nack(Positions{Base: p}, delay, "", r.now, nil)
		}
		r.next(g)
	}
	if n := len(g.AppendCursor(nil)); n > 400<<10-2000 || n < 200<<10 {
		t.Errorf("a cursor of %d bytes", n)
	}
	_, w := g.Next(r.now, 1, nil)
	is(t, "why it stops", w.Reason, Full)
	latest := g.fails.Latest()
	is(t, "it stops within the window", latest < base+MaxOpen-1, true)
	r.wait(61 * time.Hour)
	r.next(g)
	r.ack(m, base, latest+1)
	r.work(g, m)
	is(t, "all is done", g.Floor(), r.end)
}
