package machine

import "github.com/parley-chat/parley/server/commitlog"

// A message whose time to live is over is not delivered any more. For a group that has not acknowledged it by
// then it counts as acknowledged, without an attempt, and in the group's ledger if it was due. A member that
// has it may still acknowledge it; if the member returns it, it is over. A dead letter that is being stored stays.
//
// Next finds what is over where it comes to it: before a retry, and also what is parked, which waits no longer than
// until its end. Lapse finds the expired messages that no member asks for. It checks the front of a group only, because
// the front holds the log.

// Elapsed says what time it is by the clock that messages are stored by, in unix ns. It precedes Next and Lapse.
func (p *Machine) Elapsed(now int64) {
	p.clock = now
	p.schedule.elapsed(now)
}

// over reports whether the time of message i is over.
func (p *Machine) over(batch *commitlog.Batch, i int) bool {
	at := batch.Expiry(i)
	return at != 0 && at <= p.clock
}

// front is what Lapse knows of the lowest message of a group.
type front struct {
	position int64
	over     int64 // when it ends, unix ns; 0: nothing is known
}

// until is when a message that waits at a time stops waiting, at due at the latest; NoEnd for never.
func (d *delivery) until(batch *commitlog.Batch, i int, due int64) int64 {
	at := batch.Expiry(i)
	if at == 0 {
		return due
	}
	return min(due, d.now+max(0, at-d.p.clock))
}

// lapsed settles the first messages of a batch from i to j if they are over. If not, it returns the end of those
// that are not.
func (d *delivery) lapsed(batch *commitlog.Batch, i, j int) (to int, done bool) {
	if position := batch.Base + int64(i); d.p.over(batch, i) && !d.fails.Dying.Contains(position) {
		d.unheld(batch, i)
		d.take(position, position+1)
		d.lapse(batch, i)
		return 0, true
	}
	for to = i + 1; to < j && !d.p.over(batch, to); to++ {
	}
	return to, false
}

// lapse is done with message i, which is over, and neither ready nor leased.
func (g *GroupState) lapse(batch *commitlog.Batch, i int) {
	position := batch.Base + int64(i)
	n := g.countLapsed(batch, i)
	g.done(position, position+1)
	g.processed -= n
}

// countLapsed counts a message that is over, and returns 1 if it was for the group and 0 if its filter does
// not let it through.
func (g *GroupState) countLapsed(batch *commitlog.Batch, i int) int64 {
	position := batch.Base + int64(i)
	if !g.isFor(batch, i) {
		g.filtered++
		return 0
	}
	g.expired++
	if g.required.Contains(position) || g.owed.Contains(position) {
		g.released.gone[ByExpiry]++
		g.p.released(ByExpiry, 1)
	}
	return 1
}

// nextOpen returns the lowest position from one on that the group reads or is owed and has not acknowledged; NoEnd
// if there is none.
func (g *GroupState) nextOpen(from int64) int64 {
	low := NoEnd
	for _, s := range [...]*Set{&g.readable, &g.history.Set, &g.required, &g.owed} {
		low = min(low, s.NextWithout(&g.acked, from))
	}
	return low
}

// Lapse settles messages that are over at the front of the group, most at most, whether or not it has members. A
// message that is not over ends it, or one that a member has. It returns how many it settled, and why it
// stopped: Idle, Limit or Fetch. Next follows if there are some.
func (g *GroupState) Lapse(limit int) (n int64, w Wait) {
	if g.state == Cancelled {
		return 0, Wait{Reason: Idle}
	}
	at, settled := g.p.start, false
	for w.Reason = Limit; n < int64(limit); {
		var end int64
		var one bool
		if end, one, w = g.lapseNext(at); end == at {
			break
		}
		at, settled = end, true
		if one {
			n++
		}
		w.Reason = Limit
	}
	if settled {
		g.version++
		if g.state != Dead {
			g.rebuild()
		}
	}
	return n, w
}

// lapseNext settles the lowest message from a position on if it is over, or positions that do not exist. It
// returns the end of these, which is the position if there are none, and whether it was a message.
func (g *GroupState) lapseNext(from int64) (end int64, one bool, w Wait) {
	at := g.nextOpen(from)
	known := g.front.position == at && g.front.over > g.p.clock
	if at >= g.p.end || known || g.leases.Has(at) || g.fails.Dying.Contains(at) {
		return from, false, Wait{Reason: Idle}
	}
	batch, residence := g.p.source.At(at)
	switch residence {
	case Missing:
		return from, false, Wait{Reason: Fetch, Position: at}
	case Beyond:
		return from, false, Wait{Reason: Idle}
	case Resident:
	}
	if batch.Base > at {
		end = min(batch.Base, g.p.end)
		g.acknowledgeVoid(at, end)
		return end, false, Wait{}
	}
	i := int(at - batch.Base)
	if g.front = (front{at, NoEnd}); !g.p.over(batch, i) {
		if over := batch.Expiry(i); over != 0 {
			g.front.over = over
		}
		return from, false, Wait{Reason: Idle}
	}
	g.processed += 1 - g.countLapsed(batch, i)
	g.acked.Add(at, at+1)
	g.fails.Done(at, at+1)
	g.suspects.Remove(at, at+1)
	return at + 1, true, Wait{}
}

// acknowledgeVoid acknowledges what the group has of positions that do not exist.
func (g *GroupState) acknowledgeVoid(from, to int64) {
	var void Set
	for _, s := range [...]*Set{&g.readable, &g.history.Set, &g.required, &g.owed} {
		void.Union(s)
	}
	within := SetOf(Run{From: from, To: to})
	void.Intersect(&within)
	g.acked.Union(&void)
}
