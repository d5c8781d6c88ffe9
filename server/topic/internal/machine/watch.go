package machine

// Counts returns what Stats counts of what was done and is under way. It costs O(members).
func (g *GroupState) Counts() (processed, filtered, failed, inFlight int64) {
	for _, m := range g.members {
		inFlight += m.inFlight
	}
	return g.processed, g.filtered, g.failed, inFlight
}

// Missing returns what the group is to receive and has not acknowledged; also what is
// published from now on, if it is to receive that. A dead group is to receive nothing; it may
// be owed messages.
func (g *GroupState) Missing() Set {
	missing := g.required.Clone()
	if g.state != Dead {
		missing.Union(&g.owed)
	}
	missing.Subtract(&g.acked)
	return missing
}

// Lag returns how many messages there are that the group is to receive and has not acknowledged. It costs
// O(1) if there are none.
func (g *GroupState) Lag() int64 {
	if g.Oldest() >= g.p.end && g.owed.Empty() {
		return 0
	}
	missing := g.Missing()
	return missing.Count(0, g.p.end)
}

// Readable returns what is delivered to the group, of a backfill, too.
func (g *GroupState) Readable() Set {
	readable := g.readable.Clone()
	readable.Union(&g.history.Set)
	return readable
}

// Oldest returns the lowest position that the group is to receive and has not acknowledged;
// the end if there is none.
func (g *GroupState) Oldest() int64 { return min(g.pin(), g.p.end) }

// Tracked is how many runs of positions, and failures, the machine keeps.
func (p *Machine) Tracked() int64 {
	n := p.settled.Len() + len(p.schedule.order)
	for _, g := range p.groups {
		n += g.required.Len() + g.readable.Len() + g.acked.Len() + g.fails.Len() +
			g.owed.Len() + g.released.Len() + len(g.postponed)
	}
	return int64(n)
}

// Orphans returns the messages below a position that wait for no group: no group is to
// receive them, and none has completed them.
func (p *Machine) Orphans(before int64) (set Set) {
	if before = min(before, p.end); before > p.start {
		set.Add(p.start, before)
	}
	set.Subtract(&p.settled)
	for _, g := range p.groups {
		set.Subtract(&g.required)
	}
	return set
}

// CompleteOrphans makes these complete, and returns how many they were. They are kept as
// long as what groups have acknowledged is.
func (p *Machine) CompleteOrphans(before int64) int64 {
	set := p.Orphans(before)
	if set.Empty() {
		return 0
	}
	p.settled.Union(&set)
	p.settle()
	return set.Count(p.start, p.end)
}
