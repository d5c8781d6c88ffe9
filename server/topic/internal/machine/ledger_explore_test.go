package machine

import "fmt"

// due reports whether a message is to come to a group, or is kept for it until it returns.
func (r *record) due(g *modelGroup) bool { return !r.acked[g] && (r.required[g] || r.owed[g]) }

// owe is what becomes of a group that dies: it is owed what it was to receive, and what follows.
func (m *model) owe(g *modelGroup) {
	g.owes = true
	for _, r := range m.records {
		if r.required[g] && !r.acked[g] {
			r.owed[g] = true
		}
	}
}

// cancel ends what a group is owed.
func (m *model) cancel(g *modelGroup) {
	g.owes = false
	for _, r := range m.records {
		delete(r.owed, g)
	}
}

// endAgain ends a group whose row says that it has ended, and whose cursor may not.
func (m *model) endAgain(g *modelGroup) {
	m.leave(g)
	if g.state == Cancelled {
		m.cancel(g)
	} else if g.saved.open {
		m.owe(g)
	}
	m.drop(g, 1<<62)
	g.reset()
}

// regain gives a message back that the ledger has.
func (r *record) regain(g *modelGroup) {
	if _, ok := r.lost[g]; ok {
		delete(r.lost, g)
		r.owed[g], r.ever[g] = true, true
	}
}

// lose takes what is due before a position from a group.
func (m *model) lose(g *modelGroup, to int64, c Cause) (n int64) {
	for _, r := range m.records {
		if r.position < to && r.due(g) {
			r.lost[g] = c
			n++
		}
		if r.position < to {
			delete(r.owed, g)
		}
	}
	return n
}

// resurrect gives a group the newest most of what it missed.
func (m *model) resurrect(g *modelGroup, limit int64, rest Cause) int64 {
	from := m.missed(g, limit)
	g.owes = false
	m.lose(g, from, rest)
	m.drop(g, 1<<62)
	return m.claim(g, from, true)
}

// trimLedgers makes what is about to be trimmed numbers.
func (m *model) trimLedgers(start int64) {
	for _, g := range m.groups {
		for _, r := range m.records[:start-m.start] {
			if c, ok := r.lost[g]; ok {
				g.gone[c]++
			} else if g.state != Cancelled && r.due(g) {
				g.gone[ByRetention]++
			}
		}
	}
}

// restoreLedger makes the ledger what a cursor says. What was trimmed since it was written, and was
// due to the group by then, is lost.
func (m *model) restoreLedger(g *modelGroup) {
	s := g.saved
	g.gone, g.owes = s.gone, s.owes
	for p := range m.start {
		due := s.required[p] || s.owed[p] || p >= s.end && (s.open || s.owes)
		if c, ok := s.lost[p]; ok {
			g.gone[c]++
		} else if g.state != Cancelled && due && !s.acked[p] && p >= s.from {
			g.gone[ByRetention]++
		}
	}
	for _, r := range m.records {
		later := r.position >= s.end
		delete(r.lost, g)
		delete(r.owed, g)
		delete(r.ever, g)
		if c, ok := s.lost[r.position]; ok {
			r.lost[g] = c
		}
		if s.owed[r.position] || later && s.owes {
			r.owed[g] = true
		}
		if s.ever[r.position] || later && (s.owes || s.open) {
			r.ever[g] = true
		}
	}
}

// saveLedger is what a cursor written now says.
func (m *model) saveLedger(g *modelGroup, s *snapshot) {
	s.gone, s.owes, s.from = g.gone, g.owes, m.start
	s.owed, s.ever, s.lost = map[int64]bool{}, map[int64]bool{}, map[int64]Cause{}
	for _, r := range m.records {
		if r.owed[g] {
			s.owed[r.position] = true
		}
		if r.ever[g] {
			s.ever[r.position] = true
		}
		if c, ok := r.lost[g]; ok {
			s.lost[r.position] = c
		}
	}
}

func (g *modelGroup) holds() bool {
	return g.state == Active || (g.state == Paused && g.config.HoldsPaused)
}

// kept reports whether the log has to keep a message because a group is owed it, or has it in hand
// in order of key. living leaves dead groups out.
func (m *model) kept(r *record, living bool) bool {
	for _, g := range m.groups {
		_, in := g.leases[r.position]
		owed := r.owed[g] && !r.acked[g]
		if g.holds() && (owed || in && g.config.KeyOrder) || owed && g.state == Dead && !living {
			return true
		}
	}
	return false
}

// trimLimit looks for the first message that may not go. living leaves out what dead groups are owed.
func (m *model) trimLimit(c Cutoffs, living bool) int64 {
	limit, pinned := m.start, m.pinned()
	for _, r := range m.records {
		cutoff := c.Complete
		if len(r.required) == 0 && !r.settled {
			cutoff = c.Unrequired
		}
		if r.position >= pinned || r.position >= cutoff || m.kept(r, living) {
			break
		}
		limit = r.position + 1
	}
	return max(limit, min(c.Forced, m.end))
}

// compareLedger says how what a group is owed and its ledger differ. Every message that was ever due
// to a group is acknowledged, still due, or in the ledger once.
func (m *model) compareLedger(g *modelGroup) string {
	want := g.gone
	for _, r := range m.records {
		o := r.position
		c, lost := r.lost[g]
		if lost {
			want[c]++
		}
		if got, want := g.real.owed.Contains(o) && !r.acked[g], r.owed[g] && !r.acked[g]; got != want {
			return fmt.Sprintf("%s is owed %d: %v, should be %v", g.config.Name, o, got, want)
		}
		in := 0
		for cause := range g.real.released.of {
			if g.real.released.of[cause].Contains(o) && !g.real.acked.Contains(o) {
				in++
			}
		}
		due := (g.real.required.Contains(o) || g.real.owed.Contains(o)) && !g.real.acked.Contains(o)
		if r.ever[g] && g.state != Cancelled && !g.real.acked.Contains(o) && (in == 1) == due {
			return fmt.Sprintf("%s was due %d, which is due: %v, and was released %d times", g.config.Name, o, due, in)
		}
		if lost != (in == 1) {
			return fmt.Sprintf("%s: %d was released %d times, should be: %v", g.config.Name, o, in, lost)
		}
	}
	if got := g.real.Ledger(); got != want {
		return fmt.Sprintf("%s: %v were released, should be %v", g.config.Name, got, want)
	}
	return ""
}

// letGo ends what a dead group is owed.
func (w *world) letGo() {
	g := w.group()
	if g == nil {
		return
	}
	before, cause := min(g.p0(w), w.m.end), ByBound
	if w.one(2) {
		before, cause = NoEnd, ByDeath
	}
	some := g.real.Owes()
	n, want := g.real.LetGo(before, cause), int64(0)
	w.log("let go %s before %d: %d", g.config.Name, before, n)
	if g.state == Dead {
		want = w.m.lose(g, before, cause)
		if some {
			w.m.drop(g, before)
		}
		g.owes = g.owes && before != NoEnd
	}
	if n != want {
		w.fail("%s: %d let go, should be %d", g.config.Name, n, want)
	}
	w.after("let go", g, nil)
	w.crashOrSave(g)
}

var ledgerBugs = []bug{
	{name: "a dead group is owed nothing", after: "die", finds: "is owed",
		do: func(_ *world, g *modelGroup, _ *modelMember) { g.real.owed.Clear() }},
	{name: "a dead group is not owed what is published", after: "die", finds: "is owed",
		do: func(w *world, g *modelGroup, _ *modelMember) { g.real.owed.Remove(w.m.end, NoEnd) }},
	{name: "the log is not kept for what came back and is complete", after: "resurrect", finds: "",
		do: func(_ *world, g *modelGroup, _ *modelMember) { g.real.owed.Clear() }},
	{name: "what comes back stays released", after: "resurrect", finds: "released",
		do: func(_ *world, g *modelGroup, _ *modelMember) {
			g.real.released.of[ByDeath].Union(&g.real.owed)
		}},
	{name: "what a bound leaves out is not released", after: "resurrect", finds: "released",
		do: func(_ *world, g *modelGroup, _ *modelMember) { g.real.released.of[ByBound].Clear() }},
	{name: "what is skipped is not released", after: "skip", finds: "released",
		do: func(_ *world, g *modelGroup, _ *modelMember) { g.real.released.of[ByZombie].Clear() }},
	{name: "what a seek passes is not released", after: "seek", finds: "released",
		do: func(_ *world, g *modelGroup, _ *modelMember) { g.real.released.of[BySeek].Clear() }},
	{name: "what is let go is released twice", after: "let go", finds: "released",
		do: func(_ *world, g *modelGroup, _ *modelMember) {
			g.real.released.of[BySeek].Union(&g.real.released.of[ByDeath])
		}},
	{name: "what a group is let go of is still kept", after: "let go", finds: "",
		do: func(_ *world, g *modelGroup, _ *modelMember) {
			g.real.owed.Union(&g.real.released.of[ByDeath])
		}},
	{name: "a trim forgets what was released", before: "trim", finds: "released",
		do: func(w *world, _ *modelGroup, _ *modelMember) {
			for _, g := range w.p.groups {
				g.released = released{}
			}
		}},
	{name: "a cancelled backfill keeps what was released", after: "end backfill", finds: "released",
		do: func(_ *world, g *modelGroup, _ *modelMember) { g.real.released.of[BySeek].Clear() }},
	{name: "a cursor forgets what was released", after: "save", finds: "released",
		do: func(_ *world, g *modelGroup, _ *modelMember) {
			resave(g, func(c *GroupState) { c.released = released{} })
		}},
	{name: "a cursor forgets what is owed", after: "save", finds: "owed",
		do: func(_ *world, g *modelGroup, _ *modelMember) {
			resave(g, func(c *GroupState) { c.owed = Set{} })
		}},
	{name: "the log is trimmed whatever a dead group is owed", finds: "may be trimmed",
		limit: func(w *world, c Cutoffs, _ int64) int64 { return w.p.TrimLimitOfLiving(c) }},
	{name: "the log is trimmed while a message of a key is in hand", finds: "may be trimmed",
		limit: func(w *world, c Cutoffs, _ int64) int64 {
			var ordered []*GroupState
			for _, g := range w.p.groups {
				if g.config.KeyOrder {
					ordered = append(ordered, g)
					g.config.KeyOrder = false
				}
			}
			limit := w.p.TrimLimit(c)
			for _, g := range ordered {
				g.config.KeyOrder = true
			}
			return limit
		}},
}
