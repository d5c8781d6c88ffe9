package machine

import (
	"container/heap"
	"time"
)

// Woken is what Wake did.
type Woken struct {
	// Next is when Wake has something to do again, later than the time that it was called for; zero if
	// nothing waits for a time. Leases that were extended make it early.
	Next time.Time
	// Done is how many messages were due: their lease ended, or their retry can be delivered. Next
	// follows for the group if there are some.
	Done int64
}

// Wake does everything that is due, and says when it is to be called again: it ends the leases that are
// over, each an attempt that failed, and makes ready what has waited long enough. It follows on every
// call that changes the group. No other method does something because time has passed, so a caller
// that calls it at Next, however late, leaves nothing behind.
func (g *GroupState) Wake(now time.Time) (w Woken) {
	at := now.UnixNano()
	w.Done = g.retry(at) + g.endOverdueLeases(at)
	if next, ok := g.due(); ok {
		w.Next = time.Unix(0, next)
	}
	return w
}

// Overdue returns for how long something has been due that Wake was not called for; 0 if nothing is.
func (g *GroupState) Overdue(now time.Time) time.Duration {
	if at, ok := g.due(); ok {
		return max(0, now.Sub(time.Unix(0, at)))
	}
	return 0
}

// due returns when Wake has something to do; false if it has not.
func (g *GroupState) due() (at int64, ok bool) {
	if len(g.leases.All()) > 0 {
		at, ok = g.deadline, true
	}
	if g.state != Active {
		return at, ok
	}
	if due, waits := g.fails.Due(); waits && (!ok || due < at) {
		at, ok = due, true
	}
	if len(g.postponed) > 0 && (!ok || g.postponed[0].due < at) {
		at, ok = g.postponed[0].due, true
	}
	return at, ok
}

// retry makes ready what has waited long enough.
func (g *GroupState) retry(now int64) (n int64) {
	for p, ok := g.fails.Ready(now); ok; p, ok = g.fails.Ready(now) {
		g.ready.Add(p, p+1)
		n++
	}
	for len(g.postponed) > 0 && g.postponed[0].due <= now {
		p := heap.Pop(&g.postponed).(delay).position
		g.ready.Add(p, p+1)
		n++
	}
	return n
}

// endOverdueLeases ends the leases that are over. Their messages are ready again, or wait for a retry.
func (g *GroupState) endOverdueLeases(now int64) (n int64) {
	if len(g.leases.All()) == 0 || now < g.deadline {
		return 0
	}
	over := g.leases.Take(nil, func(l *lease[*Member]) bool { return l.Deadline <= now })
	g.deadline = NoEnd
	for _, l := range g.leases.All() {
		g.deadline = min(g.deadline, l.Deadline)
	}
	for i := range over {
		g.p.lose(&over[i])
		n += over[i].To - over[i].From
	}
	g.counts.LeasesExpired.Add(n)
	g.giveBack(over, true, "the lease has ended", time.Unix(0, now))
	// Failed messages may be tried again at once: they wait for no time.
	return n + g.retry(now)
}
