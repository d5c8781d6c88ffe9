package machine

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// HQ-F01, HQ-G01, HQ-G02, HQ-G05: each message has one owner in its group, in order of
// position; what one group has is not hidden from another.
func TestOneOwner(t *testing.T) {
	r := newFixture(t)
	g, other := r.group(plain("g")), r.group(plain("other"))
	for i := range 8 {
		r.member(g, fmt.Sprint("worker ", i))
	}
	r.member(other, "m")
	r.messages(10_000)
	var got []int64
	share := map[string]int{}
	for {
		list := r.next(g)
		if len(list) == 0 {
			break
		}
		for _, h := range list {
			got = append(got, h.position)
			share[h.member]++
			r.ack(g.members[slices.IndexFunc(g.members, func(m *Member) bool { return m.name == h.member })],
				h.position, h.position+1)
		}
	}
	same(t, "once each, in order", got, seq(0, 10_000))
	for name, n := range share {
		if n < 1000 {
			t.Errorf("%s has had %d", name, n)
		}
	}
	same(t, "the other group", r.positions(other), seq(0, 1000))
}

// HQ-F02, HQ-G08: a member that does nothing, and a group that fails, hold up no others.
func TestStuckMember(t *testing.T) {
	r := newFixture(t)
	g, failing := r.group(plain("g")), r.group(plain("failing"))
	_, err := g.Attach("stuck", nil, NewBudget(10, 1<<20, true))
	must(t, err)
	m, bad := r.member(g, "working"), r.member(failing, "m")
	r.messages(1000)
	for {
		var own int
		for _, h := range r.next(g) {
			if h.member == "working" {
				own++
				r.ack(m, h.position, h.position+1)
			}
		}
		for _, h := range r.next(failing) {
			bad.Nack(Positions{Base: h.position}, 0, "no", r.now, nil)
		}
		if own == 0 {
			break
		}
	}
	is(t, "done by the other", g.Stats().Processed, 990)
	is(t, "left with the stuck one", g.Stats().InFlight, 10)
}

// HQ-F03, HQ-H12: what a member had goes to others when its lease ends, or it leaves.
func TestLeaseEnds(t *testing.T) {
	r := newFixture(t)
	g := r.group(plain("g"))
	a := r.member(g, "a")
	r.messages(3)
	same(t, "first", r.next(g), []delivered{{0, "a", 1}, {1, "a", 1}, {2, "a", 1}})
	at, ok := g.wakeAt()
	is(t, "a deadline", ok && !at.Before(r.now.Add(30*time.Second)) && at.Before(r.now.Add(31*time.Second)), true)
	r.wait(29 * time.Second)
	a.Extend(Positions{Base: 2}, r.now, nil)
	r.wait(2 * time.Second)
	g.Wake(r.now)
	same(t, "lost", r.p.TakeLost(nil), []Lost{{a, 0, 2}})
	_, refused := a.Ack(Positions{Base: 0, Count: 4}, nil)
	same(t, "late", refused, []Refusal{{From: 0, To: 2, Outcome: LeaseLost}, {From: 3, To: 4, Outcome: NotDelivered}})
	b := r.member(g, "b")
	same(t, "again", r.next(g), []delivered{{0, "a", 2}, {1, "b", 1}})
	a.Detach(true, r.now)
	same(t, "after it broke", r.next(g), nil) // one of them has a message, which may be what breaks members
	b.Detach(false, r.now)
	c := r.member(g, "c")
	same(t, "after it left", r.next(g), []delivered{{0, "c", 3}})
	_, refused = b.Ack(Positions{Base: 1}, nil)
	same(t, "who has left", refused, []Refusal{{From: 1, To: 2, Outcome: LeaseLost}})
	r.ack(c, 0, 1)
	same(t, "after that", r.next(g), []delivered{{1, "c", 1}})
	r.ack(c, 1, 2)
	is(t, "processed", g.Stats().Processed, 3)
}

// A lease that is renewed after the clock was set back ends in time.
func TestExtendedAfterTheClockWasSetBack(t *testing.T) {
	for _, all := range []bool{false, true} {
		r := newFixture(t)
		g := r.group(plain("g"))
		m := r.member(g, "m")
		r.messages(2)
		r.next(g)
		r.wait(-20 * time.Second)
		if all {
			m.ExtendAll(r.now)
		} else {
			m.Extend(Positions{Base: 0, Count: 2}, r.now, nil)
		}
		at, ok := g.wakeAt()
		is(t, "the end is known", ok && at.Before(r.now.Add(31*time.Second)), true)
		r.wait(31 * time.Second)
		g.Wake(r.now)
		same(t, "lost", r.p.TakeLost(nil), []Lost{{m, 0, 2}})
	}
}

// HQ-G03, HQ-G04, HQ-J06: only what is not acknowledged, from the start on, which belongs to
// it.
func TestFromTheStart(t *testing.T) {
	r := newFixture(t)
	r.messages(10)
	g := r.begin(plain("g"), Begin{Start: 4, Backfill: true})
	m := r.member(g, "m")
	same(t, "from the start", r.positions(g), seq(4, 10))
	r.ack(m, 6, 8)
	m.Detach(false, r.now)
	r.member(g, "n")
	same(t, "what is left", r.positions(g), []int64{4, 5, 8, 9})
}

// HQ-G09: what fails is tried again later, then buried.
func TestRetries(t *testing.T) {
	r := newFixture(t)
	c := plain("g")
	c.MaxAttempts = 3
	g := r.group(c)
	m := r.member(g, "m")
	r.messages(2)
	r.next(g)
	r.ack(m, 1, 2)
	m.Nack(Positions{Base: 0}, -1, "no", r.now, nil)
	same(t, "at once", r.next(g), nil)
	at, _ := g.wakeAt()
	pause := at.Sub(r.now)
	is(t, "1 s give or take a fifth", pause >= 800*time.Millisecond && pause <= 1200*time.Millisecond, true)
	r.now = at
	same(t, "when it is due", r.next(g), []delivered{{0, "m", 2}})
	m.Nack(Positions{Base: 0}, 5*time.Second, "no", r.now, nil)
	r.wait(4999 * time.Millisecond)
	same(t, "before its delay", r.next(g), nil)
	r.wait(time.Millisecond)
	same(t, "after its delay", r.next(g), []delivered{{0, "m", 3}})
	m.Nack(Positions{Base: 0}, 0, "because", r.now, nil)
	same(t, "exhausted", g.TakeUndeliverable(nil), []Undeliverable{{Position: 0, Attempts: 3, Reason: "because"}})
	same(t, "once", g.TakeUndeliverable(nil), nil)
	is(t, "pending until it is stored", g.Stats().Pending, 1)
	is(t, "holds the log", r.p.TrimLimit(Cutoffs{Complete: 2, Unrequired: 2}), 0)
	g.MarkDeadLettered(0)
	is(t, "then done", r.p.Status(0).Complete, true)
	is(t, "failed", g.Stats().Failed, 3)
}

// HQ-G10: what was delivered is known exactly: nothing is taken for a duplicate.
func TestNothingIsTakenForADuplicate(t *testing.T) {
	r := newFixture(t)
	g := r.group(plain("g"))
	m := r.member(g, "m")
	r.messages(5000)
	got := map[int64]bool{}
	for list := r.next(g); len(list) > 0; list = r.next(g) {
		for _, h := range list {
			is(t, "again", got[h.position], false)
			got[h.position] = true
			r.ack(m, h.position, h.position+1)
		}
	}
	is(t, "delivered", len(got), 5000)
}

// HQ-H05, HQ-H06, HQ-H07, HQ-H08, HQ-H11: what no filter lets through is processed and counted
// as filtered, unless there are no members.
func TestFiltered(t *testing.T) {
	r := newFixture(t)
	c := plain("g")
	c.Filter = kindFilter("x")
	g, h := r.group(c), r.group(plain("h"))
	r.publish("k:x", "k:y", "k:x")
	same(t, "without members", r.next(g), nil)
	is(t, "filtered without members", g.Stats().Filtered, 0)
	m := r.member(g, "m")
	same(t, "the group's filter", r.positions(g), []int64{0, 2})
	r.ack(m, 0, 3)
	is(t, "processed", g.Stats().Processed, 3)
	is(t, "filtered", g.Stats().Filtered, 1)
	r.picky(h, "x", "x")
	r.picky(h, "z", "z")
	same(t, "members' filters", r.next(h), []delivered{{0, "x", 1}, {2, "x", 1}})
	is(t, "let through by none", h.Stats().Filtered, 1)
	is(t, "complete", r.p.Status(1).Complete, true)
}

// HQ-H08: one whose filter accepts, but has no credits, does not hold up the others.
func TestAside(t *testing.T) {
	for _, byHash := range []bool{false, true} {
		r := newFixture(t)
		c := plain("g")
		c.Hash = byHash
		g := r.group(c)
		x, err := g.Attach("x", kindFilter("x"), NewBudget(1, 1<<20, true))
		must(t, err)
		r.picky(g, "y", "y")
		r.publish("a:x", "a:x", "a:y", "a:x", "a:y")
		same(t, "with one credit", r.next(g), []delivered{{0, "x", 1}, {2, "y", 1}, {4, "y", 1}})
		r.ack(x, 0, 1)
		same(t, "with another", r.next(g), []delivered{{1, "x", 1}})
		x.Detach(false, r.now)
		r.member(g, "z")
		list := r.next(g)
		slices.SortFunc(list, func(a, b delivered) int { return int(a.position - b.position) })
		same(t, "to another", list, []delivered{{1, "z", 1}, {3, "z", 1}})
	}
}

// What comes back without an attempt precedes what waits for credits behind it.
func TestReturnedBeforeAside(t *testing.T) {
	for name, back := range map[string]func(g *GroupState, m *Member){
		"returned": func(_ *GroupState, m *Member) { m.Return(Positions{Base: 0, Count: 1}) },
		"paused": func(g *GroupState, _ *Member) {
			must(t, g.Pause())
			must(t, g.Resume())
		},
	} {
		r := newFixture(t)
		c := plain("g")
		c.Hash = true
		g := r.group(c)
		m, err := g.Attach("m", nil, NewBudget(1, 1<<20, true))
		must(t, err)
		r.publish("a", "a", "a")
		same(t, name+": with one credit", r.positions(g), []int64{0})
		back(g, m)
		m.budget.Set(3, 1<<20)
		same(t, name+": with three", r.positions(g), []int64{0, 1, 2})
	}
}

// HQ-H09: the hash is Java's, and its index is in range, also for the lowest there is.
func TestHash(t *testing.T) {
	for key, want := range map[string]int32{
		"": 0, "a": 97, "hello": 99162322, "polygenelubricants": -2147483648, "\U0001F600": 1772899,
	} {
		is(t, "hash of "+key, javaHash(key), want)
	}
	r := newFixture(t)
	c := plain("g")
	c.Hash = true
	g := r.group(c)
	for _, name := range []string{"a", "b", "c"} {
		r.member(g, name)
	}
	r.publish("polygenelubricants", "a", "hello")
	same(t, "members", r.next(g), []delivered{{0, "a", 1}, {1, "b", 1}, {2, "b", 1}})
}

// HQ-H10: the same key, or the same message without one, goes to the same member.
func TestSameMember(t *testing.T) {
	r := newFixture(t)
	c := plain("g")
	c.Hash = true
	owner := func(name string) map[int64]string {
		c.Name = name
		g := r.begin(c, Begin{Start: 0})
		for _, i := range []int{3, 1, 2} {
			r.member(g, fmt.Sprint("m", i))
		}
		of := map[int64]string{}
		for _, h := range r.next(g) {
			of[h.position] = h.member
		}
		return of
	}
	for i := range 300 {
		r.publish([]string{"", fmt.Sprint("key ", i%17)}[i%2])
	}
	first, second := owner("first"), owner("second")
	keys, members := map[string]string{}, map[string]bool{}
	for p := range int64(300) {
		is(t, "another group", second[p], first[p])
		members[first[p]] = true
		if key := r.batches[p].Key(0); key != "" {
			if keys[key] == "" {
				keys[key] = first[p]
			}
			is(t, key, first[p], keys[key])
		}
	}
	is(t, "members", len(members), 3)
}

func unparked(t *testing.T, g *GroupState, want int, keys ...string) {
	t.Helper()
	n, missing := g.Unpark(0, keys...)
	is(t, "unparked", n, want)
	is(t, "unknown", missing, int64(-1))
}

// One message of a key at a time, with parallel members; what fails, or is parked, holds
// up its key and no other.
func TestKeyOrder(t *testing.T) {
	r := newFixture(t)
	c := plain("g")
	c.KeyOrder, c.Exhausted, c.MaxAttempts = true, ParkKey, 2
	g := r.group(c)
	m := r.member(g, "m")
	r.publish("a", "a", "b", "", "a", "b")
	same(t, "first of each", r.positions(g), []int64{0, 2, 3})
	r.ack(m, 2, 3)
	same(t, "next of b", r.positions(g), []int64{5})
	m.Nack(Positions{Base: 0}, time.Second, "no", r.now, nil)
	same(t, "a waits", r.next(g), nil)
	r.wait(time.Second)
	same(t, "again", r.next(g), []delivered{{0, "m", 2}})
	m.Nack(Positions{Base: 0}, 0, "no", r.now, nil)
	same(t, "parked", r.next(g), nil)
	same(t, "parked", g.Parked(nil), []Parked{{Key: "a", Position: 0, Attempts: 2, Waiting: 2}})
	r.publish("a", "c")
	same(t, "others continue", r.positions(g), []int64{7})
	unparked(t, g, 0, "b")
	unparked(t, g, 1, "a")
	for _, p := range []int64{0, 1, 4, 6} {
		same(t, "in order", r.next(g), []delivered{{p, "m", 1}})
		r.ack(m, p, p+1)
	}
}

// After a restart parked messages are parked again, and their keys are held.
func TestParkedAfterRestart(t *testing.T) {
	r := newFixture(t)
	c := plain("g")
	c.Exhausted, c.MaxAttempts = ParkKey, 1
	g := r.group(c)
	m := r.member(g, "m")
	r.publish("a")
	r.next(g)
	m.Nack(Positions{Base: 0}, 0, "no", r.now, nil)
	r.publish("a", "b")
	r.p = New(0, 0, r.end, r)
	g, err := r.p.Restore(c, Active, g.AppendCursor(nil))
	must(t, err)
	r.member(g, "m")
	same(t, "the other key", r.positions(g), []int64{2})
	same(t, "parked", g.Parked(nil), []Parked{{Key: "a", Position: 0, Attempts: 1, Waiting: 1}})
	unparked(t, g, 1)
	same(t, "now", r.positions(g), []int64{0, 1})
}

// After a restart each dead letter of a key blocks the key until all of them are stored. The order
// of storing does not matter.
func TestDeadLettersOfOneKeyAfterRestart(t *testing.T) {
	for _, order := range [][]int64{{0, 1}, {1, 0}} {
		r := newFixture(t)
		c := plain("g")
		c.Exhausted, c.MaxAttempts = DeadLetter, 1
		g := r.group(c)
		m := r.member(g, "m")
		r.publish("a", "a", "a", "b")
		same(t, "all", r.positions(g), []int64{0, 1, 2, 3})
		m.Nack(Positions{Base: 0}, 0, "no", r.now, nil)
		m.Nack(Positions{Base: 1}, 0, "no", r.now, nil)
		c.KeyOrder = true
		r.p = New(0, 0, r.end, r)
		g, err := r.p.Restore(c, Active, g.AppendCursor(nil))
		must(t, err)
		m = r.member(g, "m")
		same(t, "another key", r.positions(g), []int64{3})
		g.MarkDeadLettered(order[0])
		same(t, "one is not stored", r.positions(g), nil)
		g.MarkDeadLettered(order[1])
		same(t, "both are", r.positions(g), []int64{2})
		r.ack(m, 2, 4)
		is(t, "floor", g.Floor(), int64(4))
	}
}

// What waits for credits waits on if its key is parked meanwhile.
func TestParkedWhileOthersWaitForCredits(t *testing.T) {
	r := newFixture(t)
	c := plain("g")
	c.Exhausted, c.MaxAttempts = ParkKey, 1
	g := r.group(c)
	r.publish("k", "l", "", "l")
	m, err := g.Attach("m", nil, NewBudget(10, int64(r.batches[0].Size(0, 1))*3/2, true)) // bytes of one
	must(t, err)
	same(t, "the first", r.positions(g), []int64{0})
	m.Nack(Positions{Base: 0}, 0, "no", r.now, nil)
	same(t, "one by one", r.positions(g), []int64{1})
	m.Nack(Positions{Base: 1}, 0, "no", r.now, nil)
	same(t, "what waited", r.positions(g), []int64{2})
	r.ack(m, 2, 3)
	same(t, "the key is parked", r.positions(g), nil)
	same(t, "parked", g.Parked(nil),
		[]Parked{{Key: "k", Position: 0, Attempts: 1}, {Key: "l", Position: 1, Attempts: 1, Waiting: 1}})
	unparked(t, g, 1, "l")
	same(t, "in order", r.positions(g), []int64{1})
	r.ack(m, 1, 2)
	same(t, "in order", r.positions(g), []int64{3})
}

// Credits are by messages and bytes; a message larger than what is left goes alone.
func TestCredits(t *testing.T) {
	r := newFixture(t)
	g := r.group(plain("g"))
	r.messages(10)
	size := int64(r.batches[0].Size(0, 1))
	b := NewBudget(3, 1<<20, false)
	m, err := g.Attach("m", nil, b)
	must(t, err)
	same(t, "messages", r.positions(g), seq(0, 3))
	r.ack(m, 0, 2)
	same(t, "not renewed", r.next(g), nil)
	b.Set(10, 2*size)
	same(t, "bytes", r.positions(g), []int64{3, 4})
	b.Add(0, size/2)
	same(t, "too large while others are away", r.next(g), nil)
	r.ack(m, 2, 5)
	same(t, "alone", r.positions(g), []int64{5})
	messages, bytes := b.Add(1<<30, 1<<40)
	is(t, "limit of messages", messages, 65_536-1)
	is(t, "limit of bytes", bytes, 64<<20-size)
	r.ack(m, 5, 6)
	messages, bytes = b.Add(1<<30, 1<<40)
	is(t, "limit of messages, none away", messages, 65_536)
	is(t, "limit of bytes, none away", bytes, 64<<20)
}

// What is waited for is said.
func TestWaits(t *testing.T) {
	r := newFixture(t)
	g := r.group(plain("g"))
	wait := func(limit int) Reason {
		_, w := g.Next(r.now, limit, nil)
		return w.Reason
	}
	is(t, "without members", wait(1), Full)
	b := NewBudget(MaxMessages-5, MaxBytes, false)
	m, err := g.Attach("m", nil, b)
	must(t, err)
	is(t, "without messages", wait(1), Idle)
	r.messages(MaxOpen + 10)
	is(t, "with a limit", wait(1), Limit)
	is(t, "without credits", wait(MaxOpen), Credits)
	b.Add(10, 0)
	is(t, "with as many open as may be", wait(MaxOpen), Full)
	r.ack(m, 0, 1)
	b.Add(1, 0)
	is(t, "one further", len(r.next(g)), 1)
}
