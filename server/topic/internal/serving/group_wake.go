package serving

import (
	"time"

	"github.com/parley-chat/parley/server/topic/internal/machine"
)

// Timer is a timer that calls a function, as *time.Timer.
type Timer interface {
	Reset(d time.Duration) bool
	Stop() bool
}

// arm makes the timer of a partition run not later than a time, which is what the machine's Wake
// returned; zero: no need. It may be past by now: then the timer runs at once.
func (g *Group) arm(n int, at time.Time) {
	if at.IsZero() {
		return
	}
	p := &g.parts[n]
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.due.IsZero() && !at.Before(p.due) {
		return
	}
	p.due = at
	d := max(at.Sub(g.cfg.Clock()), 0)
	if p.timer == nil {
		p.timer = g.cfg.AfterFunc(d, func() { g.wake(n) })
		return
	}
	p.timer.Reset(d)
}

// wake does what is due in a partition, and lets it be delivered. The timer is unset before that:
//
//  1. A call changes the group, and the machine's Wake returns a time that is not before the timer's,
//     so arm leaves the timer alone.
//  2. The timer runs. It is unset, and only then is the partition's lock taken for Wake.
//  3. Wake sees the change, and arm sets the timer for it.
//
// If step 1 came after the timer was unset, arm sets it.
func (g *Group) wake(n int) (done int64) {
	p := &g.parts[n]
	p.mu.Lock()
	p.due = time.Time{}
	p.mu.Unlock()
	g.mu.Lock()
	closed := g.closed
	g.mu.Unlock()
	if closed {
		return 0
	}
	done = g.do(n, func(*machine.GroupState) {})
	g.Wake(n)
	return done
}

// Arm sets the timers of the partitions.
func (g *Group) Arm() {
	for n := range g.parts {
		g.do(n, func(*machine.GroupState) {})
	}
}

// sweep does what a partition had to do before a time and has not done, and returns how many messages
// were due. Members are attached that wait for it, and a timer should have done it.
func (g *Group) sweep(n int, before time.Time) (done int64) {
	late := false
	g.cfg.Parts[n].Do(func(m *machine.Machine) {
		if h := m.Group(g.cfg.Name); h != nil {
			late = h.Overdue(before) > 0
		}
	})
	if !late {
		return 0
	}
	return g.wake(n)
}
