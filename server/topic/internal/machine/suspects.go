package machine

import (
	"slices"

	"github.com/parley-chat/parley/server/commitlog"
)

// The messages that a member had at an abnormal end become suspect: its session broke, or the leases
// ended. One of these messages may have ended the consumer, and if there were several, nothing says
// which. So a suspect is delivered alone: to a member whose session has no other message in any
// partition, and which gets none until it is done with this one. An abnormal end then convicts that
// message.
//
// The attempts at an abnormal end follow from that:
//
//   - The only message of a session is charged with an attempt.
//   - Of several, the one that was delivered first is charged, as consumers start with it. That is a
//     guess, made once for what a session has in all partitions. It never takes the last attempt.
//   - The others are charged with none.
//
// Nothing is delivered without limit: after an end that charges nothing a message is suspect, and the
// next end charges it. A message stops being suspect when it is acknowledged or requeued by Nack. A
// restart forgets which messages are suspect. They are open, so MaxOpen bounds them.

// blame is the message that an abnormal end charges, of those that a member loses by it.
type blame struct {
	position, order int64
	certain         bool // the session had no other message
}

// blamed returns for each member that loses leases which message is charged, if one is. The leases
// still count in the members' budgets.
func blamed(list []lease[*Member]) map[*Member]blame {
	charged := map[*Member]blame{}
	for i := range list {
		l := &list[i]
		if b, ok := charged[l.Owner]; !ok || l.Order < b.order {
			charged[l.Owner] = blame{position: l.From, order: l.Order}
		}
	}
	for m, b := range charged {
		var some bool
		if some, b.certain = m.budget.Blame(b.order); some {
			charged[m] = b
		} else {
			delete(charged, m)
		}
	}
	return charged
}

// suspect makes a lease that ended abnormally suspect, and charges one of its messages if that is to
// blame. Messages that can be delivered again are added to back.
func (g *GroupState) suspect(l *lease[*Member], charged map[*Member]blame, reason string, now int64, back *Set) {
	g.suspects.Add(l.From, l.To)
	b, ok := charged[l.Owner]
	if !ok || b.position < l.From || b.position >= l.To ||
		!b.certain && g.fails.Get(b.position).Attempts+1 >= g.config.MaxAttempts {
		back.Add(l.From, l.To)
		return
	}
	back.Add(l.From, b.position)
	g.fail(b.position, b.position+1, 0, reason, now, back)
	back.Add(b.position+1, l.To)
}

// cutAtSuspects shortens a run of messages of a batch so that all are suspect, or none is.
func (d *delivery) cutAtSuspects(batch *commitlog.Batch, i, j int) (to int, suspect bool) {
	from := batch.Base + int64(i)
	if d.suspects.Contains(from) {
		return min(j, int(d.suspects.NextAbsent(from)-batch.Base)), true
	}
	if next, ok := d.suspects.Next(from); ok && next < batch.Base+int64(j) {
		j = int(next - batch.Base)
	}
	return j, false
}

// isolate makes suspects, which can be delivered, wait until a member that takes them has no messages.
func (d *delivery) isolate(batch *commitlog.Batch, i, j int) (Wait, bool) {
	position := batch.Base + int64(i)
	if d.simple && d.keys.Len() == 0 {
		d.take(position, position+int64(j-i))
		for _, m := range d.members {
			m.alone.Add(position, position+int64(j-i))
		}
		return d.serveAlone()
	}
	takers := d.takers(batch, i)
	if takers == 0 {
		d.pass(batch, i)
		return Wait{}, true
	}
	key := batch.Key(i)
	if d.waits(key, position) {
		return Wait{}, true
	}
	d.take(position, position+1)
	if d.config.KeyOrder {
		d.keys.Hold(key, position)
	}
	at := -1
	if d.config.Hash {
		at = hashed(key, d.p.number, position, takers)
	}
	for _, m := range d.members {
		if !m.filter.Accepts(batch, i) {
			continue
		}
		if at <= 0 {
			m.alone.Add(position, position+1)
		}
		if at--; at == -1 {
			break
		}
	}
	return d.serveAlone()
}

func (m *Member) setAlone() *Set { return &m.alone }

// serveAlone delivers suspects to members that have nothing, one to each. While suspects wait for
// busy members, one of these members gets nothing else.
func (d *delivery) serveAlone() (Wait, bool) {
	for _, m := range d.members {
		for at, ok := m.alone.First(); ok && d.limit > 0 && m.budget.Free(); at, ok = m.alone.First() {
			batch, residence := d.p.source.At(at)
			if residence != Resident {
				return Wait{Reason: Fetch, Position: at}, false
			}
			if !d.serve(m, batch, int(at-batch.Base), (*Member).setAlone, (*Budget).TakeAlone) {
				break
			}
		}
	}
	d.drain(d.now)
	return Wait{}, true
}

// drain chooses the member that gets nothing until it has no messages, if suspects wait for one: that
// with fewest messages first and, if it keeps them for the length of a lease, the next one. Without
// that members that are always busy would never take a suspect.
func (g *GroupState) drain(now int64) {
	d := &g.draining
	n := len(g.members)
	if d.member != nil && !d.member.alone.Empty() && (now < d.until || n == 1) {
		return
	}
	begin := -1
	if d.member != nil && !d.member.alone.Empty() {
		begin = slices.Index(g.members, d.member) + 1
	}
	g.stopDraining()
	var next *Member
	for k := range n {
		m := g.members[(max(begin, 0)+k)%n]
		if !m.alone.Empty() && (next == nil || begin < 0 && m.budget.Load() < next.budget.Load()) {
			next = m
		}
	}
	if next != nil {
		next.budget.Drain(1)
		*d = draining{member: next, until: now + int64(g.config.Lease)}
	}
}

// draining is the member of a group that gets nothing but suspects, and until when.
type draining struct {
	member *Member // nil: none
	until  int64   // unix ns
}

// stopDraining lets the member that was drained get messages again.
func (g *GroupState) stopDraining() {
	if m := g.draining.member; m != nil {
		m.budget.Drain(-1)
	}
	g.draining = draining{}
}

// stopWaiting makes nothing wait for members, for a time, or parked. The caller must make the
// messages that waited ready.
func (g *GroupState) stopWaiting() {
	g.fails.StopWaiting()
	g.postponed = g.postponed[:0]
	g.stopDraining()
	for _, m := range g.members {
		m.aside.Clear()
		m.alone.Clear()
	}
}

// First returns a number for the message that the member had first of those that it has; NoEnd if it
// has none. These numbers compare the members of a session.
func (m *Member) First() int64 {
	first := NoEnd
	for _, l := range m.g.leases.All() {
		if l.Owner == m {
			first = min(first, l.Order)
		}
	}
	return first
}
