package machine

// Backfill says what a backfill is to have.
type Backfill struct {
	Number int64 // 1 or more
	From   int64
	// All includes what is complete: it is read as long as it is there, and stays complete.
	All bool
	// Limit is how many positions it has at most, the newest; negative: no limit.
	Limit int64
}

// History is how far a backfill is in a partition.
type History struct {
	Number   int64 // 0: there is none, or the group has moved or died since
	Left     int64 // not acknowledged
	Done     int64 // acknowledged, as far as it is kept
	Untaken  int64 // of these, those that Next has not come to
	Allowed  int64 // of these, those that it may come to
	Behind   int64 // the lowest that is not acknowledged, the end if there is none
	Delivers bool  // the group is active and has members
}

// Wanted returns what a backfill would have from a position on: what the group has not
// acknowledged and does not hold already.
func (g *GroupState) Wanted(from int64, all bool) int64 {
	want := g.wanted(from, all)
	return want.Count(0, g.p.end)
}

func (g *GroupState) wanted(from int64, all bool) Set {
	want := SetOf(Run{From: max(from, g.p.start), To: g.p.end})
	want.Subtract(&g.acked)
	want.Subtract(&g.required)
	want.Subtract(&g.history.Set)
	for _, l := range g.leases.All() {
		want.Remove(l.From, l.To)
	}
	for p := range g.fails.All() {
		want.Remove(p, p+1)
	}
	want.Subtract(&g.suspects)
	if !all {
		complete := g.p.complete()
		want.Subtract(&complete)
	}
	return want
}

// BeginBackfill gives an active or paused group what b says. Positions that it may read
// there already, and has not begun with, become part of the backfill. Positions that are
// not complete are held for the group from then on; nothing is delivered until Allow. It
// returns how many positions these are. Error: ErrState.
func (g *GroupState) BeginBackfill(b Backfill) (int64, error) {
	if g.state != Active && g.state != Paused {
		return 0, ErrState
	}
	want := g.wanted(b.From, b.All)
	if runs := want.Runs(); len(runs) > maxGroupRuns { // a cursor has room for
		want.Remove(0, runs[len(runs)-maxGroupRuns].From)
	}
	n := want.Count(0, g.p.end)
	if b.Limit >= 0 && n > b.Limit {
		want.Remove(0, want.Nth(n-b.Limit))
		n = b.Limit
	}
	held := want.Clone()
	complete := g.p.complete()
	held.Subtract(&complete)
	if first, ok := held.First(); ok {
		g.p.hold(first)
	}
	g.required.Union(&held)
	g.readable.Subtract(&want)
	g.history.Begin(b.Number, g.p.start, &want)
	g.regain(&want)
	g.changed()
	g.rebuild()
	return n, nil
}

// Allow lets Next deliver n more positions of the backfill. It follows for the group.
func (g *GroupState) Allow(n int64) { g.history.Allowed += n }

// EndBackfill takes the group off what it has not begun with of its backfill. Messages that members
// have, and those that are tried again, parked or dying, stay. Positions that the ledger had
// counted before the backfill count again; the rest was due because of the backfill only. Doing so
// again changes nothing.
func (g *GroupState) EndBackfill() {
	kept := g.acked.Clone()
	kept.Union(&g.fails.Dying)
	for _, l := range g.leases.All() {
		kept.Add(l.From, l.To)
	}
	for p := range g.fails.All() {
		kept.Add(p, p+1)
	}
	kept.Union(&g.suspects)
	dropped := g.history.Drop(&kept)
	g.required.Subtract(&dropped)
	owed := dropped.Clone()
	owed.Intersect(&g.owed)
	g.release(BySeek, &owed)
	g.owed.Subtract(&owed)
	g.changed()
	g.rebuild()
}

// FinishBackfill forgets a backfill that has nothing left, and reports whether it could.
func (g *GroupState) FinishBackfill() bool {
	if g.history.Set.Empty() {
		return true
	}
	if g.behind() != NoEnd {
		return false
	}
	g.mergeHistory()
	return true
}

// mergeHistory makes what a backfill had part of what the group reads.
func (g *GroupState) mergeHistory() {
	if h := &g.history; !h.Set.Empty() {
		g.floor = min(g.floor, g.behind())
		g.readable.Union(&h.Set)
		*h = catchUp{Number: h.Number}
		g.changed()
	}
}

// leaveHistory ends a backfill because the group goes elsewhere.
func (g *GroupState) leaveHistory() {
	g.mergeHistory()
	if g.history.Number != 0 {
		g.history = catchUp{}
		g.version++
	}
}

// behind is the lowest position of the backfill that is not acknowledged, NoEnd if there
// is none.
func (g *GroupState) behind() int64 { return g.history.Behind(&g.acked) }

// ProgressMark changes when the group gets on, with what is published or what it catches up.
func (g *GroupState) ProgressMark() int64 {
	return g.Floor() - g.History().Left
}

// History returns how far the backfill is. It costs O(runs).
func (g *GroupState) History() History {
	left, done := g.history.Count(&g.acked, g.p.end)
	return History{
		Number: g.history.Number, Left: left, Done: done, Untaken: g.history.Ready.Count(0, g.p.end),
		Allowed: g.history.Allowed, Behind: min(g.behind(), g.p.end),
		Delivers: g.state == Active && len(g.members) > 0,
	}
}

// catchUp delivers of the backfill what is allowed, after all else.
func (d *delivery) catchUp(w Wait) Wait {
	h := &d.history
	d.ready, d.late = &h.Ready, true
	for d.limit > 0 && h.Allowed > 0 {
		r, ok := h.Ready.NextRun(0)
		if !ok {
			return w
		}
		stopped, ok := d.step()
		next, more := h.Ready.First()
		if !more || next > r.To {
			next = r.To
		}
		h.Allowed = max(0, h.Allowed-(next-r.From))
		if !ok {
			return stopped
		}
	}
	if d.limit == 0 {
		return Wait{Reason: Limit}
	}
	return w
}
