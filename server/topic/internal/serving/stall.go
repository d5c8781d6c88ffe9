package serving

import (
	"slices"
	"time"

	"github.com/parley-chat/parley/server/topic/internal/machine"
)

// stall is what the sweep has seen of a partition of a group. The lock of the part guards it.
type stall struct {
	moved int64         // of the machine's group, at the last look
	since time.Time     // of the first look since then at which it got nothing; zero: it need not
	why   machine.Stall // once that has lasted for a lease
}

// look measures progress in a partition, and returns why the group is stalled there: it has something
// to do, a member waits for it, and nothing was delivered or settled for the length of a lease.
func (g *Group) look(n int, now time.Time) machine.Stall {
	var moved int64
	var why machine.Stall
	var lease time.Duration
	asked := false
	g.cfg.Parts[n].Do(func(m *machine.Machine) {
		if h := m.Group(g.cfg.Name); h != nil {
			lease = h.Config().Lease
			asked = g.asked(now, lease)
			moved, why = h.Moved(), h.Stalled(asked)
		}
	})
	if why != machine.AtBound && !asked && !g.receiving() { // members that do not read end as slow
		why = machine.Flowing
	}
	p := &g.parts[n]
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case why == machine.Flowing || moved != p.stall.moved:
		p.stall = stall{moved: moved}
	case p.stall.since.IsZero():
		p.stall.since = now
	case now.Sub(p.stall.since) >= lease+sweepEvery:
		p.stall.why = why
	}
	return p.stall.why
}

// Stalled returns why the group gets nothing in a partition, and since when; see machine.Stall.
func (g *Group) Stalled(n int) (why machine.Stall, since time.Time) {
	if g.Members() == 0 {
		return machine.Flowing, time.Time{}
	}
	p := &g.parts[n]
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stall.why, p.stall.since
}

// asked reports whether the last poll of a session got nothing, and was not longer ago than a time.
func (g *Group) asked(now time.Time, within time.Duration) bool {
	for _, s := range g.Sessions() {
		if at := s.empty.Load(); at != 0 && now.Sub(time.Unix(0, at)) <= within {
			return true
		}
	}
	return false
}

// receiving reports whether a session waits for an event.
func (g *Group) receiving() bool {
	return slices.ContainsFunc(g.Sessions(), func(s *Session) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.inside > 0
	})
}

// Partitions is the number of partitions.
func (g *Group) Partitions() int { return len(g.parts) }
