package machine

import (
	"fmt"
	"slices"
	"time"
)

func (w *world) group() *modelGroup {
	if len(w.m.groups) == 0 {
		return nil
	}
	return pick(w, w.m.groups)
}

func (w *world) member() *modelMember {
	g := w.group()
	if g == nil || len(g.members) == 0 {
		return nil
	}
	return pick(w, g.members)
}

func (w *world) attach() {
	g := w.group()
	if g == nil || len(g.members) > 3 {
		return
	}
	m := &modelMember{g: g, name: fmt.Sprintf("m%d", w.rng.IntN(1000)), lost: map[int64]bool{}}
	if w.one(4) {
		m.kind = pick(w, []string{"x", "y"})
	}
	exists := slices.ContainsFunc(g.members, func(o *modelMember) bool { return o.name == m.name })
	w.log("attach %s to %s, for %q", m.name, g.config.Name, m.kind)
	credits := NewBudget(int64(w.rng.IntN(20)), int64(50+w.rng.IntN(2000)), w.one(2)).Within(g.bound.real)
	real, err := g.real.Attach(m.name, kindFilter(m.kind), credits)
	if exists {
		w.expect("attach", err, ErrMemberExists)
		return
	}
	w.expect("attach", err, nil)
	m.real = real
	g.members = append(g.members, m)
}

// next delivers messages and holds each piece to the rules.
func (w *world) next() {
	g := w.group()
	if g == nil {
		return
	}
	w.p.Elapsed(w.now.UnixNano())
	w.before("next", g, nil)
	parked := g.real.Parked(nil)
	limit := 1 + w.rng.IntN(12)
	var wait Wait
	caught := w.catching(g)
	for range 20 {
		var pieces []Piece
		pieces, wait = g.real.Next(w.now, limit, nil)
		w.log("next %s: %d pieces, %+v", g.config.Name, len(pieces), wait)
		if w.passed(g); w.failed != "" {
			return
		}
		for _, p := range pieces {
			limit -= p.To - p.From
			for i := p.From; i < p.To; i++ {
				caught.delivered(p.Batch.Base + int64(i))
				w.delivered(g, p, i, parked)
			}
		}
		caught.stopped()
		if limit < 0 {
			w.fail("more than the limit")
		}
		if wait.Reason != Fetch || w.failed != "" {
			break
		}
		clear(w.absent)
	}
	w.after("next", g, nil)
	g.bound.held()
	caught.check()
	if w.failed == "" {
		w.leftBehind(g, wait.Reason)
	}
}

// delivered checks a message that was delivered.
func (w *world) delivered(g *modelGroup, piece Piece, i int, parked []Parked) {
	o := piece.Batch.Base + int64(i)
	r := w.m.at(o)
	var m *modelMember
	for _, other := range g.members {
		if other.real == piece.Member {
			m = other
		}
	}
	takers := g.takers(r)
	f := g.fails[o]
	switch {
	case m == nil:
		w.fail("%s: %d goes to one who is no member", g.config.Name, o)
		return
	case g.state != Active:
		w.fail("%s: %d is handed out in state %d", g.config.Name, o, g.state)
	case r.void || piece.Batch.Key(i) != r.key:
		w.fail("%s: %d is another message", g.config.Name, o)
	case !r.reads(g) || r.acked[g]:
		w.fail("%s: %d is not for it, or done", g.config.Name, o)
	case g.leases[o].member != nil:
		w.fail("%s: %d has two owners", g.config.Name, o)
	case piece.Attempt != f.attempts+1 || piece.Attempt > g.config.MaxAttempts:
		w.fail("%s: %d is handed out for the %dth time after %d", g.config.Name, o, piece.Attempt, f.attempts)
	case f.dueFrom.After(w.now) || w.undue(r):
		w.fail("%s: %d is handed out before it is due", g.config.Name, o)
	case g.dying[o]:
		w.fail("%s: %d is a dead letter", g.config.Name, o)
	case w.m.open(g, o) > mayBeOpen+2: // what all others wait behind comes in any case, of a backfill, too
		w.fail("%s: %d is handed out, and more are open than may be", g.config.Name, o)
	case w.over(r):
		w.fail("%s: %d is handed out after its time", g.config.Name, o)
	case g.full():
		w.fail("%s: %d is handed out, and more than may be in hand", g.config.Name, o)
	case !slices.Contains(takers, m):
		w.fail("%s: %d does not pass the filters of %s", g.config.Name, o, m.name)
	}
	if g.config.Hash && w.failed == "" && takers[javaHash1(r, o)%len(takers)] != m {
		w.fail("%s: the hash of %d chooses another than %s", g.config.Name, o, m.name)
	}
	w.keyOrder(g, r, parked)
	w.alone(m, o)
	m.order++
	g.lend(o, w.loan(m, m.order))
}

// loan is a lease that begins now.
func (w *world) loan(m *modelMember, order int) loan {
	c := &m.g.config
	return loan{
		member: m, end: w.now.Add(c.Lease), surely: w.now.Add(c.Lease + c.Lease/leaseSteps + 1), order: order,
		deadline: m.g.real.leaseEnd(w.now.UnixNano()),
	}
}

// javaHash1 is what Java makes of a key of one dead letter, or of the id of a message.
func javaHash1(r *record, o int64) int {
	if r.key != "" {
		return int(r.key[0])
	}
	h := int32(0)
	for _, c := range fmt.Sprintf("3-%d", o) {
		h = h*31 + c
	}
	return int(h & 0x7fffffff)
}

// keyOrder checks that nothing holds up the key of a message.
func (w *world) keyOrder(g *modelGroup, r *record, parked []Parked) {
	if r.key == "" {
		return
	}
	if g.config.KeyOrder {
		for _, other := range w.m.records {
			// What is caught up has an order of its own.
			before := other.position < r.position && !other.postponed && len(g.takers(other)) > 0 &&
				other.history[g] == r.history[g] && (!r.history[g] || !g.tried(r))
			if other != r && other.key == r.key && other.reads(g) && !other.acked[g] &&
				(before || g.leases[other.position].member != nil) {
				w.fail("%s: %d goes before %d of the same key", g.config.Name, r.position, other.position)
			}
		}
	}
	for _, p := range parked {
		simple := g.kind == "" && !g.config.Hash && !slices.ContainsFunc(g.members, func(m *modelMember) bool {
			return m.kind != ""
		})
		if p.Key == r.key && p.Position < r.position && simple {
			w.fail("%s: %d goes although %d of its key is parked", g.config.Name, r.position, p.Position)
		}
	}
}

// passed takes over what Next has acknowledged by itself, if that was right.
func (w *world) passed(g *modelGroup) {
	for _, r := range w.m.records {
		if r.acked[g] || !g.real.acked.Contains(r.position) {
			continue
		}
		if w.over(r) && r.reads(g) && g.leases[r.position].member == nil && !g.dying[r.position] {
			w.expired(g, r)
			continue
		}
		if g.config.Exhausted == Discard && g.fails[r.position].attempts >= g.config.MaxAttempts {
			w.m.acknowledge(g, r.position)
			continue
		}
		filtered := len(g.members) > 0 && len(g.takers(r)) == 0
		if !r.reads(g) || g.leases[r.position].member != nil || (!r.void && !filtered) {
			w.fail("%s: %d is acknowledged by itself", g.config.Name, r.position)
			return
		}
		w.m.acknowledge(g, r.position)
	}
	for p, f := range g.fails { // after a change of the settings they die again
		if f.attempts >= g.config.MaxAttempts && g.config.Exhausted == DeadLetter && !g.dying[p] &&
			g.real.fails.Dying.Contains(p) {
			g.dying[p], g.deadLetters[p] = true, true
		}
	}
}

// leftBehind checks that nothing was kept back without a reason.
func (w *world) leftBehind(g *modelGroup, why Reason) {
	credits := slices.ContainsFunc(g.members, func(m *modelMember) bool { return m.real.budget.Has() })
	if why == Idle || why == Credits {
		w.suspectsLeft(g)
	}
	if why == Idle {
		w.overLeft(g)
	}
	switch why {
	case Limit:
		return
	case Credits:
		if credits && g.kind == "" && !g.config.KeyOrder && !w.m.catches(g) && !g.real.anyAside() {
			for _, m := range g.members { // not even for a small message
				if messages, bytes := m.real.budget.Left(); messages > 0 && bytes > 100 && m.real.budget.Has() {
					w.fail("%s: %s has credits", g.config.Name, m.name)
				}
			}
		}
		return
	case Full:
		if n := w.m.unacked(g); g.state == Active && len(g.members) > 0 && n < mayBeOpen {
			w.fail("%s: no more than %d can be open", g.config.Name, n)
		}
		return
	}
	if g.state != Active || len(g.members) == 0 {
		return
	}
	for _, r := range w.m.records {
		f := g.fails[r.position]
		spent := f.attempts >= g.config.MaxAttempts
		if spent && r.reads(g) && !r.acked[g] && !w.blocked(g, r) {
			parked := slices.ContainsFunc(g.real.Parked(nil), func(p Parked) bool { return p.Position == r.position })
			if parked != (g.config.Exhausted == ParkKey) || g.dying[r.position] != (g.config.Exhausted == DeadLetter) {
				w.fail("%s: %d is spent: parked %v, dying %v", g.config.Name, r.position, parked, g.dying[r.position])
			}
		}
		if w.over(r) {
			continue // see overLeft
		}
		waits := g.leases[r.position].member != nil || f.dueAll.After(w.now) || r.dueAll.After(w.now) || spent
		late := r.history[g] && !g.tried(r)
		if !r.reads(g) || r.acked[g] || waits || w.blocked(g, r) || late && !w.mayCatchUp(g, r) {
			continue
		}
		able := slices.ContainsFunc(g.takers(r), func(m *modelMember) bool { return m.able(r) })
		if g.config.Hash && len(g.takers(r)) > 0 {
			able = g.takers(r)[javaHash1(r, r.position)%len(g.takers(r))].able(r)
		}
		if able || len(g.takers(r)) == 0 {
			w.fail("%s: %d is left behind", g.config.Name, r.position)
			return
		}
	}
}

// blocked reports whether another message may hold up a key: an earlier one, one that is under way,
// in order of keys also one that has failed and is tried again, or one that is parked.
func (w *world) blocked(g *modelGroup, r *record) bool {
	if r.key == "" || (!g.config.KeyOrder && g.config.Exhausted != ParkKey) {
		return false
	}
	for _, other := range w.m.records {
		if other != r && other.key == r.key && other.reads(g) && !other.acked[g] && !w.undue(other) &&
			(other.position < r.position || g.leases[other.position].member != nil ||
				g.config.KeyOrder && g.fails[other.position].attempts > 0 ||
				g.fails[other.position].attempts >= g.config.MaxAttempts) {
			return true
		}
	}
	return false
}

// some returns positions as a member might name them: those that it has, in order or
// not, had, or never had.
func (w *world) some(m *modelMember) (Positions, []int64) {
	own := []int64{}
	for p, l := range m.g.leases {
		if l.member == m {
			own = append(own, p)
		}
	}
	slices.Sort(own)
	base := m.g.p0(w)
	if len(own) > 0 && !w.one(4) {
		base = own[0]
		if w.one(3) {
			base = pick(w, own)
		}
	}
	if w.one(2) {
		s := Positions{Base: base, Count: 1 + w.rng.Int64N(8)}
		list := []int64{}
		for p := s.Base; p < s.Base+s.Count; p++ {
			list = append(list, p)
		}
		return s, list
	}
	s, list := Positions{Base: base, Bitmap: []byte{0, 0}}, []int64{}
	for i := range int64(16) {
		if w.one(2) {
			s.Bitmap[i/8] |= 1 << (i % 8)
			list = append(list, base+i)
		}
	}
	return s, list
}

func (g *modelGroup) p0(w *world) int64 {
	return max(0, w.m.start-2+w.rng.Int64N(w.m.end-w.m.start+4))
}

// outcome is what is to become of a position that a member names.
func (w *world) outcome(m *modelMember, p int64) Outcome {
	g := m.g
	switch {
	case g.state != Active:
		return NotActive
	case p < w.m.start:
		return OK
	case p < w.m.end && g.leases[p].member == m:
		return OK
	case p < w.m.end && w.m.at(p).acked[g]:
		return OK
	case m.lost[p]:
		return LeaseLost
	}
	return NotDelivered
}

// settle acknowledges, requeues or extends.
func (w *world) settle() {
	m := w.member()
	if m == nil {
		return
	}
	g := m.g
	s, list := w.some(m)
	want := map[int64]Outcome{}
	var own []int64
	for _, p := range list {
		want[p] = w.outcome(m, p)
		if g.state == Active && g.leases[p].member == m {
			own = append(own, p)
		}
	}
	what := pick(w, []string{"ack", "ack", "ack", "ack", "nack", "extend"})
	w.log("%s by %s of %s: %v, its own are %v", what, m.name, g.config.Name, list, own)
	w.before(what, g, m)
	var refused []Refusal
	switch what {
	case "ack":
		var n int64
		if n, refused = m.real.Ack(s, nil); n != int64(len(own)) {
			w.fail("ack by %s of %s: %d new, should be %d", m.name, g.config.Name, n, len(own))
		}
		for _, p := range own {
			delete(g.leases, p)
			w.m.acknowledge(g, p)
		}
	case "nack":
		delay := pick(w, []time.Duration{-1, 0, 5 * time.Second, time.Minute})
		refused = m.real.Nack(s, delay, "no", w.now, nil)
		for _, p := range own {
			delete(g.leases, p)
			delete(g.suspects, p)
			m.lost[p] = true
			w.m.failed(g, p, delay, w.now)
		}
	case "extend":
		refused = m.real.Extend(s, w.now, nil)
		for _, p := range own {
			order := g.leases[p].order
			delete(g.leases, p)
			g.lend(p, w.loan(m, order))
		}
	}
	w.after(what, g, m)
	for _, r := range refused {
		for p := r.From; p < r.To; p++ {
			if want[p] != r.Outcome {
				w.fail("%s of %d by %s of %s: %d, should be %d", what, p, m.name, g.config.Name, r.Outcome, want[p])
			}
			delete(want, p)
		}
	}
	for p, o := range want {
		if o != OK {
			w.fail("%s of %d by %s of %s: done, should be %d", what, p, m.name, g.config.Name, o)
		}
	}
}

// pass lets time pass, often until a group has something to do. Now and then the clock is
// set back.
func (w *world) pass() {
	before := w.now
	w.now = before.Add(time.Duration(w.rng.Int64N(int64(20 * time.Second))))
	if g := w.group(); g != nil && w.one(2) {
		if at, ok := g.real.wakeAt(); ok && at.After(before) {
			w.now = at
		}
	}
	if w.one(8) {
		w.m.wasDue(before)
		w.now = before.Add(-time.Duration(w.rng.Int64N(int64(20 * time.Second))))
	}
	w.log("it is %v", w.now.UnixMilli())
}

// expire lets time pass and ends leases.
func (w *world) expire() {
	w.pass()
	for _, g := range w.m.groups {
		w.before("expire", g, nil)
		woken := g.real.Wake(w.now)
		w.after("expire", g, nil)
		at, ok := g.real.wakeAt()
		if ok && !at.After(w.now) {
			w.fail("%s: something is due after all that is due was done", g.config.Name)
		}
		if w.bug == nil && ok == woken.Next.IsZero() || ok && w.bug == nil && !at.Equal(woken.Next) {
			w.fail("%s: Wake wants to be called again at %v, should be %v", g.config.Name, woken.Next, at)
		}
		lost := map[*modelMember][]int64{}
		for p, l := range g.leases {
			ended := !g.real.leases.Has(p)
			if ended && l.end.After(w.now) {
				w.fail("%s: the lease of %d ends early", g.config.Name, p)
			}
			if !ended && !l.surely.After(w.now) {
				w.fail("%s: the lease of %d does not end", g.config.Name, p)
			}
			if ended {
				l.member.lost[p] = true
				lost[l.member] = append(lost[l.member], p)
			}
		}
		for m, list := range lost {
			w.ended(m, list)
		}
	}
}

// wakes checks that each group wants to be checked before a lease of it ends.
func (w *world) wakes() {
	for _, g := range w.m.groups {
		w.awaited(g)
		w.keysMove(g)
		at, ok := g.real.wakeAt()
		for _, l := range g.real.leases.All() {
			if !ok || at.UnixNano() > l.Deadline {
				w.fail("%s: nothing ends the lease of %d", g.config.Name, l.From)
			}
		}
	}
}
