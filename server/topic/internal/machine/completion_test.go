package machine

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// HQ-B02, HQ-B03: who is required for a message is who is subscribed when it is published;
// dead and cancelled groups are not, and paused ones are: it waits for them.
func TestRequiredAtPublish(t *testing.T) {
	r := newFixture(t)
	a, b, c, d := r.group(plain("a")), r.group(plain("b")), r.group(plain("c")), r.group(plain("d"))
	r.publish("")
	same(t, "all active", r.p.Status(0).Required, []string{"a", "b", "c", "d"})
	must(t, b.Pause())
	must(t, c.Die())
	must(t, d.Cancel())
	r.publish("")
	same(t, "one of each state", r.p.Status(1).Required, []string{"a", "b"})
	is(t, "paused group", b.State(), Paused)
	is(t, "pending of the active group", a.Stats().Pending, 2)
}

// HQ-B05, HQ-D13: later subscriptions change nothing, unless they ask to be required.
func TestRequirementsDoNotChange(t *testing.T) {
	r := newFixture(t)
	r.group(plain("a"))
	r.messages(2)
	r.begin(plain("late"), Begin{Start: 0})
	same(t, "without backfill", r.p.Status(0).Required, []string{"a"})
	r.begin(plain("later"), Begin{Start: 0, Backfill: true})
	same(t, "with backfill", r.p.Status(0).Required, []string{"a", "later"})
}

// HQ-C20: a paused group gets nothing, and continues where it was.
func TestPause(t *testing.T) {
	r := newFixture(t)
	g := r.group(plain("g"))
	m := r.member(g, "m")
	r.messages(4)
	same(t, "before", r.positions(g), seq(0, 4))
	r.ack(m, 0, 2)
	must(t, g.Pause())
	r.messages(2)
	same(t, "while it is paused", r.next(g), nil)
	_, refused := m.Ack(Positions{Base: 2, Count: 2}, nil)
	same(t, "acknowledgement", refused, []Refusal{{From: 2, To: 4, Outcome: NotActive}})
	lost := r.p.TakeLost(nil)
	same(t, "lost", lost, []Lost{{m, 2, 4}})
	must(t, g.Resume())
	same(t, "after", r.next(g), []delivered{{2, "m", 1}, {3, "m", 1}, {4, "m", 1}, {5, "m", 1}})
}

// HQ-D01, HQ-D02, HQ-D20: an acknowledgement counts once, and changes the cursor once.
func TestAckCountsOnce(t *testing.T) {
	r := newFixture(t)
	a, b := r.group(plain("a")), r.group(plain("b"))
	m := r.member(a, "m")
	r.messages(1)
	r.next(a)
	before := a.Version()
	for range 100 {
		r.ack(m, 0, 1)
	}
	is(t, "versions", a.Version()-before, 1)
	is(t, "processed", a.Stats().Processed, 1)
	same(t, "acknowledged", r.p.Status(0).Acknowledged, []string{"a"})
	is(t, "complete", r.p.Status(0).Complete, false)
	is(t, "pending of the other", b.Stats().Pending, 1)
}

// HQ-D03, HQ-D04: the last acknowledgement completes a message; nothing undoes that.
func TestComplete(t *testing.T) {
	r := newFixture(t)
	a, b := r.group(plain("a")), r.group(plain("b"))
	ma, mb := r.member(a, "m"), r.member(b, "m")
	r.messages(1)
	r.next(a)
	r.next(b)
	r.ack(ma, 0, 1)
	is(t, "after the first", r.p.Status(0).Complete, false)
	r.ack(mb, 0, 1)
	is(t, "after the last", r.p.Status(0).Complete, true)
	r.ack(mb, 0, 1)
	r.begin(plain("late"), Begin{Start: 0, Backfill: true})
	is(t, "after backfill", r.p.Status(0).Complete, true)
	must(t, a.Die())
	_, err := a.Release()
	must(t, err)
	is(t, "after a death", r.p.Status(0).Complete, true)
	_, err = b.SeekTo(0)
	must(t, err)
	is(t, "after a seek", r.p.Status(0).Complete, true)
	must(t, b.Cancel())
	must(t, r.p.Remove(b))
	must(t, r.p.Remove(a))
	is(t, "after the groups", r.p.Status(0).Complete, true)
}

// HQ-D05: who may read only is recorded, and completes nothing.
func TestAckOfAReader(t *testing.T) {
	r := newFixture(t)
	r.group(plain("a"))
	r.messages(1)
	g := r.begin(plain("reader"), Begin{Start: 0})
	m := r.member(g, "m")
	is(t, "read", r.work(g, m), 1)
	s := r.p.Status(0)
	same(t, "required", s.Required, []string{"a"})
	same(t, "acknowledged", s.Acknowledged, []string{"reader"})
	is(t, "complete", s.Complete, false)
}

// HQ-D06: in a queue one acknowledgement completes.
func TestQueueCompletes(t *testing.T) {
	r := newFixture(t)
	q := r.group(plain("$queue"))
	m := r.member(q, "worker")
	r.messages(1)
	r.next(q)
	is(t, "with a worker", r.p.Status(0).InFlight, true)
	r.ack(m, 0, 1)
	is(t, "complete", r.p.Status(0).Complete, true)
}

// HQ-D10, HQ-D11, HQ-D12, HQ-M5, HQ-M6: a dead group's requirements go, those of others
// stay, however often, and across crashes between the steps; what is left complete is.
func TestRelease(t *testing.T) {
	for _, crash := range []string{"none", "before the cursor", "before the release", "after it"} {
		t.Run(crash, func(t *testing.T) {
			r := newFixture(t)
			a, b := r.group(plain("a")), r.group(plain("b"))
			ma, mb := r.member(a, "m"), r.member(b, "m")
			r.messages(10)
			r.next(a)
			r.next(b)
			r.ack(ma, 0, 6)
			r.ack(mb, 0, 3)
			cursorA, cursor := a.AppendCursor(nil), b.AppendCursor(nil)
			must(t, b.Die())
			if crash != "before the cursor" {
				cursor = b.AppendCursor(nil)
			}
			_, refused := mb.Ack(Positions{Base: 3, Count: 1}, nil)
			same(t, "acknowledgement", refused, []Refusal{{From: 3, To: 4, Outcome: NotActive}})
			if crash == "none" || crash == "after it" {
				n, err := b.Release()
				must(t, err)
				is(t, "released", n, 7)
				cursor = b.AppendCursor(nil)
			}
			if crash != "none" {
				r.p = New(0, 0, r.end, r)
				var err error
				a, err = r.p.Restore(plain("a"), Active, cursorA)
				must(t, err)
				b, err = r.p.Restore(plain("b"), Dead, cursor)
				must(t, err)
				r.p.Reconcile(func(*GroupState) int64 { return -1 })
			}
			for range 5 {
				n, err := b.Release()
				must(t, err)
				is(t, "released again", n, 0)
			}
			same(t, "of both", r.p.Status(2).Required, []string{"a", "b"})
			same(t, "of the one left", r.p.Status(5).Required, []string{"a"})
			is(t, "complete by the one left", r.p.Status(5).Complete, true)
			is(t, "not complete", r.p.Status(6).Complete, false)
			is(t, "pending", a.Stats().Pending, 4)
		})
	}
}

// HQ-D14: what is complete does not become pending by backfill.
func TestBackfillLeavesComplete(t *testing.T) {
	r := newFixture(t)
	a := r.group(plain("a"))
	m := r.member(a, "m")
	r.messages(10)
	r.next(a)
	r.ack(m, 0, 5)
	late := r.begin(plain("late"), Begin{Start: 0, Backfill: true})
	for p := range int64(10) {
		is(t, fmt.Sprint("complete ", p), r.p.Status(p).Complete, p < 5)
	}
	is(t, "required", late.Stats().Pending, 5)
	is(t, "watermark", r.p.Watermark(), 5)
	same(t, "but it reads all", r.positions(withMember(r, late)), seq(0, 10))
}

func withMember(r *fixture, g *GroupState) *GroupState {
	r.member(g, "m")
	return g
}

// HQ-D15: there is no limit at 64 groups.
func TestManyGroups(t *testing.T) {
	r := newFixture(t)
	var members []*Member
	for i := range 65 {
		members = append(members, r.member(r.group(plain(fmt.Sprintf("g%02d", i))), "m"))
	}
	r.messages(1)
	for i, m := range members {
		is(t, "complete", r.p.Status(0).Complete, false)
		r.next(m.Group())
		r.ack(m, 0, 1)
		is(t, "acknowledged", len(r.p.Status(0).Acknowledged), i+1)
	}
	is(t, "complete", r.p.Status(0).Complete, true)
}

// HQ-D16: a new generation has nothing of the one before.
func TestGenerations(t *testing.T) {
	r := newFixture(t)
	r.group(plain("other"))
	g := r.group(plain("g"))
	m := r.member(g, "m")
	r.messages(2)
	r.next(g)
	r.ack(m, 0, 1)
	must(t, g.Cancel())
	c := plain("g")
	_, _, _, err := r.p.Subscribe(c, Begin{})
	is(t, "the same generation", errors.Is(err, ErrGeneration), true)
	c.Generation = 2
	again := r.begin(c, Begin{Start: 0, Backfill: true})
	same(t, "acknowledged", r.p.Status(0).Acknowledged, nil)
	same(t, "required", r.p.Status(0).Required, []string{"g", "other"})
	_, refused := m.Ack(Positions{Base: 1}, nil)
	same(t, "the old member", refused, []Refusal{{From: 1, To: 2, Outcome: NotActive}})
	is(t, "pending", again.Stats().Pending, 2)
}

// HQ-D22, HQ-E18: what the machine keeps does not grow with the messages.
func TestStateIsSmall(t *testing.T) {
	r := newFixture(t)
	g := r.group(plain("g"))
	m := r.member(g, "m")
	for range 100 {
		r.messages(1000)
		r.work(g, m)
		r.batches = nil
	}
	is(t, "runs", g.required.Len()+g.readable.Len()+g.acked.Len()+g.ready.Len(), 4)
	if n := len(g.AppendCursor(nil)); n > 64 {
		t.Errorf("a cursor of %d bytes", n)
	}
	// The worst there is: every second message of the window is acknowledged.
	w := r.group(plain("w"))
	b, err := w.Attach("m", nil, NewBudget(MaxMessages, MaxBytes, false))
	must(t, err)
	r.messages(MaxOpen)
	base := w.Floor()
	r.next(w)
	for p := base + 1; p < base+MaxOpen; p += 2 {
		r.ack(b, p, p+1)
	}
	if n := len(w.AppendCursor(nil)); n > 8*MaxOpen/2 || n > MaxCursor {
		t.Errorf("a cursor of %d bytes, for %d acknowledgements", n, MaxOpen/2)
	}
	t.Logf("%d bytes for %d positions of the window", len(w.AppendCursor(nil)), MaxOpen)
	b.Nack(Positions{Base: base, Count: MaxOpen}, time.Hour, "", r.now, nil)
	t.Logf("%d bytes when the other half has failed", len(w.AppendCursor(nil)))
	if n := len(w.AppendCursor(nil)); n > MaxCursor {
		t.Errorf("a cursor of %d bytes", n)
	}
}

// What a member has lost is forgotten once its group is done with it.
func TestLostIsBounded(t *testing.T) {
	r := newFixture(t)
	g := r.group(plain("g"))
	m := r.member(g, "m")
	for range 50 {
		r.messages(1000)
		list := r.next(g)
		for i := 0; i < len(list); i += 2 {
			m.Nack(Positions{Base: list[i].position}, 0, "", r.now, nil)
		}
		r.next(g)
		r.ack(m, list[0].position, list[0].position+1000)
	}
	if n := m.lost.Len(); n > 4096+500 {
		t.Errorf("%d runs", n)
	}
}

// A cursor is bounded when every message of the window has failed, each due at another
// time, and restores.
func TestCursorOfFailures(t *testing.T) {
	r := newFixture(t)
	c := plain("g")
	c.MaxAttempts = 1000
	g := r.group(c)
	m, err := g.Attach("m", nil, NewBudget(MaxMessages, MaxBytes, false))
	must(t, err)
	r.messages(MaxOpen)
	is(t, "handed out", len(r.next(g)), MaxOpen)
	for p := range int64(MaxOpen) {
		m.Nack(Positions{Base: p}, time.Duration(p%24)*time.Hour, "", r.now, nil)
	}
	cursor := g.AppendCursor(nil)
	t.Logf("%d bytes for %d failures", len(cursor), MaxOpen)
	if len(cursor) > MaxCursor {
		t.Errorf("a cursor of %d bytes", len(cursor))
	}
	p := New(0, 0, r.end, r)
	restored, err := p.Restore(c, Active, cursor)
	must(t, err)
	is(t, "failures", restored.fails.Len(), MaxOpen)
	r.p = p
	r.member(restored, "m")
	is(t, "due now", len(r.next(restored)), 1000)
	is(t, "later", restored.Stats().Retrying > 0, true)
}
