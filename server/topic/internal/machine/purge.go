package machine

// Purge takes the group off everything before a position, because the log removes that although the
// group has not acknowledged it. Leases end, of which members are notified. The ledger counts what was
// due to the group as forced. It returns how many messages these are. Doing so again changes nothing.
func (g *GroupState) Purge(before int64) int64 {
	if g.state == Dead {
		return g.LetGo(before, ByForce)
	}
	return g.Skip(before, ByForce)
}

// Due returns how many messages Purge would take from the group.
func (g *GroupState) Due(before int64) int64 {
	if g.state == Dead {
		owed := g.Owed()
		return owed.Count(0, before)
	}
	if g.state != Active && g.state != Paused {
		return 0
	}
	due := g.dueBelow(min(before, g.p.end))
	return countWithout(&due, &g.acked)
}
