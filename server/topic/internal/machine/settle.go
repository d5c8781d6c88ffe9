package machine

import (
	"time"
)

// Member is a member of a group in a partition.
type Member struct {
	g        *GroupState
	name     string
	filter   *sharedFilter
	budget   *Budget
	inFlight int64
	aside    Set // what waits until it has credits
	alone    Set // suspects, which wait until it has no messages
	lost     losses
	gone     bool
}

// Group returns the group.
func (m *Member) Group() *GroupState { return m.g }

// Name returns the member's name.
func (m *Member) Name() string { return m.name }

// InFlight returns how many messages the member has.
func (m *Member) InFlight() int64 { return m.inFlight }

// lose records positions that the member had and has not any more.
func (m *Member) lose(from, to int64) { m.lost.Add(from, to, &m.g.acked) }

// each calls f with the parts of the positions that the member has, each part of one
// lease, whose index it gets; f takes them out of it. It appends to dst why nothing is
// done for the others.
func (m *Member) each(s Positions, dst []Refusal, f func(i int, from, to int64)) []Refusal {
	s.Runs(maxNamed, func(from, to int64) {
		switch {
		case m.g.state != Active:
			dst = appendRefusal(dst, from, to, NotActive)
		case m.gone:
			dst = appendRefusal(dst, from, to, LeaseLost)
		default:
			dst = m.walk(from, to, dst, f)
		}
	})
	return dst
}

func (m *Member) walk(p, to int64, dst []Refusal, f func(i int, from, to int64)) []Refusal {
	l := &m.g.leases
	for p < to {
		i, end := l.Find(p), to
		if i < len(l.All()) {
			found := l.All()[i]
			if end = min(to, found.To); found.From > p {
				end = min(to, found.From)
			} else if found.Owner == m {
				f(i, p, end)
				p = end
				continue
			}
		}
		dst = m.lost.Explain(p, end, m.g.p.start, &m.g.acked, dst)
		p = end
	}
	return dst
}

// Ack acknowledges messages that the member has, and appends what was refused to dst.
// Positions that are acknowledged already are not refused. done is how many are newly
// acknowledged.
func (m *Member) Ack(s Positions, dst []Refusal) (done int64, refused []Refusal) {
	before := m.g.processed
	refused = m.each(s, dst, func(i int, from, to int64) {
		m.g.cut(i, from, to)
		m.g.done(from, to)
	})
	done = m.g.processed - before
	m.g.counts.Acknowledged.Add(done)
	return done, refused
}

// done acknowledges messages that are open, and neither ready nor leased.
func (g *GroupState) done(from, to int64) {
	g.acked.Add(from, to)
	g.open -= to - from
	g.processed += to - from
	g.version++
	g.fails.Done(from, to)
	if !g.suspects.Empty() {
		g.suspects.Remove(from, to)
	}
	if g.keys.Len() > 0 {
		for p := from; p < to; p++ {
			g.free(p)
		}
	}
}

// free makes ready what follows a message that may hold its key and is done with: the next one, or all of the key if
// the group has no order. There a message that was parked, or dying, held them up, and they hold no key.
func (g *GroupState) free(position int64) {
	if g.config.KeyOrder {
		if next, ok := g.keys.Free(position, g.acked.Contains); ok {
			g.ready.Add(next, next+1)
		}
		return
	}
	for _, next := range g.keys.FreeAll(position) {
		if !g.acked.Contains(next) {
			g.ready.Add(next, next+1)
		}
	}
}

// Nack requeues messages, each an attempt that failed; they are delivered again after
// delay or, if it is negative, the group's backoff.
func (m *Member) Nack(s Positions, delay time.Duration, reason string, now time.Time, dst []Refusal) []Refusal {
	at := now.UnixNano()
	return m.each(s, dst, func(i int, from, to int64) {
		m.g.cut(i, from, to)
		m.lose(from, to)
		m.g.suspects.Remove(from, to)
		var back Set
		m.g.fail(from, to, delay, reason, at, &back)
		m.g.putBack(&back)
	})
}

// Return requeues messages that were never sent to the member, which is no attempt.
func (m *Member) Return(s Positions) {
	m.each(s, nil, func(i int, from, to int64) {
		m.g.cut(i, from, to)
		m.lose(from, to)
		back := SetOf(Run{From: from, To: to})
		m.g.putBack(&back)
	})
	m.g.recall()
}

// recall makes ready again what waits for members that have credits, because earlier messages are ready again that
// are to precede it. Without that a member would get the messages of a key in another order:
//
//  1. A poll has one credit, which message 0 takes. Message 1 waits for the next.
//  2. The poll ends before it takes message 0, which is returned.
//  3. The next poll has two credits. Next serves what waits first: message 1 before message 0.
func (g *GroupState) recall() {
	for _, m := range g.members {
		g.ready.Union(&m.aside)
		m.aside.Clear()
	}
}

// Extend renews leases.
func (m *Member) Extend(s Positions, now time.Time, dst []Refusal) []Refusal {
	at := m.g.extended(now)
	return m.each(s, dst, func(i int, from, to int64) {
		order := m.g.leases.All()[i].Order
		size := m.g.leases.Cut(i, from, to)
		m.g.leases.Insert(lease[*Member]{From: from, To: to, Deadline: at, Size: size, Order: order, Owner: m})
	})
}

// ExtendAll renews all leases of the member.
func (m *Member) ExtendAll(now time.Time) {
	at := m.g.extended(now)
	all := m.g.leases.All()
	for i := range all {
		if all[i].Owner == m {
			all[i].Deadline = at
		}
	}
}

// extended is when a lease ends that is renewed now. That is before all others if the
// clock was set back.
func (g *GroupState) extended(now time.Time) int64 {
	at := g.leaseEnd(now.UnixNano())
	g.begins(at)
	return at
}

// Detach takes the member out of the group; its messages can be delivered to others at once. With
// failed that is an abnormal end, as when its connection broke: its messages become suspect. Of the
// members of a session, that with the lowest First is detached first.
func (m *Member) Detach(failed bool, now time.Time) {
	if m.gone {
		return
	}
	g := m.g
	m.gone = true
	for i, other := range g.members {
		if other == m {
			g.members = append(g.members[:i:i], g.members[i+1:]...)
			break
		}
	}
	g.p.filters.Release(m.filter)
	if g.draining.member == m {
		g.stopDraining()
	}
	own := g.leases.Take(nil, func(l *lease[*Member]) bool { return l.Owner == m })
	g.giveBack(own, failed, "the member has left", now)
	if g.anyAside() || m.awaited() {
		g.rebuild()
	}
}

// giveBack makes leases that are taken away ready for others. With failed they ended abnormally.
func (g *GroupState) giveBack(list []lease[*Member], failed bool, reason string, now time.Time) {
	var back Set
	var charged map[*Member]blame
	if failed {
		charged = blamed(list)
	}
	for i := range list {
		l := &list[i]
		l.Owner.inFlight -= l.To - l.From
		l.Owner.budget.Back(l.To-l.From, l.Size)
		l.Owner.lose(l.From, l.To)
		if failed {
			g.suspect(l, charged, reason, now.UnixNano(), &back)
		} else {
			back.Add(l.From, l.To)
		}
	}
	g.putBack(&back)
}

// fail counts an attempt for messages that are not leased any more, and adds to back what
// is to be ready again: Next sees to what it waits for.
func (g *GroupState) fail(from, to int64, delay time.Duration, reason string, now int64, back *Set) {
	g.failed += to - from
	g.version++
	backoff := Backoff{Initial: g.config.InitialBackoff, Max: g.config.MaxBackoff}
	for p := from; p < to; p++ {
		attempts := g.fails.Fail(p, now, delay, backoff)
		if attempts >= g.config.MaxAttempts && g.config.Exhausted != ParkKey {
			g.exhaust(p, attempts, reason)
		} else {
			back.Add(p, p+1)
		}
	}
}

// exhaust deals with a message that failed too often and is neither ready nor leased.
func (g *GroupState) exhaust(position int64, attempts int, reason string) {
	if g.config.Exhausted == Discard {
		g.done(position, position+1)
		return
	}
	g.fails.Exhaust(Undeliverable{Position: position, Attempts: attempts, Reason: reason, Moves: g.moves})
}

// TakeUndeliverable appends the messages to be stored as dead letters that no call has returned
// before. A restore makes those that are not buried dead letters again, without their reasons.
func (g *GroupState) TakeUndeliverable(dst []Undeliverable) []Undeliverable {
	return g.fails.TakeUndeliverable(dst)
}

// MarkDeadLettered acknowledges a dead letter once it is stored.
func (g *GroupState) MarkDeadLettered(position int64) {
	if g.fails.MarkDeadLettered(position) {
		g.counts.DeadLettered.Add(1)
		g.ready.Remove(position, position+1) // in order of key, if Next has not come to it
		g.done(position, position+1)
	}
}
