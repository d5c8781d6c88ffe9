package machine

import (
	"testing"
	"time"
)

// Suspects are delivered although all members are always busy: one of them gets nothing else until it
// has no messages, and the other one goes on.
func TestBusyMembersTakeSuspects(t *testing.T) {
	r := newFixture(t)
	g := r.group(plain("g"))
	busy := map[string]*Member{}
	for _, name := range []string{"a", "b", "c"} {
		m, err := g.Attach(name, nil, NewBudget(10, 1<<20, true))
		must(t, err)
		busy[name] = m
	}
	r.messages(1000)
	has := map[string][]int64{}
	take := func() {
		for _, h := range r.next(g) {
			has[h.member] = append(has[h.member], h.position)
		}
	}
	take()
	is(t, "messages of all", len(has["a"])+len(has["b"])+len(has["c"]), 30)
	left := map[int64]bool{}
	for _, p := range has["c"] {
		left[p] = true
	}
	busy["c"].Detach(true, r.now)
	delete(busy, "c")
	for round := 0; len(left) > 0; round++ {
		if round == 100 {
			t.Fatalf("%d suspects are with nobody after %d rounds", len(left), round)
		}
		for name, m := range busy {
			n := max(len(has[name])/2, 1)
			if len(has[name]) == 0 {
				n = 0
			}
			for _, p := range has[name][:n] {
				r.ack(m, p, p+1)
				delete(left, p)
			}
			has[name] = has[name][n:]
		}
		take()
		if len(has["a"])+len(has["b"]) < 10 {
			t.Errorf("round %d: the other member has %d and %d messages", round, len(has["a"]), len(has["b"]))
		}
	}
	is(t, "a member that gets nothing else", g.draining.member, nil)
}

// A member that gets nothing else and keeps its messages is followed by the next one after a lease.
// Until one has nothing, the group is stalled.
func TestStuckMemberTakesNoSuspects(t *testing.T) {
	r := newFixture(t)
	g := r.group(plain("g"))
	a, b, c := r.member(g, "a"), r.member(g, "b"), r.member(g, "c")
	r.messages(9)
	same(t, "first", r.next(g), []delivered{
		{0, "a", 1}, {1, "a", 1}, {2, "a", 1}, {3, "b", 1}, {4, "b", 1}, {5, "c", 1}, {6, "c", 1}, {7, "a", 1}, {8, "b", 1},
	})
	r.ack(a, 0, 3)
	c.Detach(true, r.now)
	same(t, "while all are busy", r.next(g), nil)
	is(t, "the one with fewest messages gets nothing else", g.draining.member, a)
	is(t, "why", g.Stalled(false), SuspectsHeld)
	r.messages(4)
	same(t, "new messages", r.next(g), []delivered{{9, "b", 1}, {10, "b", 1}, {11, "b", 1}, {12, "b", 1}})
	for range 4 {
		r.wait(10 * time.Second)
		a.ExtendAll(r.now)
		b.ExtendAll(r.now)
		g.Wake(r.now)
	}
	same(t, "after a lease", r.next(g), nil)
	is(t, "the next one gets nothing else", g.draining.member, b)
	r.ack(b, 3, 5)
	r.ack(b, 8, 9)
	r.ack(b, 9, 13)
	same(t, "once it has nothing", r.next(g), []delivered{{5, "b", 2}})
	same(t, "beside it", r.next(g), nil)
	r.ack(a, 7, 8)
	same(t, "once the other one has nothing", r.next(g), []delivered{{6, "a", 1}})
	is(t, "why", g.Stalled(false), Flowing)
}

// A suspect is alone with its session in all partitions, which share credits.
func TestSuspectsAreAloneInAllPartitions(t *testing.T) {
	one, two := newFixture(t), newFixture(t)
	budget := NewBudget(100, 1<<20, true)
	attach := func(r *fixture) (*GroupState, *Member) {
		g := r.group(plain("g"))
		m, err := g.Attach("m", nil, budget)
		must(t, err)
		return g, m
	}
	g1, m1 := attach(one)
	g2, m2 := attach(two)
	dead := one.member(g1, "dead")
	one.messages(4)
	same(t, "first", one.positions(g1), []int64{0, 1, 2, 3})
	one.ack(m1, 2, 3)
	two.messages(1)
	same(t, "in the other partition", two.positions(g2), []int64{0})
	is(t, "what the dead one had", dead.InFlight(), 3)
	dead.Detach(true, one.now)
	same(t, "while the session has a message elsewhere", one.positions(g1), nil)
	two.messages(1)
	same(t, "nothing new elsewhere", two.positions(g2), nil)
	two.ack(m2, 0, 1)
	same(t, "nothing before the suspects", two.positions(g2), nil)
	same(t, "one suspect", one.positions(g1), []int64{0})
	same(t, "nothing beside it", two.positions(g2), nil)
	one.ack(m1, 0, 1)
	same(t, "the next one", one.positions(g1), []int64{1})
	one.ack(m1, 1, 2)
	same(t, "the last one", one.positions(g1), []int64{3})
	one.ack(m1, 3, 4)
	same(t, "the others", two.positions(g2), []int64{1})
}

// A suspect does not wait for its time of delivery again, although the clock is set back: it goes to a member that
// has nothing, before what follows in its key.
func TestSuspectsDoNotWaitForTheirTime(t *testing.T) {
	for name, order := range map[string]bool{"no order": false, "order of key": true} {
		t.Run(name, func(t *testing.T) {
			r := newFixture(t)
			config := plain("g")
			config.KeyOrder = order
			g := r.group(config)
			m := r.member(g, "m")
			r.pass(g, 0)
			r.postponed("j", 5*time.Second)
			r.postponed("k", 5*time.Second)
			r.pass(g, 5*time.Second)
			same(t, "when they are due", r.positions(g), []int64{0, 1})
			r.publish("k")
			r.pass(g, -3*time.Second)
			m.Detach(true, r.now)
			n := r.member(g, "n")
			same(t, "first, which is charged", r.positions(g), []int64{0})
			r.ack(n, 0, 1)
			same(t, "then, which is not", r.positions(g), []int64{1})
			same(t, "beside it", r.positions(g), nil)
			r.ack(n, 1, 2)
			same(t, "last", r.positions(g), []int64{2})
		})
	}
}
