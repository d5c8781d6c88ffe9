package machine

// Move is what SeekTo does.
type Move struct {
	From, To    int64 // floor before and after
	Redelivered int64 // messages that it would not receive without the move: it has them behind it, or never had them
	Skipped     int64
	Gap         bool // the position was no longer there: it is the oldest that is
}

// Moves is how often the group was moved by SeekTo.
func (g *GroupState) Moves() int64 { return g.moves }

// Preview returns what SeekTo would.
func (g *GroupState) Preview(to int64) (Move, error) {
	if g.state != Active && g.state != Paused {
		return Move{}, ErrState
	}
	if to > g.p.end {
		return Move{}, ErrOutOfRange
	}
	m := Move{From: g.Floor(), To: max(to, g.p.start), Gap: to < g.p.start}
	ahead := g.readable.Clone()
	ahead.Union(&g.history.Set)
	ahead.Subtract(&g.acked)
	m.Skipped = ahead.Count(0, m.To)
	m.Redelivered = g.p.end - m.To - ahead.Count(m.To, g.p.end)
	return m, nil
}

// SeekTo moves the group: messages before to are not delivered any more, and all messages
// from to on are, acknowledged or not. Messages that are not complete are held for the
// group. Errors: ErrOutOfRange, ErrState if it is neither active nor paused.
func (g *GroupState) SeekTo(to int64) (Move, error) {
	m, err := g.Preview(to)
	if err != nil {
		return Move{}, err
	}
	g.p.hold(m.To)
	g.p.settle()
	g.leaveHistory()
	g.reset()
	g.pass(m.To, BySeek)
	// Positions that it gets again because it goes back were not lost, and are not owed.
	again := g.acked.Clone()
	again.Remove(0, m.To)
	g.released.Take(&again)
	g.owed.Subtract(&again)
	// Positions that it has not acknowledged stay required: without that, positions that all others have acknowledged
	// would be complete.
	g.required.Subtract(&again)
	g.acked.Remove(m.To, NoEnd)
	g.start = m.To
	g.moves++
	g.claim(m.To, true)
	g.rebuild()
	return m, nil
}

// pass takes the group off what lies before a position and is not acknowledged, and puts it into
// the ledger. It returns how many messages that were due these are.
func (g *GroupState) pass(to int64, c Cause) int64 {
	due := g.dueBelow(to)
	n := g.release(c, &due)
	g.owed.Remove(0, to)
	g.drop(to)
	return n
}

// Skip takes an active or paused group off what lies before a position and is not
// acknowledged; later messages stay as they are. It returns how many messages these were
// that were due to it.
func (g *GroupState) Skip(to int64, c Cause) int64 {
	if g.state != Active && g.state != Paused {
		return 0
	}
	to = min(to, g.p.end)
	n := g.pass(to, c)
	g.endLeases(to)
	g.fails.Forget(to)
	g.suspects.Remove(0, to)
	g.changed()
	g.rebuild()
	return n
}
