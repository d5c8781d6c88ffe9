package modeltest

import (
	"slices"
)

// incomplete holds that a backfill of what is not complete has nothing of what was complete before it was asked for.
func (a *audit) incomplete() {
	if !a.asked[0].open {
		return
	}
	for _, p := range a.t.order {
		if p.ret.before(a.g.born.call) && len(a.g.delivered[p.position]) > 0 && a.wasComplete(p) {
			a.find("pending: %s of %s gets %v, which was complete%s", a.g.name, a.t.name, p.position, a.story(a.g, p.position))
		}
	}
}

// wasOpen reports whether a message is for certain one of those that a backfill of what is not complete has: when
// it was started, a group that was there before the message had not acknowledged it.
func (a *audit) wasOpen(p *publication) bool {
	if len(a.asked) == 0 || !a.asked[0].open || !p.ret.before(a.asked[0].call) {
		return false
	}
	return slices.ContainsFunc(a.tenures, func(g *group) bool {
		return g.topic == a.t && g.steady && a.audit(a.t, g, a.at, a.dead).doneAt(p) > a.asked[0].ret.seq
	})
}

// wasComplete reports whether a message was complete for certain when a backfill was asked for: some group had
// acknowledged it, and all had that may have had to.
func (a *audit) wasComplete(p *publication) bool {
	some, asked := false, a.asked[0]
	for _, g := range a.tenures {
		if g.topic != a.t || g == a.g || asked.ret.before(g.born.call) {
			continue
		}
		other := a.audit(a.t, g, a.at, a.dead)
		held := g.config.GetStart().GetEarliest() || len(other.asked) > 0
		switch {
		case len(other.seeks) > 0 || g.ended || p.deadLetter != nil:
			return false
		case !held && p.ret.before(g.born.call):
			continue
		case !other.kept(p, asked.span):
			return false
		}
		some = true
	}
	return some
}

// kept reports whether the group acknowledged a message for certain before a call, and no kill before its answer
// may have taken that.
func (a *audit) kept(p *publication, asked span) bool {
	return slices.ContainsFunc(a.g.settled[p.position], func(s *settlement) bool {
		return s.kind == ack && s.outcome == done && s.ret.before(asked.call) && !a.unsaved(s, &delivery{at: asked.ret})
	})
}
