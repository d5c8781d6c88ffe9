package machine

import (
	"cmp"
	"slices"
)

// AppendState appends what the machine must know again beside the groups' cursors:
// the watermark, and what was complete of groups that are no longer there.
func (p *Machine) AppendState(b []byte) []byte {
	return appendState(b, p.Watermark(), &p.settled)
}

// RestoreState takes what AppendState wrote; before groups are added. Error: ErrCursor.
func (p *Machine) RestoreState(state []byte) error {
	watermark, settled, err := decodeState(state, maxSettled)
	if err != nil {
		return ErrCursor
	}
	p.watermark = max(p.start, min(watermark, p.end))
	p.settled = *settled
	p.settled.Remove(0, p.start)
	p.settled.Remove(p.end, NoEnd)
	return nil
}

// AppendCursor appends the group's durable state to b, at most MaxCursor: where it began,
// what it is to receive, what it may read, what it has acknowledged, its counters, what
// failed how often and waits until when, what it catches up, how often it was moved, what it is owed,
// and its ledger. Keys are not in it: Next finds them again, as what holds up a key comes before what
// waits for it.
func (g *GroupState) AppendCursor(b []byte) []byte {
	optional := g.readable.Clone()
	optional.Subtract(&g.required)
	c := Cursor{
		Generation: g.config.Generation, Start: g.start, Floor: g.Floor(),
		Processed: g.processed, Filtered: g.filtered, Failed: g.failed, Missed: g.released.gone[ByRetention],
		Required: &g.required, Optional: &optional, Acked: &g.acked,
		Backfill: g.history.Number, History: &g.history.Set, Moves: g.moves,
		Dead: g.state == Dead, Owed: &g.owed, released: &g.released,
	}
	c.Failures = make([]SavedFailure, 0, g.fails.Len())
	for p, f := range g.fails.All() {
		c.Failures = append(c.Failures, SavedFailure{Position: p, Attempts: f.Attempts, Due: f.Due})
	}
	slices.SortFunc(c.Failures, func(a, b SavedFailure) int { return cmp.Compare(a.Position, b.Position) })
	return c.Append(b)
}

// Restore adds a group as its cursor has it. The state is that of its row, which may be
// newer than the cursor: a group that has died or ended since is released; one that has
// come back is resurrected by Reconcile. Errors: ErrCursor, ErrState if the group is
// there.
func (p *Machine) Restore(c Config, s State, saved []byte) (*GroupState, error) {
	d, err := DecodeCursor(saved, maxCursorEntries)
	if err != nil || d.Generation != c.Generation {
		return nil, ErrCursor
	}
	if p.Group(c.Name) != nil {
		return nil, ErrState
	}
	g := p.add(c, s)
	g.start, g.floor = max(d.Start, p.start), max(min(d.Floor, p.end), p.start)
	g.processed, g.filtered, g.failed, g.moves = d.Processed, d.Filtered, d.Failed, d.Moves
	g.required, g.readable, g.acked = *d.Required, *d.Optional, *d.Acked
	g.readable.Union(&g.required)
	g.readable.Subtract(d.History)
	g.history.Number, g.history.Set = d.Backfill, *d.History
	g.acked.Remove(p.end, NoEnd)
	g.owed, g.released = *d.Owed, *d.released
	runs := g.required.Runs()
	closed := len(runs) == 0 || runs[len(runs)-1].To != NoEnd
	if closed && !d.ledger && s != Cancelled {
		// An earlier release wrote it, and not what a dead group is owed: what that would have given it back.
		g.owed.Add(g.start, NoEnd)
	}
	for _, f := range d.Failures {
		g.fails.Put(f.Position, Failure{Attempts: f.Attempts, Due: f.Due})
	}
	start := p.start
	g.reached = g.failedBefore()
	g.trim(start)
	g.low = start
	g.rebuild()
	g.exhaustRestored()
	if s == Dead || s == Cancelled {
		g.end(s)
		g.abandon()
	} else if closed {
		p.returning = append(p.returning, g)
	}
	return g, nil
}

// exhaustRestored makes dead letters again of the messages that had failed too often before a
// restore. Next does not do it for a group without members, and the group may never have one
// again.
func (g *GroupState) exhaustRestored() {
	var list []int64
	for p, f := range g.fails.All() {
		if p < g.p.end && buries(&g.config, g.state, f.Attempts) && g.ready.Contains(p) {
			list = append(list, p)
		}
	}
	slices.Sort(list)
	for _, p := range list {
		g.exhaust(p, g.fails.Get(p).Attempts, "")
	}
	if len(list) > 0 {
		g.rebuild()
	}
}

// buries reports whether a message of a group in a state is stored as a dead letter after so
// many attempts.
func buries(c *Config, s State, attempts int) bool {
	return (s == Active || s == Paused) && c.Exhausted == DeadLetter && attempts >= c.MaxAttempts
}

// HasUndeliverable reports whether a saved cursor of a group has messages that failed too often and are
// to be stored as dead letters: TakeUndeliverable returns them after Restore. Error: ErrCursor.
func HasUndeliverable(c *Config, s State, saved []byte) (bool, error) {
	d, err := DecodeCursor(saved, maxCursorEntries)
	if err != nil {
		return false, ErrCursor
	}
	return slices.ContainsFunc(d.Failures, func(f SavedFailure) bool { return buries(c, s, f.Attempts) }), nil
}

// Returning are the restored groups whose rows say that they live, and whose cursors do not.
func (p *Machine) Returning() (list []*GroupState) {
	for _, g := range p.returning {
		if g.state == Active || g.state == Paused {
			list = append(list, g)
		}
	}
	return list
}

// Reconcile resurrects the returning groups, each with the newest positions that it has
// missed, as many as most says; negative: all. The positions that they are to receive
// depend on all groups, so it is called when these are there, and before any other method.
func (p *Machine) Reconcile(limit func(*GroupState) int64) {
	for _, g := range p.Returning() {
		s := g.state
		g.resurrect(limit(g), ByBound)
		g.state = s
	}
	p.returning = nil
}
