package machine

import (
	"slices"
)

// reads reports whether a message is for a group, now or caught up.
func (r *record) reads(g *modelGroup) bool { return r.readable[g] || r.history[g] }

// catches reports whether a group has something to catch up.
func (m *model) catches(g *modelGroup) bool {
	return slices.ContainsFunc(m.records, func(r *record) bool { return r.history[g] && !r.acked[g] })
}

// leave makes what a group catches up like the rest.
func (m *model) leave(g *modelGroup) {
	for _, r := range m.records {
		if r.history[g] {
			delete(r.history, g)
			r.readable[g] = true
		}
	}
}

// wanted is what a backfill has that begins now.
func (m *model) wanted(g *modelGroup, b Backfill) (list []*record) {
	for _, r := range m.records {
		tried := g.leases[r.position].member != nil || g.tried(r)
		held := r.acked[g] || r.required[g] || r.history[g]
		if r.position >= b.From && !tried && !held && (b.All || !r.complete()) {
			list = append(list, r)
		}
	}
	if n := int64(len(list)); b.Limit >= 0 && n > b.Limit {
		list = list[n-b.Limit:]
	}
	return list
}

// backfill begins, allows, ends or finishes a backfill.
func (w *world) backfill() {
	g := w.group()
	if g == nil {
		return
	}
	live := g.state == Active || g.state == Paused
	switch n := w.rng.IntN(8); {
	case n < 4:
		w.beginBackfill(g, live)
	case n < 6:
		if live {
			g.real.Allow(w.rng.Int64N(30))
		}
	case n < 7:
		w.log("end the backfill of %s", g.config.Name)
		g.real.EndBackfill()
		for _, r := range w.m.records {
			tried := g.leases[r.position].member != nil || g.tried(r)
			if r.history[g] && !r.acked[g] && !tried {
				delete(r.history, g)
				delete(r.required, g)
				if r.owed[g] {
					r.lost[g] = BySeek
				} else {
					delete(r.ever, g)
				}
				delete(r.owed, g)
			}
		}
		w.after("end backfill", g, nil)
		w.crashOrSave(g)
	default:
		over := !w.m.catches(g)
		if done := g.real.FinishBackfill(); done != over {
			w.fail("%s: the backfill is finished: %v, should be %v", g.config.Name, done, over)
		}
		if over {
			w.m.leave(g)
		}
	}
}

func (w *world) beginBackfill(g *modelGroup, live bool) {
	b := Backfill{Number: 1 + w.rng.Int64N(5), From: g.p0(w), All: w.one(2), Limit: -1}
	if w.one(3) {
		b.Limit = w.rng.Int64N(12)
	}
	list := w.m.wanted(g, b)
	if b.Limit < 0 {
		if n := g.real.Wanted(b.From, b.All); n != int64(len(list)) {
			w.fail("%s: a backfill of %d, should be %d", g.config.Name, n, len(list))
		}
	}
	w.log("backfill %+v of %s: %d", b, g.config.Name, len(list))
	n, err := g.real.BeginBackfill(b)
	if !live {
		w.expect("backfill", err, ErrState)
		return
	}
	w.expect("backfill", err, nil)
	if n != int64(len(list)) {
		w.fail("%s: a backfill of %d, should be %d", g.config.Name, n, len(list))
	}
	complete := map[*record]bool{}
	for _, r := range list {
		complete[r] = r.complete()
	}
	for _, r := range list {
		delete(r.readable, g)
		r.history[g] = true
		r.regain(g)
		if !complete[r] {
			r.required[g], r.ever[g] = true, true
		}
	}
	if w.after("backfill", g, nil); w.one(2) {
		g.real.Allow(w.rng.Int64N(30))
	}
	w.crashOrSave(g)
}

// crashOrSave ends the process before a cursor is written, or after it.
func (w *world) crashOrSave(g *modelGroup) {
	if w.one(6) {
		w.crash()
		return
	}
	w.saveState()
	w.m.save(g)
	w.after("save", g, nil)
}

// mayCatchUp reports whether a message of a backfill has nothing before it but itself.
func (w *world) mayCatchUp(g *modelGroup, r *record) bool {
	simple := g.kind == "" && !g.config.Hash && !g.config.KeyOrder && g.config.Exhausted != ParkKey
	idle := len(g.leases) == 0 && !slices.ContainsFunc(g.members, func(m *modelMember) bool {
		messages, bytes := m.real.budget.Left()
		return m.kind != "" || messages < 2 || bytes < 200
	})
	return simple && idle && g.real.history.Allowed > 0 && g.real.open < mayBeOpen
}

// catching holds a call of Next to the rules of a backfill.
type catching struct {
	w       *world
	g       *modelGroup
	allowed int64
	late    int64 // delivered of the backfill
	last    bool  // the last one was
	free    bool  // what waited for others may come between, and was counted before
}

func (w *world) catching(g *modelGroup) *catching {
	free := g.config.KeyOrder || g.config.Exhausted == ParkKey || g.config.Hash || g.real.history.Over ||
		slices.ContainsFunc(g.members, func(m *modelMember) bool { return m.kind != "" })
	return &catching{w: w, g: g, allowed: g.real.history.Allowed, free: free}
}

// delivered is called with each message that is delivered.
func (c *catching) delivered(position int64) {
	r := c.w.m.at(position)
	if r.postponed && r.history[c.g] { // it goes with the others when it is due
		return
	}
	late := r.history[c.g] && !c.g.tried(r)
	if late {
		c.late++
	} else if c.last && r.readable[c.g] && !c.free {
		c.w.fail("%s: %d is handed out after what is caught up", c.g.config.Name, position)
	}
	c.last = late
}

// stopped is called at the end of each call.
func (c *catching) stopped() { c.last = false }

// check is called at the end.
func (c *catching) check() {
	h := &c.g.real.history
	if !c.free && c.late > c.allowed-h.Allowed {
		c.w.fail("%s: %d are caught up, %d were allowed", c.g.config.Name, c.late, c.allowed-h.Allowed)
	}
}

var backfillBugs = []bug{
	{name: "a backfill holds what is complete", after: "backfill", finds: "is required for",
		do: func(_ *world, g *modelGroup, _ *modelMember) { g.real.required.Union(&g.real.history.Set) }},
	{name: "a backfill does not hold what it has", after: "backfill", finds: "is required for",
		do: func(_ *world, g *modelGroup, _ *modelMember) { g.real.required.Subtract(&g.real.history.Set) }},
	{name: "a backfill makes complete messages pending", after: "backfill", finds: "is complete",
		do: func(w *world, _ *modelGroup, _ *modelMember) { w.p.settled.Clear() }},
	{name: "a backfill delivers what the group has done", after: "backfill", finds: "",
		do: func(w *world, g *modelGroup, _ *modelMember) {
			done := w.all()
			done.Intersect(&g.real.acked)
			g.real.history.Ready.Union(&done)
		}},
	{name: "a backfill begins at the start whatever was done", after: "backfill", finds: "has acknowledged",
		do: func(_ *world, g *modelGroup, _ *modelMember) { g.real.acked.Clear() }},
	{name: "what is published waits behind a backfill", after: "backfill", finds: "",
		do: func(_ *world, g *modelGroup, _ *modelMember) {
			g.real.ready.Union(&g.real.history.Ready)
			g.real.history.Ready.Clear()
		}},
	{name: "what a backfill hands out is not counted", before: "next", after: "next", finds: "were allowed",
		do: func(_ *world, g *modelGroup, _ *modelMember) {
			if g.real.history.Number != 0 {
				g.real.history.Allowed = 1000
			}
		}},
	{name: "the watermark goes back for a backfill", after: "backfill", finds: "watermark",
		do: func(w *world, _ *modelGroup, _ *modelMember) { w.p.watermark = 0 }},
	{name: "a cancelled backfill still holds", after: "end backfill", finds: "is required for",
		do: func(w *world, g *modelGroup, _ *modelMember) {
			all := w.all()
			g.real.required.Union(&all)
		}},
	{name: "a cancelled backfill takes what members have", after: "end backfill", finds: "",
		do: func(_ *world, g *modelGroup, _ *modelMember) {
			g.real.endLeases(NoEnd)
		}},
	{name: "a cursor forgets the backfill", after: "save", finds: "",
		do: func(_ *world, g *modelGroup, _ *modelMember) {
			resave(g, func(c *GroupState) { c.history = catchUp{} })
		}},
}
