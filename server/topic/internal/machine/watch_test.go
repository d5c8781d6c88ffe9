package machine

import "testing"

// HQ-O3: orphans are what no group is to receive and none has completed; completing them is
// durable, may be repeated, and takes nothing from a group.
func TestOrphans(t *testing.T) {
	r := newFixture(t)
	r.messages(10)
	g := r.group(plain("g"))
	r.messages(10)
	dead := r.group(plain("dead"))
	r.messages(10)
	if err := dead.Die(); err != nil {
		t.Fatal(err)
	}
	dead.abandon()
	orphans := func(before, n, first int64) {
		t.Helper()
		set := r.p.Orphans(before)
		at, ok := set.First()
		if set.Count(0, r.end) != n || ok != (n > 0) || at != first {
			t.Errorf("%v", set.Runs())
		}
	}
	orphans(r.end, 10, 0)
	orphans(4, 4, 0)
	version, pending := r.p.Version(), g.Stats().Pending
	if n := r.p.CompleteOrphans(4); n != 4 || r.p.Version() == version {
		t.Error(n)
	}
	if n := r.p.CompleteOrphans(4); n != 0 {
		t.Error("again: ", n)
	}
	orphans(r.end, 6, 4)
	if !r.p.Status(3).Complete || r.p.Status(4).Complete || g.Stats().Pending != pending {
		t.Error(r.p.Status(3), r.p.Status(4), g.Stats())
	}
	q := New(0, 0, r.end, r)
	if err := q.RestoreState(r.p.AppendState(nil)); err != nil || !q.Status(3).Complete {
		t.Error("after a restart: ", err)
	}
	// A group that comes later and wants all is held what is not complete, and reads the rest.
	late := r.begin(plain("late"), Begin{Start: 0, Backfill: true})
	if late.required.Contains(3) || !late.readable.Contains(3) || !late.required.Contains(4) {
		t.Error(late.required.Runs(), late.readable.Runs())
	}
	orphans(r.end, 0, 0)
}

// What a group misses, its oldest message, and what it has done.
func TestWatch(t *testing.T) {
	r := newFixture(t)
	g := r.group(plain("g"))
	m := r.member(g, "m")
	r.messages(10)
	r.next(g)
	m.Ack(Positions{Base: 0, Count: 3}, nil)
	m.Ack(Positions{Base: 5, Count: 1}, nil)
	missing := g.Missing()
	if n := missing.Count(0, r.end); n != 6 || g.Oldest() != 3 || !missing.Contains(r.end) {
		t.Error(missing.Runs(), g.Oldest())
	}
	if processed, _, failed, inFlight := g.Counts(); processed != 4 || failed != 0 || inFlight != 6 {
		t.Error(processed, failed, inFlight)
	}
	if readable := g.Readable(); !readable.Covers(0, r.end) || r.p.Tracked() < 3 {
		t.Error(readable.Runs(), r.p.Tracked())
	}
	m.Ack(Positions{Base: 0, Count: 10}, nil)
	if g.Oldest() != r.end {
		t.Error(g.Oldest())
	}
}
