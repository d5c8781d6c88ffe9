package machine

import (
	"testing"
	"time"
)

// two is a machine with the groups g and other, which have members, and n messages. other has
// acknowledged them all.
func two(t testing.TB, n int) (r *fixture, g *GroupState, m *Member) {
	r = newFixture(t)
	g, other := r.group(plain("g")), r.group(plain("other"))
	m, o := r.member(g, "m"), r.member(other, "o")
	r.messages(n)
	r.work(other, o)
	return r, g, m
}

func (r *fixture) die(g *GroupState) {
	r.Helper()
	must(r, g.Die())
	_, err := g.Release()
	must(r, err)
}

func old(n int64) Cutoffs { return Cutoffs{Complete: n, Unrequired: n} }

// A dead group holds neither completion nor the watermark. The log is kept for it, it
// gets everything back that it missed, and the ledger counts nothing. What came back is kept until
// it is acknowledged, although it is complete.
func TestDeadGroupGetsItsMessagesBack(t *testing.T) {
	r, g, m := two(t, 50)
	r.next(g)
	r.ack(m, 0, 20)
	m.Detach(false, r.now)
	r.die(g)
	r.messages(10)
	r.work(r.p.Group("other"), r.p.Group("other").members[0])
	is(t, "watermark", r.p.Watermark(), 60)
	is(t, "complete", r.p.Status(49).Complete, true)
	is(t, "limit", r.p.TrimLimit(old(60)), 20)
	is(t, "pending of a dead group", g.Stats().Pending, 0)
	r.p.Trimmed(r.p.TrimLimit(old(60)))
	n, err := g.Resurrect(-1, ByBound)
	must(t, err)
	is(t, "comes back", n, 40)
	is(t, "pending", g.Stats().Pending, 40)
	is(t, "limit after it came back", r.p.TrimLimit(old(60)), 20)
	is(t, "complete again", r.p.Status(49).Complete, true)
	m = r.member(g, "m")
	same(t, "reads", r.positions(g), seq(20, 60))
	r.ack(m, 20, 50)
	is(t, "limit with some acknowledged", r.p.TrimLimit(old(60)), 50)
	r.ack(m, 50, 60)
	is(t, "limit with all acknowledged", r.p.TrimLimit(old(60)), 60)
	is(t, "ledger", g.Ledger(), Ledger{})
}

// Each way to take messages from a group counts them once, under its cause, whether
// the log has them or not. What comes back does not count.
func TestLedgerCauses(t *testing.T) {
	revive := func(limit int64) func(*fixture, *GroupState) {
		return func(r *fixture, g *GroupState) {
			r.die(g)
			_, err := g.Resurrect(limit, ByBound)
			must(r, err)
		}
	}
	letGo := func(before int64, c Cause) func(*fixture, *GroupState) {
		return func(r *fixture, g *GroupState) {
			r.die(g)
			is(r, "let go", g.LetGo(before, c), min(before, 50)-5)
			is(r, "again", g.LetGo(before, c), 0)
		}
	}
	seek := func(to int64) func(*fixture, *GroupState) {
		return func(r *fixture, g *GroupState) {
			_, err := g.SeekTo(to)
			must(r, err)
		}
	}
	for name, c := range map[string]struct {
		do   func(*fixture, *GroupState)
		want Ledger
		back int64 // position from which a seek gets everything again
	}{
		"death":              {letGo(NoEnd, ByDeath), Ledger{ByDeath: 45}, 0},
		"bytes of dead":      {letGo(30, ByBound), Ledger{ByBound: 25}, 0},
		"bound at return":    {revive(10), Ledger{ByBound: 35}, 0},
		"all comes back":     {revive(-1), Ledger{}, 0},
		"removed":            {func(r *fixture, _ *GroupState) { r.p.Trimmed(30) }, Ledger{ByRetention: 25}, 30},
		"removed while dead": {func(r *fixture, g *GroupState) { r.die(g); r.p.Trimmed(30) }, Ledger{ByRetention: 25}, 30},
		"zombie":             {func(_ *fixture, g *GroupState) { g.Skip(30, ByZombie) }, Ledger{ByZombie: 25}, 0},
		"forced":             {func(_ *fixture, g *GroupState) { g.Skip(30, ByForce) }, Ledger{ByForce: 25}, 0},
		"sought past":        {seek(30), Ledger{BySeek: 25}, 0},
		"sought back":        {func(r *fixture, g *GroupState) { seek(30)(r, g); seek(10)(r, g) }, Ledger{BySeek: 5}, 0},
		"zombie, then a seek": {func(r *fixture, g *GroupState) {
			g.Skip(20, ByZombie)
			seek(30)(r, g)
		}, Ledger{ByZombie: 15, BySeek: 10}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r, g, m := two(t, 50)
			var called Ledger
			r.p.OnRelease(func(c Cause, n int64) { called[c] += n })
			r.next(g)
			r.ack(m, 0, 5)
			m.Detach(false, r.now)
			c.do(r, g)
			is(t, "ledger", g.Ledger(), c.want)
			if name != "sought back" { // which gave some back
				is(t, "was called with", called, c.want)
			}
			cursor := g.AppendCursor(nil)
			restored, err := New(0, r.p.start, r.end, r).Restore(plain("g"), g.State(), cursor)
			must(t, err)
			is(t, "after a restart", restored.Ledger(), c.want)
			if g.State() == Dead {
				_, err := g.Resurrect(-1, ByBound)
				must(t, err)
			}
			_, err = g.SeekTo(c.back)
			must(t, err)
			r.member(g, "m")
			same(t, "reads after a seek", r.positions(g), seq(c.back, 50))
			want := Ledger{}
			want[ByRetention] = c.want[ByRetention]
			is(t, "ledger after a seek", g.Ledger(), want)
		})
	}
}

// What is published for a group that was let go of is not due to it. It gets what is
// there when it returns.
func TestAfterTheDeadRetention(t *testing.T) {
	r, g, m := two(t, 5)
	m.Detach(false, r.now)
	r.die(g)
	is(t, "owes", g.Owes(), true)
	is(t, "let go", g.LetGo(NoEnd, ByDeath), 5)
	is(t, "owes after it", g.Owes(), false)
	r.messages(5)
	r.work(r.p.Group("other"), r.p.Group("other").members[0])
	is(t, "limit", r.p.TrimLimit(old(10)), 10)
	r.p.Trimmed(3)
	is(t, "ledger", g.Ledger(), Ledger{ByDeath: 5})
	_, err := g.Resurrect(-1, ByBound)
	must(t, err)
	is(t, "ledger with two that came back", g.Ledger(), Ledger{ByDeath: 3})
	is(t, "keeps those two", r.p.TrimLimit(old(10)), 3)
	r.member(g, "m")
	same(t, "reads", r.positions(g), seq(3, 10))
}

// A backfill takes messages out of the ledger, and puts those back that it has not
// begun with when it is cancelled.
func TestBackfillOfTheLedger(t *testing.T) {
	r, g, m := two(t, 20)
	is(t, "skipped", g.Skip(10, ByZombie), 10)
	n, err := g.BeginBackfill(Backfill{Number: 1, From: 4, All: true, Limit: -1})
	must(t, err)
	is(t, "backfill", n, 6)
	is(t, "ledger with the backfill", g.Ledger(), Ledger{ByZombie: 4})
	is(t, "is kept", r.p.TrimLimit(old(20)), 4)
	r.next(g)
	r.ack(m, 10, 20)
	g.Allow(2)
	same(t, "of the backfill", r.positions(g), []int64{4, 5})
	g.EndBackfill()
	is(t, "ledger after the cancel", g.Ledger(), Ledger{ByZombie: 4, BySeek: 4})
	r.ack(m, 4, 6)
	is(t, "ledger in the end", g.Ledger(), Ledger{ByZombie: 4, BySeek: 4})
	is(t, "limit in the end", r.p.TrimLimit(old(20)), 20)
}

// A ledger and what is owed stay small. Of too many runs the oldest stay counted.
func TestLedgerIsBounded(t *testing.T) {
	var l released
	none := Set{}
	for i := range int64(1000) {
		one := SetOf(Run{From: 3 * i, To: 3*i + 2})
		l.Add(ByForce, &one, &none)
	}
	is(t, "runs", l.Len(), maxLedgerRuns)
	is(t, "counted", l.Count(&none), Ledger{ByForce: 2000})
	all := SetOf(Run{From: 0, To: 3000})
	taken := l.Take(&all)
	is(t, "taken", taken.Count(0, NoEnd), 2*maxLedgerRuns)
	is(t, "left", l.Count(&none), Ledger{ByForce: 2000 - 2*maxLedgerRuns})

	r, g, m := two(t, 1000)
	r.next(g)
	for i := range int64(300) {
		r.ack(m, 3*i, 3*i+1)
		g.owed.Add(3*i+1, 3*i+2)
	}
	g.fitOwed()
	is(t, "runs that are owed", g.owed.Len(), 1)
	owed := g.owed.Clone()
	owed.Subtract(&g.readable)
	is(t, "only what it reads", owed.Empty(), true)
}

// HQ-T6: the cursor of a dead group that an earlier release wrote does not say what it is owed: it is
// what that release would have given back.
func TestOwedOfEarlierReleases(t *testing.T) {
	c := Cursor{
		Generation: 1, Start: 3, Floor: 3, Missed: 7, Required: set(Run{From: 5, To: 6}), Optional: &Set{},
		Acked: set(Run{From: 5, To: 6}), History: &Set{},
	}
	r := newFixture(t)
	r.messages(10)
	is(t, "version", c.Append(nil)[0], Version)
	g, err := r.p.Restore(plain("g"), Dead, c.Append(nil))
	must(t, err)
	is(t, "limit", r.p.TrimLimit(old(10)), 3)
	is(t, "ledger", g.Ledger(), Ledger{ByRetention: 7})
	is(t, "let go", g.LetGo(NoEnd, ByDeath), 6)
	is(t, "version once it is written", g.AppendCursor(nil)[0], ledgerVersion)
	again, err := New(0, 0, 10, r).Restore(plain("g"), Dead, g.AppendCursor(nil))
	must(t, err)
	is(t, "is not owed again", again.Owes(), false)
	is(t, "ledger after it", again.Ledger(), Ledger{ByRetention: 7, ByDeath: 6})
}

// A message of a key is not delivered beside another one because the log was trimmed up to
// it: history that is complete is kept while a member has it in order of key.
func TestOrderOfKeyAtATrim(t *testing.T) {
	r := newFixture(t)
	other := r.group(plain("other"))
	o := r.member(other, "o")
	r.publish("k", "k", "k")
	r.work(other, o)
	c := plain("late")
	c.KeyOrder = true
	late := r.begin(c, Begin{Start: 0})
	m := r.member(late, "m")
	same(t, "one of the key", r.positions(late), []int64{0})
	is(t, "limit", r.p.TrimLimit(old(3)), 0)
	r.p.Trimmed(r.p.TrimLimit(old(3)))
	same(t, "no other one", r.positions(late), nil)
	r.ack(m, 0, 1)
	is(t, "limit between", r.p.TrimLimit(old(3)), 3)
	same(t, "the next one", r.positions(late), []int64{1})
	is(t, "limit with the next", r.p.TrimLimit(old(3)), 1)
	r.wait(time.Minute)
	late.Wake(r.now)
	is(t, "limit once the lease is over", r.p.TrimLimit(old(3)), 3)
}
