package machine

// Cause says why a group does not get messages that were due to it.
type Cause int

// The causes.
const (
	ByDeath     Cause = iota // the group was dead for longer than the topic keeps messages for it
	ByBound                  // more were due than the group gets back, or than the topic keeps for dead groups
	ByRetention              // the log removed them before the group acknowledged them
	ByZombie                 // the group's position did not move for too long
	ByForce                  // an operator forced it past them
	BySeek                   // a request moved it past them
	ByExpiry                 // their time to live was over; they are numbers only
	causes
)

// Causes is the number of causes.
const Causes = int(causes)

// String returns the name, for metrics and records.
func (c Cause) String() string {
	return [...]string{"death", "bound", "retention", "zombie", "forced", "sought", "expired"}[c]
}

// Ledger counts, by cause, the messages that were due to a group and that it does not get.
type Ledger [causes]int64

// Add adds another ledger.
func (l *Ledger) Add(other Ledger) {
	for c, n := range other {
		l[c] += n
	}
}

// Total adds up all causes.
func (l *Ledger) Total() (n int64) {
	for _, of := range l {
		n += of
	}
	return n
}

// Asked reports whether the cause is a wish: of a request that moved the group, or of a publisher.
func (c Cause) Asked() bool { return c == BySeek || c == ByExpiry }

// Unasked is the total without what was asked for.
func (l *Ledger) Unasked() (n int64) {
	for c, of := range l {
		if !Cause(c).Asked() {
			n += of
		}
	}
	return n
}

// maxLedgerRuns bounds the runs of positions that a ledger keeps of each cause, and maxOwedRuns
// those of what a group is owed. A cursor has room for both.
const (
	maxLedgerRuns = 64
	maxOwedRuns   = 256
)

// released is a group's ledger. A message counts from the moment at which it is taken from the
// group. It is in one set as long as the log has it, because a seek, a backfill or a revival may
// give it back, and then it does not count. Messages that the log no longer has are numbers only, and
// those that were over, which the group has acknowledged: if it seeks back, they are over again and count again.
//
// A set may hold positions that the group has acknowledged, because runs without their holes are
// few. They count for nothing: nothing that is released is acknowledged while it is.
type released struct {
	gone Ledger
	of   [ByExpiry]Set
}

// Count returns the ledger of a group that has acknowledged acked.
func (l *released) Count(acked *Set) Ledger {
	n := l.gone
	for c := range l.of {
		n[c] += countWithout(&l.of[c], acked)
	}
	return n
}

// countWithout counts the positions of a set that are not in another one.
func countWithout(s, other *Set) int64 {
	if s.Empty() {
		return 0
	}
	rest := s.Clone()
	rest.Subtract(other)
	return rest.Count(0, NoEnd)
}

// Add adds positions, and returns how many messages these are. Of too many runs the oldest become
// numbers: they stay counted, also if the group gets them back.
func (l *released) Add(c Cause, positions, acked *Set) int64 {
	l.of[c].Union(positions)
	if runs := l.of[c].Runs(); len(runs) > maxLedgerRuns {
		l.settle(c, runs[len(runs)-maxLedgerRuns].From, acked)
	}
	return countWithout(positions, acked)
}

// Take takes positions out, and returns those that were in.
func (l *released) Take(positions *Set) (taken Set) {
	for c := range l.of {
		if l.of[c].Empty() {
			continue
		}
		in := l.of[c].Clone()
		in.Intersect(positions)
		l.of[c].Subtract(&in)
		taken.Union(&in)
	}
	return taken
}

// Trim makes what lies before a position numbers.
func (l *released) Trim(start int64, acked *Set) {
	for c := range l.of {
		l.settle(Cause(c), start, acked)
	}
}

func (l *released) settle(c Cause, before int64, acked *Set) {
	if first, ok := l.of[c].First(); !ok || first >= before {
		return
	}
	old := l.of[c].Clone()
	old.Remove(before, NoEnd)
	l.gone[c] += countWithout(&old, acked)
	l.of[c].Remove(0, before)
}

// Len is how many runs the ledger has.
func (l *released) Len() (n int) {
	for c := range l.of {
		n += l.of[c].Len()
	}
	return n
}

// empty reports whether nothing was released but by retention, of which the log has nothing left.
func (l *released) empty() bool {
	gone := l.gone
	gone[ByRetention] = 0
	return gone == Ledger{} && l.Len() == 0
}

// Ledger returns the messages that were due to the group and that it does not get. They are
// counted as positions: also those that its filter would have left out.
func (g *GroupState) Ledger() Ledger { return g.released.Count(&g.acked) }

// dueBelow is what the group is to receive or is owed, below a position. Some of it may be acknowledged.
func (g *GroupState) dueBelow(to int64) Set {
	due := g.required.Clone()
	due.Union(&g.owed)
	due.Remove(to, NoEnd)
	return due
}

// release puts positions into the ledger. It returns how many messages these are.
func (g *GroupState) release(c Cause, positions *Set) int64 {
	n := g.released.Add(c, positions, &g.acked)
	g.p.released(c, n)
	return n
}

// regain takes positions that the group gets out of the ledger. The group is owed them again:
// they may be complete, so that nothing else keeps the log for it.
func (g *GroupState) regain(positions *Set) {
	back := g.released.Take(positions)
	g.owed.Union(&back)
	g.fitOwed()
}

// fitOwed keeps what is owed small. Messages between two runs that the group reads, or has
// acknowledged, are owed, too: the log is kept longer for them than it must be.
func (g *GroupState) fitOwed() {
	runs := g.owed.Runs()
	if len(runs) <= maxOwedRuns {
		return
	}
	between := SetOf(Run{From: runs[0].From, To: runs[len(runs)-1].To})
	reads := g.readable.Clone()
	reads.Union(&g.history.Set)
	reads.Union(&g.acked)
	between.Intersect(&reads)
	g.owed.Union(&between)
}

// owedFrom is the lowest position that the group is owed and has not acknowledged, NoEnd if there
// is none.
func (g *GroupState) owedFrom() int64 { return g.owed.NextWithout(&g.acked, g.p.start) }

// LetGo ends what a dead group is owed below a position; NoEnd: all of it, and of what is published
// from now on. The log is not kept for it any more. The group still gets messages that the log has
// when it returns, and the ledger does not count those. It returns how many messages these are.
func (g *GroupState) LetGo(before int64, c Cause) int64 {
	if !g.Owes() {
		return 0
	}
	lost := g.owed.Clone()
	if lost.Remove(min(before, g.p.end), NoEnd); before != NoEnd {
		before = min(before, g.p.end)
	}
	n := g.release(c, &lost)
	g.owed.Remove(0, before)
	g.drop(before) // unless Release was first
	g.changed()
	return n
}

// Owed returns what a dead group is owed and has not acknowledged.
func (g *GroupState) Owed() Set {
	if g.state != Dead {
		return Set{}
	}
	owed := g.owed.Clone()
	owed.Subtract(&g.acked)
	owed.Remove(g.p.end, NoEnd)
	return owed
}

// Owes reports whether the log is kept for a dead group.
func (g *GroupState) Owes() bool { return g.state == Dead && g.owedFrom() != NoEnd }
