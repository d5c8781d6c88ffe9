package machine

// The bound of what all members of a group have together, message by message: see quota.go.

// bound is the quota of a group of the model.
type bound struct {
	limit   int
	real    *Quota
	stopped bool // messages were held back because members had as many as they may
	freed   bool // the machine has said since then that there is room
}

func newBound(limit int) *bound {
	b := &bound{limit: limit}
	b.real = NewQuota(int64(limit), func() { b.freed = true })
	return b
}

// anyBound is a bound that is reached soon, or none.
func (w *world) anyBound() int {
	if w.one(3) {
		return 1 + w.rng.IntN(5)
	}
	return 0
}

// outstanding counts what the members of a group have, in other partitions as well.
func (g *modelGroup) outstanding() int {
	n := len(g.leases)
	for _, m := range g.members {
		n += m.elsewhere
	}
	return n
}

func (g *modelGroup) full() bool { return g.bound.limit > 0 && g.outstanding() >= g.bound.limit }

// held notes whether a group was stopped by its bound.
func (b *bound) held() {
	if b.real.Full() {
		b.stopped, b.freed = true, false
	}
}

// compareBound says how the quota differs from what members have, and whether room is reported.
func (w *world) compareBound() {
	for _, g := range w.m.groups {
		b := g.bound
		if b.limit > 0 && b.real.away != int64(g.outstanding()) {
			w.fail("%s: the quota counts %d in hand, should be %d", g.config.Name, b.real.away, g.outstanding())
		}
		if b.stopped && !g.full() {
			if !b.freed {
				w.fail("%s: there is room again, and nothing says so", g.config.Name)
			}
			b.stopped = false
		}
	}
}

var quotaBugs = []bug{
	{name: "each member has a bound of its own", before: "next", finds: "",
		do: func(_ *world, g *modelGroup, _ *modelMember) {
			for _, m := range g.real.members {
				m.budget.quota = NewQuota(int64(g.bound.limit), func() {})
			}
		}},
	{name: "the bound does not count", before: "next", finds: "may be in hand",
		do: func(_ *world, g *modelGroup, _ *modelMember) {
			g.bound.real.mu.Lock()
			defer g.bound.real.mu.Unlock()
			g.bound.real.limit = 0
		}},
	{name: "what is acknowledged stays in hand", after: "ack", finds: "in hand",
		do: func(_ *world, g *modelGroup, _ *modelMember) { g.bound.real.away = max(g.bound.real.away, 1) }},
	{name: "what a member loses is freed twice", after: "end", finds: "in hand",
		do: func(_ *world, g *modelGroup, _ *modelMember) { g.bound.real.away-- }},
	{name: "nobody learns that there is room", before: "next", finds: "nothing says so",
		do: func(_ *world, g *modelGroup, _ *modelMember) { g.bound.real.freed = func() {} }},
}
