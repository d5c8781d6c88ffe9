package machine

import (
	"slices"
)

// The rule of suspects, message by message: see suspects.go. A member of the model may have messages
// elsewhere, which are those that its session has in other partitions.

// held counts what a member has in this partition.
func (m *modelMember) held() (n int) {
	for _, l := range m.g.leases {
		if l.member == m {
			n++
		}
	}
	return n
}

// isolated reports whether a member has a suspect.
func (m *modelMember) isolated() bool {
	for p, l := range m.g.leases {
		if l.member == m && m.g.suspects[p] {
			return true
		}
	}
	return false
}

// able reports whether a member that takes a message could get it now.
func (m *modelMember) able(r *record) bool {
	if m.g.full() {
		return false
	}
	messages, bytes := m.real.budget.Left()
	if m.g.suspects[r.position] {
		return messages > 0 && m.held()+m.elsewhere == 0
	}
	return messages > 0 && bytes > 100 && !m.isolated() && m.g.real.draining.member != m.real
}

// lend says that a member has a message, until a time as the machine counts it. What follows in the
// order of positions and of deliveries has the order of what it follows, if both end together.
func (g *modelGroup) lend(p int64, l loan) {
	if left := g.leases[p-1]; left.member == l.member && left.deadline == l.deadline && left.order <= l.order {
		l.order = left.order
	}
	g.leases[p] = l
}

// ended says that a member has lost positions by an abnormal end.
func (w *world) ended(m *modelMember, lost []int64) {
	if len(lost) == 0 {
		return
	}
	g := m.g
	certain := m.held()+m.elsewhere == 1
	first := slices.MinFunc(lost, func(a, b int64) int {
		if d := g.leases[a].order - g.leases[b].order; d != 0 {
			return d
		}
		return int(a - b)
	})
	charged := g.leases[first].order > m.guessed && (certain || g.fails[first].attempts+1 < g.config.MaxAttempts)
	m.guessed = m.order
	for _, p := range lost {
		delete(g.leases, p)
		g.suspects[p] = true
	}
	if charged {
		w.m.failed(g, first, 0, w.now)
	}
}

// own lists what a member has.
func (m *modelMember) own() (list []int64) {
	for p, l := range m.g.leases {
		if l.member == m {
			list = append(list, p)
		}
	}
	slices.Sort(list)
	return list
}

func (w *world) detach() {
	m := w.member()
	if m == nil {
		return
	}
	failed := w.one(2)
	w.log("detach %s of %s, failed %v", m.name, m.g.config.Name, failed)
	if failed { // what was not sent is no attempt
		unsent, list := w.some(m)
		m.real.Return(unsent)
		for _, p := range list {
			if m.g.leases[p].member == m {
				delete(m.g.leases, p)
			}
		}
	}
	m.real.Detach(failed, w.now)
	if failed {
		w.ended(m, m.own())
		w.after("end", m.g, m)
	}
	for _, p := range m.own() {
		delete(m.g.leases, p)
	}
	m.g.members = slices.DeleteFunc(m.g.members, func(o *modelMember) bool { return o == m })
	if m.elsewhere > 0 { // the session ends in all partitions
		m.real.budget.Back(int64(m.elsewhere), 0)
	}
}

// elsewhere gives a member a message in another partition, or takes all of them back.
func (w *world) elsewhere() {
	m := w.member()
	if m == nil || len(w.batches) == 0 {
		return
	}
	batch := w.batches[0]
	if m.elsewhere > 0 && w.one(2) {
		w.log("%s of %s has nothing elsewhere", m.name, m.g.config.Name)
		m.real.budget.Back(int64(m.elsewhere), int64(m.elsewhere*batch.Size(0, 1)))
		m.elsewhere = 0
		return
	}
	n := m.real.budget.Take(batch, 0, 1, false)
	w.log("%s of %s gets %d elsewhere", m.name, m.g.config.Name, n)
	if n > 0 && m.g.full() {
		w.fail("%s: %s gets more elsewhere than may be in hand", m.g.config.Name, m.name)
	}
	if n > 0 && m.isolated() {
		w.fail("%s: %s gets other messages beside a suspect", m.g.config.Name, m.name)
	}
	m.elsewhere += n
}

// alone checks a message that is delivered to a member.
func (w *world) alone(m *modelMember, p int64) {
	switch {
	case m.g.suspects[p] && m.held()+m.elsewhere > 0:
		w.fail("%s: %s gets the suspect %d beside other messages", m.g.config.Name, m.name, p)
	case m.isolated():
		w.fail("%s: %s gets %d beside a suspect", m.g.config.Name, m.name, p)
	}
}

// suspectsLeft checks that a suspect waits only while no member that takes it has nothing, and that a
// member gets nothing for a suspect only.
func (w *world) suspectsLeft(g *modelGroup) {
	if d := g.real.draining.member; d != nil {
		if at, ok := d.alone.First(); !ok || !g.suspects[at] || g.leases[at].member != nil {
			w.fail("%s: %s gets nothing, and no suspect waits", g.config.Name, d.name)
		}
	}
	if g.state != Active {
		return
	}
	waiting := false
	for p := range g.suspects {
		r, f := w.m.at(p), g.fails[p]
		if !r.reads(g) || r.acked[g] || g.leases[p].member != nil || f.dueAll.After(w.now) ||
			f.attempts >= g.config.MaxAttempts || w.blocked(g, r) {
			continue
		}
		takers := g.takers(r)
		if g.config.Hash && len(takers) > 0 {
			takers = takers[javaHash1(r, p)%len(takers):][:1]
		}
		for _, m := range takers {
			waiting = true
			if m.able(r) && g.real.draining.member != m.real && m.real.budget.drained == 0 {
				w.fail("%s: the suspect %d is left behind, %s has nothing", g.config.Name, p, m.name)
			}
		}
	}
	// What stops Next before it comes to a suspect is a message that no member can have yet.
	if first, some := g.real.ready.First(); waiting && (!some || first >= w.m.end) && g.real.draining.member == nil {
		w.fail("%s: suspects wait, and all members get other messages", g.config.Name)
	}
}

// hide makes budgets forget what their sessions have elsewhere, until it is called again.
func (w *world) hide(g *modelGroup) {
	for _, m := range g.members {
		if m.hidden > 0 {
			m.real.budget.away += m.hidden
			m.hidden = 0
		} else if m.real.budget.away >= int64(m.elsewhere) {
			m.hidden = int64(m.elsewhere)
			m.real.budget.away -= m.hidden
		}
	}
}

var suspectBugs = []bug{
	{name: "an abnormal end charges all", after: "end", finds: "attempts of",
		do: func(_ *world, g *modelGroup, _ *modelMember) {
			for p := range g.suspects {
				f := g.real.fails.Get(p)
				g.real.fails.Put(p, Failure{Attempts: f.Attempts + 1, Due: f.Due})
			}
		}},
	{name: "an abnormal end charges nothing", after: "end", finds: "attempts of",
		do: func(_ *world, g *modelGroup, _ *modelMember) {
			for p := range g.suspects {
				g.real.fails.Remove(p)
			}
		}},
	{name: "a guess takes the last attempt", after: "end", finds: "attempts of",
		do: func(_ *world, g *modelGroup, _ *modelMember) {
			for p := range g.suspects {
				if f := g.real.fails.Get(p); f.Attempts+1 == g.config.MaxAttempts && g.config.MaxAttempts > 1 {
					g.real.fails.Put(p, Failure{Attempts: f.Attempts + 1, Due: f.Due})
				}
			}
		}},
	{name: "a guess is made again for the same messages", before: "expire", finds: "attempts of",
		do: func(_ *world, g *modelGroup, _ *modelMember) {
			for _, m := range g.members {
				m.real.budget.guessed = 0
			}
		}},
	{name: "a suspect is alone in its partition only", before: "next", after: "next", finds: "beside other messages",
		do: func(w *world, g *modelGroup, _ *modelMember) { w.hide(g) }},
	{name: "a member with a suspect gets other messages", before: "next", finds: "beside a suspect",
		do: func(_ *world, g *modelGroup, _ *modelMember) {
			for _, m := range g.members {
				m.real.budget.alone = false
			}
		}},
	{name: "suspects go with the others", before: "next", finds: "",
		do: func(_ *world, g *modelGroup, _ *modelMember) { g.real.suspects.Clear() }},
	{name: "all members are always busy", after: "next", finds: "all members get other messages",
		do: func(_ *world, g *modelGroup, _ *modelMember) { g.real.stopDraining() }},
	{name: "a suspect waits for a member that has left", after: "next", finds: "",
		do: func(_ *world, g *modelGroup, _ *modelMember) {
			for _, m := range g.real.members {
				m.alone.Clear()
			}
		}},
	{name: "what was returned stays suspect", after: "nack", finds: "is suspect",
		do: func(_ *world, g *modelGroup, _ *modelMember) {
			for p := range g.real.fails.All() {
				g.real.suspects.Add(p, p+1)
			}
		}},
	{name: "a member gets nothing for good", after: "next", finds: "no suspect waits",
		do: func(_ *world, g *modelGroup, _ *modelMember) {
			if g.real.draining.member == nil && len(g.real.members) > 0 {
				g.real.draining.member = g.real.members[0]
				g.real.members[0].budget.Drain(1)
			}
		}},
}
