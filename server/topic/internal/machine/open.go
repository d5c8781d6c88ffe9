package machine

// MaxOpen is how many messages of a group may be open in a partition: Next has come to them, and
// they are not acknowledged. They are with members, wait for a retry, for their key or for a member
// that takes them, are parked, or are being stored as dead letters. How far they lie apart does not
// count: a million messages pass one that is parked.
//
// A cursor has no room for so many if they lie scattered among acknowledged messages: then fewer may
// be open, at least maxAckedRuns less what the group has in runs besides. See GroupState.room.
const MaxOpen = 65_536

// maxNamed is how many positions one Positions names at most.
const maxNamed = 65_536

// maxAckedRuns is how many runs a group can have acknowledged between messages that are open, if all
// it is to receive is one run: each open message ends one, and takes an entry besides.
const maxAckedRuns = maxCursorEntries/2 + 1

// room is how many messages Next may open. The group's cursor stays below MaxCursor then, for every
// outcome of what is open: a cursor has an entry for each run of positions and each failure. A
// message that is open has an entry already if it has failed. If not, it adds one at most: it
// fails, or it is acknowledged and ends at most one more run.
func (g *GroupState) room() int64 {
	runs := g.required.Len() + g.readable.Len() + g.acked.Len() + g.history.Set.Len() + g.owed.Len() + g.released.Len()
	return min(int64(g.p.maxOpen), int64(maxCursorEntries-runs)) - g.open
}

// take takes positions out of what is ready: Next has come to them. Those that it comes to for the
// first time are open from then on.
func (d *delivery) take(from, to int64) {
	d.ready.Remove(from, to)
	if d.late {
		d.open += to - from
		return
	}
	if to > d.reached {
		fresh := max(from, d.reached)
		d.reached = to
		d.open += to - fresh
		if !d.history.Set.Empty() { // a backfill's messages are open since it came to them
			d.open -= d.history.Set.Count(fresh, to)
		}
	}
}

// recount counts what is open, after a change of the sets that it follows from.
func (g *GroupState) recount() {
	g.open = g.countOpen()
}

func (g *GroupState) countOpen() int64 {
	open := g.readable.Clone()
	open.Remove(g.reached, NoEnd)
	late := g.history.Set.Clone()
	late.Subtract(&g.history.Ready)
	open.Union(&late)
	open.Subtract(&g.acked)
	return open.Count(0, NoEnd)
}

// failedBefore is behind everything that has failed, but for a backfill.
func (g *GroupState) failedBefore() (reached int64) {
	for p := range g.fails.All() {
		if p >= reached && !g.history.Set.Contains(p) {
			reached = p + 1
		}
	}
	return reached
}
