package machine

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// restart is a crash: the groups are what their cursors say.
func (r *fixture) restart(state []byte, cursors map[string][]byte, states map[string]State) {
	r.Helper()
	start, _ := r.p.Bounds()
	r.p = New(0, start, r.end, r)
	must(r, r.p.RestoreState(state))
	for name, cursor := range cursors {
		_, err := r.p.Restore(plain(name), states[name], cursor)
		must(r, err)
	}
	r.p.Reconcile(func(*GroupState) int64 { return -1 })
}

// HQ-E03, HQ-E04: the floor is the first position that is not acknowledged, not the
// highest that is; it goes forward only, and a crash requeues what lies above it
// unless it is acknowledged, too.
func TestFloor(t *testing.T) {
	r := newFixture(t)
	g := r.group(plain("g"))
	m := r.member(g, "m")
	r.messages(10)
	r.next(g)
	floors := []int64{}
	for _, p := range []int64{0, 1, 3, 5, 2, 4, 4, 0} {
		r.ack(m, p, p+1)
		floors = append(floors, g.Floor())
	}
	same(t, "floors", floors, []int64{1, 2, 2, 2, 4, 6, 6, 6})
	r.ack(m, 8, 9)
	r.restart(r.p.AppendState(nil), map[string][]byte{"g": g.AppendCursor(nil)}, map[string]State{"g": Active})
	g = r.p.Group("g")
	is(t, "floor after a crash", g.Floor(), 6)
	r.member(g, "m")
	same(t, "again after a crash", r.positions(g), []int64{6, 7, 9})
}

// HQ-E05, HQ-E06, HQ-E07, HQ-E08, HQ-E09: the watermark is the lowest of those that hold;
// dead groups and those that begin at the end do not, and it never goes back; a group that
// begins at the beginning holds what it is to receive from then on.
func TestWatermark(t *testing.T) {
	r := newFixture(t)
	a, b, c := r.group(plain("a")), r.group(plain("b")), r.group(plain("c"))
	r.messages(10)
	for i, g := range []*GroupState{a, b, c} {
		m := r.member(g, "m")
		r.next(g)
		r.ack(m, 0, int64(3+2*i))
	}
	all := Cutoffs{Complete: 100, Unrequired: 100}
	is(t, "the lowest", r.p.Watermark(), 3)
	must(t, a.Die())
	is(t, "without the dead", r.p.Watermark(), 5)
	must(t, b.Pause())
	is(t, "with the paused", r.p.Watermark(), 5)
	b.config.HoldsPaused = false
	is(t, "without the paused", r.p.Watermark(), 7)
	r.group(plain("latest"))
	is(t, "one that begins at the end", r.p.Watermark(), 7)
	is(t, "trim limit without the dead", r.p.TrimLimitOfLiving(all), 7)
	is(t, "trim limit", r.p.TrimLimit(all), 3)
	r.begin(plain("earliest"), Begin{Start: 0, Backfill: true})
	is(t, "one that begins at the beginning", r.p.Watermark(), 7)
	is(t, "holds what is not complete", r.p.TrimLimit(all), 3)
	r.restart(r.p.AppendState(nil), map[string][]byte{"c": c.AppendCursor(nil)}, map[string]State{"c": Active})
	is(t, "after a restart", r.p.Watermark(), 7)
}

// The log is kept as long as its messages' kind says, and at most as long as it may.
func TestTrimLimit(t *testing.T) {
	r := newFixture(t)
	r.messages(5) // nobody is to receive them
	g := r.group(plain("g"))
	m := r.member(g, "m")
	r.messages(10)
	r.next(g)
	r.ack(m, 5, 11)
	for _, c := range []struct {
		c    Cutoffs
		want int64
	}{
		{Cutoffs{}, 0},
		{Cutoffs{Complete: 15}, 0},
		{Cutoffs{Unrequired: 3}, 3},
		{Cutoffs{Unrequired: 15}, 5},
		{Cutoffs{Complete: 8, Unrequired: 15}, 8},
		{Cutoffs{Complete: 15, Unrequired: 15}, 11},
		{Cutoffs{Forced: 13}, 13},
		{Cutoffs{Forced: 100}, 15},
	} {
		is(t, fmt.Sprintf("%+v", c.c), r.p.TrimLimit(c.c), c.want)
	}
	r.p.Trimmed(13)
	is(t, "missed", g.Stats().Missed, 2)
	is(t, "floor", g.Floor(), 13)
	r.ack(m, 11, 14)
	is(t, "processed", g.Stats().Processed, 7)
}

// HQ-J02, HQ-J03, HQ-J04, HQ-J07: where a group begins, what it is held for, and what it says
// of what is no longer there.
func TestStarts(t *testing.T) {
	r := newFixture(t)
	r.messages(20)
	r.p.Trimmed(5)
	begin := func(c Config, b Begin) (*GroupState, int64, bool) {
		g, start, gap, err := r.p.Subscribe(c, b)
		must(t, err)
		return withMember(r, g), start, gap
	}
	latest, start, gap := begin(plain("latest"), Begin{Start: 20})
	is(t, "latest", start == 20 && !gap, true)
	same(t, "latest reads", r.positions(latest), nil)
	reader, start, gap := begin(plain("reader"), Begin{Start: 5})
	is(t, "earliest", start == 5 && !gap, true)
	is(t, "is not held for it", r.p.TrimLimit(Cutoffs{Complete: 20, Unrequired: 20}), 20)
	same(t, "but read", r.positions(reader), seq(5, 20))
	held, start, gap := begin(plain("held"), Begin{Start: 2, Backfill: true})
	is(t, "no longer there", start == 5 && gap, true)
	is(t, "is held for it", r.p.TrimLimit(Cutoffs{Complete: 20, Unrequired: 20}), 5)
	same(t, "and read", r.positions(held), seq(5, 20))
	_, _, _, err := r.p.Subscribe(plain("beyond"), Begin{Start: 21})
	is(t, "beyond the end", errors.Is(err, ErrOutOfRange), true)
	r.p.Trimmed(10)
	is(t, "a reader holds nothing", reader.Stats().Missed, 0)
	is(t, "floor of the reader", reader.Floor(), 10)
}

// HQ-J10: two groups that come late do not disturb each other.
func TestTwoComeLate(t *testing.T) {
	r := newFixture(t)
	r.messages(100)
	a := r.begin(plain("a"), Begin{Start: 0, Backfill: true})
	b := r.begin(plain("b"), Begin{Start: 50, Backfill: true})
	ma, mb := r.member(a, "m"), r.member(b, "m")
	is(t, "of a", r.work(a, ma), 100)
	is(t, "complete for both", r.p.Status(70).Complete, false)
	is(t, "complete for a", r.p.Status(20).Complete, true)
	is(t, "of b", r.work(b, mb), 50)
	is(t, "complete", r.p.Status(70).Complete, true)
}

// HQ-M1: what is published after the mark and before the release is not for the dead group.
func TestPublishedBeforeTheRelease(t *testing.T) {
	r := newFixture(t)
	r.group(plain("other"))
	g := r.group(plain("g"))
	r.messages(1)
	cursor := g.AppendCursor(nil)
	must(t, g.Die())
	r.messages(1)
	same(t, "between", r.p.Status(1).Required, []string{"other"})
	_, err := g.Release()
	must(t, err)
	same(t, "before", r.p.Status(0).Required, []string{"other"})
	// The row says dead, the cursor does not yet.
	r.restart(r.p.AppendState(nil), map[string][]byte{"g": cursor}, map[string]State{"g": Dead})
	same(t, "after a crash", r.p.Status(1).Required, nil)
}

// HQ-M3, HQ-M7, HQ-N2: a group that comes back gets what it missed, bounded and once, whoever
// comes first; meanwhile it holds nobody up, and what was done while it was dead does not
// count.
func TestResurrection(t *testing.T) {
	r := newFixture(t)
	g, other := r.group(plain("g")), r.group(plain("other"))
	m, o := r.member(g, "m"), r.member(other, "m")
	r.messages(100)
	r.next(g)
	r.ack(m, 0, 10)
	must(t, g.Die())
	_, refused := m.Ack(Positions{Base: 10}, nil)
	same(t, "while it is dead", refused, []Refusal{{From: 10, To: 11, Outcome: NotActive}})
	_, err := g.Release()
	must(t, err)
	r.work(other, o)
	r.messages(100)
	all := Cutoffs{Complete: 200, Unrequired: 200}
	is(t, "limit without the dead", r.p.TrimLimitOfLiving(all), 100)
	is(t, "what it is owed is kept", r.p.TrimLimit(all), 10)
	var done, refusedTo int
	for range 10 {
		is(t, "missed in all", g.Missed(), 190)
		if n, err := g.Resurrect(50, ByBound); err == nil {
			done++
			is(t, "missed", n, 50)
		} else if errors.Is(err, ErrState) {
			refusedTo++
		}
	}
	is(t, "once", done, 1)
	is(t, "refused", refusedTo, 9)
	is(t, "required for what is not complete", g.Stats().Pending, 50)
	same(t, "reads what it missed", r.positions(g), seq(150, 200))
	is(t, "the floor", g.Floor(), 150)
	r.messages(1)
	same(t, "and continues", r.positions(g), []int64{200})
	must(t, g.Die())
	n, err := g.Resurrect(0, ByBound)
	must(t, err)
	is(t, "without backfill", n, 0)
	is(t, "pending", g.Stats().Pending, 0)
}

// A group whose row says that it is back, and whose cursor does not, gets what it missed, as much
// as it may have.
func TestBackBeforeTheCursor(t *testing.T) {
	r := newFixture(t)
	g := r.group(plain("g"))
	r.messages(5)
	must(t, g.Die())
	_, err := g.Release()
	must(t, err)
	cursor := g.AppendCursor(nil)
	r.messages(5)
	for limit, from := range map[int64]int64{-1: 0, 20: 0, 10: 0, 4: 6, 0: 10} {
		r.p = New(0, 0, r.end, r)
		g, err := r.p.Restore(plain("g"), Active, cursor)
		must(t, err)
		is(t, "returning", len(r.p.Returning()), 1)
		is(t, "missed", g.Missed(), 10)
		r.p.Reconcile(func(*GroupState) int64 { return limit })
		is(t, "returning after it", len(r.p.Returning()), 0)
		r.member(g, "m")
		is(t, "limit", r.p.TrimLimit(Cutoffs{Complete: 10, Unrequired: 10}), from)
		same(t, "missed", r.positions(g), seq(from, 10))
		is(t, "pending", g.Stats().Pending, 10-from)
	}
}

// A seek says beforehand what it does, and does that.
func TestSeek(t *testing.T) {
	r := newFixture(t)
	g, other := r.group(plain("g")), r.group(plain("other"))
	m, o := r.member(g, "m"), r.member(other, "m")
	r.messages(10)
	r.next(other)
	r.ack(o, 0, 3)
	r.next(g)
	r.ack(m, 0, 6)
	r.p.Trimmed(1)
	plan, err := g.Preview(0)
	must(t, err)
	is(t, "back, before the start", plan, Move{From: 6, To: 1, Redelivered: 5, Gap: true})
	move, err := g.SeekTo(0)
	must(t, err)
	is(t, "the same", move, plan)
	same(t, "lost", r.p.TakeLost(nil), []Lost{{m, 6, 10}})
	is(t, "complete stays complete", r.p.Status(2).Complete, true)
	same(t, "required again", r.p.Status(4).Required, []string{"g", "other"})
	is(t, "floor", g.Floor(), 1)
	same(t, "again", r.positions(g), seq(1, 10))
	move, err = g.SeekTo(8)
	must(t, err)
	is(t, "forward", move, Move{From: 1, To: 8, Skipped: 7})
	same(t, "not required any more", r.p.Status(4).Required, []string{"other"})
	same(t, "from there", r.positions(g), []int64{8, 9})
	move, err = g.SeekTo(10)
	must(t, err)
	is(t, "to the end, with two in hand", move, Move{From: 8, To: 10, Skipped: 2})
	move, err = g.SeekTo(1)
	must(t, err)
	is(t, "what it had passed over comes, too", move, Move{From: 10, To: 1, Redelivered: 9})
	same(t, "and does", r.positions(g), seq(1, 10))
	_, err = g.SeekTo(11)
	is(t, "beyond the end", errors.Is(err, ErrOutOfRange), true)
	must(t, g.Die())
	_, err = g.SeekTo(1)
	is(t, "of a dead group", errors.Is(err, ErrState), true)
}

// Who does not move is taken off what holds everybody up.
func TestSkip(t *testing.T) {
	r := newFixture(t)
	g := r.group(plain("g"))
	m := r.member(g, "m")
	r.messages(10)
	r.next(g)
	r.ack(m, 8, 9)
	is(t, "skipped", g.Skip(5, ByZombie), 5)
	is(t, "again", g.Skip(5, ByZombie), 0)
	same(t, "lost", r.p.TakeLost(nil), []Lost{{m, 0, 5}})
	is(t, "floor", g.Floor(), 5)
	r.ack(m, 5, 10)
	is(t, "in flight", m.InFlight(), 0)
}

// Positions that a log does not have count as acknowledged.
func TestVoids(t *testing.T) {
	r := newFixture(t)
	g := r.group(plain("g"))
	m := r.member(g, "m")
	r.end = 7
	r.messages(2)
	r.end = 20
	r.messages(1)
	same(t, "handed out", r.positions(g), []int64{7, 8, 20})
	is(t, "floor", g.Floor(), 7)
	r.ack(m, 7, 21)
	is(t, "done", g.Floor(), 21)
	is(t, "processed", g.Stats().Processed, 3)
}

// A history in pieces is kept in bounds, and nothing that was acknowledged comes again.
func TestHistoryIsBounded(t *testing.T) {
	r := newFixture(t)
	c := plain("g")
	g := r.group(c)
	r.group(plain("other"))
	b := NewBudget(MaxMessages, MaxBytes, true)
	m, err := g.Attach("m", nil, b)
	must(t, err)
	for range 8 {
		r.messages(20_000)
		list := r.positions(g)
		for i := 0; i < len(list); i += 2 {
			r.ack(m, list[i], list[i]+1)
		}
		must(t, g.Die())
		_, err := g.Release()
		must(t, err)
		if n := len(g.AppendCursor(nil)); n > MaxCursor {
			t.Errorf("a cursor of %d bytes", n)
		}
		_, err = g.Resurrect(0, ByBound)
		must(t, err)
	}
	if n := g.required.Len() + g.readable.Len() + g.acked.Len(); n > maxAckedRuns+3 {
		t.Errorf("%d runs", n)
	}
	is(t, "nothing comes again", len(r.next(g)), 0)
	g.Configure(c)
	is(t, "by another configuration", len(r.next(g)), 0)
	at, ok := g.wakeAt()
	is(t, "no deadline", !ok || at.After(r.now.Add(time.Hour)), true)
}
