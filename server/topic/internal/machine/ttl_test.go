package machine

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/parley-chat/parley/server/commitlog"
)

// mortal publishes messages of keys, which end after a while; 0: never.
func (r *fixture) mortal(ttl time.Duration, keys ...string) {
	r.Helper()
	var list []*commitlog.Message
	for _, key := range keys {
		m := &commitlog.Message{Key: key}
		if ttl > 0 {
			m.Ttl = durationpb.New(ttl)
		}
		list = append(list, m)
	}
	b, err := commitlog.NewBatch(r.end, r.now, list)
	must(r, err)
	r.batches = append(r.batches, b)
	r.end = b.End()
	r.p.Published(r.end)
}

// pass lets time pass and does what is due.
func (r *fixture) pass(g *GroupState, d time.Duration) {
	r.wait(d)
	r.p.Elapsed(r.now.UnixNano())
	g.Wake(r.now)
}

// A message that waits for a retry, or is parked, waits no longer than until its time is over: what waits for
// its key follows then, and a caller of Wake learns when that is.
func TestWaitingEndsWithTheMessage(t *testing.T) {
	for _, exhausted := range []Exhausted{DeadLetter, ParkKey} {
		r := newFixture(t)
		c := plain("g")
		c.KeyOrder, c.Exhausted, c.MaxAttempts = true, exhausted, 2
		if exhausted == ParkKey {
			c.MaxAttempts = 1
		}
		g := r.group(c)
		m := r.member(g, "m")
		r.pass(g, 0)
		r.mortal(20*time.Second, "k")
		r.mortal(0, "k")
		same(t, "first", r.positions(g), []int64{0})
		m.Nack(Positions{Base: 0, Count: 1}, time.Hour, "no", r.now, nil)
		same(t, "while it waits", r.positions(g), nil)
		delayed, parked := g.fails.Waiting()
		is(t, "messages that are parked", parked == 1, exhausted == ParkKey)
		is(t, "messages that wait", delayed+parked, 1)
		at, ok := g.wakeAt()
		is(t, "something is due", ok, true)
		is(t, "when it is due", at.Sub(r.now), 20*time.Second)
		r.pass(g, 19*time.Second)
		same(t, "before its end", r.positions(g), nil)
		r.pass(g, time.Second)
		same(t, "after its end", r.positions(g), []int64{1})
		delayed, parked = g.fails.Waiting()
		is(t, "messages that wait", delayed+parked, 0)
		is(t, "expired", g.Ledger()[ByExpiry], 1)
		is(t, "floor", g.Floor(), 1)
	}
}

// A member may acknowledge a message whose time is over, and nothing is counted. If it returns the message, it
// is over at once. A dead letter that is being stored is stored.
func TestInHandWhenItEnds(t *testing.T) {
	r := newFixture(t)
	c := plain("g")
	c.MaxAttempts = 2
	g := r.group(c)
	m := r.member(g, "m")
	r.pass(g, 0)
	r.mortal(5*time.Second, "", "", "")
	same(t, "handed out", r.positions(g), seq(0, 3))
	m.Nack(Positions{Base: 2, Count: 1}, 0, "no", r.now, nil)
	same(t, "again", r.positions(g), []int64{2})
	m.Nack(Positions{Base: 2, Count: 1}, 0, "no", r.now, nil)
	r.pass(g, 6*time.Second)
	if done, refused := m.Ack(Positions{Base: 0, Count: 1}, nil); done != 1 || len(refused) > 0 {
		t.Error(done, refused)
	}
	is(t, "expired", g.Ledger()[ByExpiry], 0)
	m.Nack(Positions{Base: 1, Count: 1}, 0, "no", r.now, nil)
	same(t, "after it was returned", r.positions(g), nil)
	is(t, "expired after it was returned", g.Ledger()[ByExpiry], 1)
	deadLetters := g.TakeUndeliverable(nil)
	if len(deadLetters) != 1 || deadLetters[0].Position != 2 || g.acked.Contains(2) {
		t.Error(deadLetters)
	}
	n, w := g.Lapse(10)
	is(t, "lapsed", n, 0)
	is(t, "why", w.Reason, Idle)
}

// Messages that wait for credits end as well. A group without members, that is paused, or dead, lets go of what is
// over at its front, and a message that does not end stops that. Those who come later, or come back, get what is
// not over.
func TestLapse(t *testing.T) {
	r := newFixture(t)
	names := []string{"idle", "paused", "dead"}
	var groups []*GroupState
	for _, name := range names {
		groups = append(groups, r.group(plain(name)))
	}
	r.p.Elapsed(r.now.UnixNano())
	r.mortal(5*time.Second, "", "")
	r.mortal(9*time.Second, "")
	r.mortal(0, "")
	r.mortal(5*time.Second, "")
	must(t, groups[1].Pause())
	must(t, groups[2].Die())
	if _, err := groups[2].Release(); err != nil {
		t.Fatal(err)
	}
	r.wait(5 * time.Second)
	r.p.Elapsed(r.now.UnixNano())
	for i, g := range groups {
		n, w := g.Lapse(1)
		is(t, names[i]+" at most one", n, 1)
		is(t, names[i]+" then", w.Reason, Limit)
		n, w = g.Lapse(10)
		is(t, names[i]+" all", n, 1)
		is(t, names[i]+" at the end", w.Reason, Idle)
		is(t, names[i]+" expired", g.Ledger()[ByExpiry], 2)
	}
	is(t, "watermark", r.p.Watermark(), 2)
	limit, _ := r.p.TrimLimits(Cutoffs{Complete: r.end})
	is(t, "limit of a trim", limit, 2)
	r.wait(4 * time.Second)
	r.p.Elapsed(r.now.UnixNano())
	for _, g := range groups {
		g.Lapse(10)
	}
	is(t, "watermark", r.p.Watermark(), 3)
	n, err := groups[2].Resurrect(-1, ByBound)
	must(t, err)
	is(t, "missed by the dead", n, 2) // Next finds that the last one is over
	r.member(groups[2], "m")
	same(t, "messages after the return", r.positions(groups[2]), []int64{3})
	late := r.begin(plain("late"), Begin{Start: 0, Backfill: true})
	r.member(late, "m")
	same(t, "messages of who comes late", r.positions(late), []int64{3})
	is(t, "what is over is due to nobody who comes late", late.Ledger()[ByExpiry], 1) // 4 is not complete
}

// A message that waits for credits is over in time, and its key is free.
func TestAsideEnds(t *testing.T) {
	r := newFixture(t)
	c := plain("g")
	c.KeyOrder = true
	g := r.group(c)
	r.pass(g, 0)
	b := NewBudget(0, 1<<20, true)
	if _, err := g.Attach("m", nil, b); err != nil {
		t.Fatal(err)
	}
	r.mortal(5*time.Second, "k")
	r.mortal(0, "k")
	same(t, "without credits", r.positions(g), nil)
	r.pass(g, 6*time.Second)
	b.Add(5, 1000)
	same(t, "with credits", r.positions(g), []int64{1})
	is(t, "expired", g.Ledger()[ByExpiry], 1)
	is(t, "open", g.open, 1)
}
