package modeltest

import (
	"cmp"
	"slices"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
)

// hashing holds that with the selection HASH a key, or a message without one, has one member as long as the members
// stay: two deliveries that follow each other go to one session, unless another one began or ended meanwhile. As
// messages are delivered in their order, that member gets those of a key in their order, too.
func (a *audit) hashing() {
	if !slices.ContainsFunc(a.g.settings(stamp{}, stamp{seq: never}), hashed) {
		return
	}
	last, first := map[string]*delivery{}, map[string]*delivery{}
	for _, d := range a.inAll() {
		if key := d.message.GetKey(); key != "" && d == a.g.delivered[d.position][0] {
			a.hashOrder(first[key], d)
			first[key] = d
		}
		key := d.message.GetKey()
		if key == "" {
			key = d.position.String()
		}
		was := last[key]
		last[key] = d
		if was == nil || was.session == d.session {
			continue
		}
		from := a.deliveredAfter(was)
		if other := a.deliveredAfter(d); other.before(from) {
			from = other
		}
		if a.hashed(from, d.at) && !a.outage(from, d.at) && a.stays(from, d.at) {
			a.find("hash: %s of %s gives %v and then %v of key %q to sessions %s and %s%s\n\t--%s", a.g.name, a.t.name,
				was.position, d.position, key, was.id, d.id, a.story(a.g, was.position), a.story(a.g, d.position))
		}
	}
}

// hashOrder is hashing of two messages of a key that are delivered for the first time, one after the other. Messages
// pass one that waits until it is due.
func (a *audit) hashOrder(was, d *delivery) {
	if was == nil || was.session != d.session || was.position.partition != d.position.partition ||
		was.position.position < d.position.position || a.at[d.position] == nil || a.at[d.position].message.GetDelay() != nil {
		return
	}
	if from := a.at[d.position].call; a.hashed(from, d.at) && !a.outage(from, d.at) && a.stays(from, d.at) {
		a.find("hash order: %s of %s gets %v before %v of key %q%s\n\t--%s", a.g.name, a.t.name, was.position, d.position,
			d.message.GetKey(), a.story(a.g, was.position), a.story(a.g, d.position))
	}
}

// inAll returns all deliveries of the group in the order in which they were received, those of one answer by their
// positions.
func (a *audit) inAll() (all []*delivery) {
	for _, list := range a.g.delivered {
		all = append(all, list...)
	}
	slices.SortFunc(all, func(x, y *delivery) int {
		return cmp.Or(cmp.Compare(x.at.seq, y.at.seq), cmp.Compare(x.position.position, y.position.position))
	})
	return all
}

// deliveredAfter is a moment before which the server cannot have given a message away: it was published
// then.
func (a *audit) deliveredAfter(d *delivery) stamp {
	if since := a.at[d.position].since(); d.from.before(since) {
		return since
	}
	return d.from
}

// hashed reports whether the group had the selection HASH between two moments, for certain.
func (a *audit) hashed(from, to stamp) bool {
	return !slices.ContainsFunc(a.g.settings(from, to), func(c *topicv1.SubscriptionConfig) bool { return !hashed(c) })
}

func hashed(c *topicv1.SubscriptionConfig) bool {
	return c.GetSelection() == topicv1.Selection_SELECTION_HASH
}

// stays reports whether the members of the group are the same from one moment to another: none began, and none that
// may have ended was there until the first moment.
func (a *audit) stays(from, to stamp) bool {
	for _, s := range a.g.sessions {
		if s.start.before(to) && !s.opened.before(from) {
			return false
		}
		if s.end.seq == 0 || to.before(s.end) { // it is there, or comes later
			continue
		}
		if gone := a.goneAt(s); gone.seq == 0 || !gone.before(from) {
			return false
		}
	}
	return true
}

// goneAt is the earliest moment at which a session has ended for certain; zero if that is not known.
func (a *audit) goneAt(s *session) stamp {
	gone := s.gone
	for _, o := range a.outages {
		if s.opened.before(o.call) && (gone.seq == 0 || o.ret.before(gone)) {
			gone = o.ret
		}
	}
	return gone
}
