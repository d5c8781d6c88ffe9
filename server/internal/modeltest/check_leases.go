package modeltest

import (
	"cmp"
	"slices"
	"time"
)

// changed reports whether the group was paused, moved, or without members between two moments, or got
// other settings. All of that ends leases.
func (a *audit) changed(from, to stamp) bool {
	return slices.ContainsFunc(a.g.controls, func(c *control) bool {
		return c.kind != quota && c.kind != backfill && c.kind != unpark && c.meets(from, to)
	})
}

// released reports whether a member may have lost a message before a later moment: it answered, its
// session ended, the group changed, the server was killed, or the lease was over. An extension that was
// answered after the end of the lease may belong to the next lease: the session got the message again, and
// has not read that yet. One of a message that another member has acknowledged changes nothing.
func (a *audit) released(d *delivery, later stamp) bool {
	if d.endedBefore(later) || a.outage(d.from, later) || a.changed(d.from, later) {
		return true
	}
	start := d.from.at
	for _, s := range a.g.settled[d.position] {
		if s.session != d.session || !d.from.before(s.call) || !s.call.before(later) {
			continue
		}
		if s.kind != extend && s.outcome != refused {
			return true
		}
		if s.kind == extend && s.outcome == done && s.call.at.After(start) && !a.gone(d.position, s.ret) &&
			!a.saidBefore(d.position, s.ret) {
			if !s.ret.at.Before(start.Add(a.least(d))) {
				return true
			}
			start = s.call.at
		}
	}
	return !later.at.Before(start.Add(a.least(d)))
}

// gone reports whether a message may be done with before a moment, though the member has not said so: it has a dead
// letter, was purged, was trimmed, or its time is over. Statements of members about it mean nothing then, and are
// answered as done.
func (a *audit) gone(at position, before stamp) bool {
	if purge := a.t.purgeOf(at); purge != nil && purge.call.before(before) {
		return true
	}
	earliest, _, ends := a.at[at].expires()
	return a.deadLetters[at] > 0 || a.trimmable(at) || ends && earliest.Before(before.at)
}

// trimmable reports whether a message may be trimmed while the group has it. The group reads what was published
// before it, and holds of that only what was not complete:
//
//  1. The other groups acknowledge a message. Then a group subscribes and reads from the beginning.
//  2. A member gets the message. Its lease ends, and another member gets the message.
//  3. A trim removes the message.
//  4. The first member acknowledges the message, which is answered as done.
func (a *audit) trimmable(at position) bool {
	p := a.at[at]
	return a.t.trims() && p != nil && !a.g.born.ret.before(p.call)
}

// holds reports whether a member has a message at a moment, for certain. It does not, if the message was purged.
func (a *audit) holds(d *delivery, at stamp) bool {
	purge := a.t.purgeOf(d.position)
	return !a.released(d, at) && (purge == nil || at.before(purge.call))
}

// overtaken reports whether a delivery may be older than one that was received before it. On a busy
// machine a response of a stream can be on its way for longer than the lease:
//
//  1. The server gives a message to a stream, whose response is not read yet.
//  2. The lease ends, and another member gets the message and keeps it.
//  3. The response of the stream is read.
//
// In simulated time a response is read at once. Others of the same moment may be read before it:
//
//  1. The server gives a message to a stream again, whose response is not read yet.
//  2. The member acknowledges the delivery that it has read. That counts for the one that it has not.
//  3. Another member gets the next message of the key, and reads it.
//  4. The response of the stream is read.
func (a *audit) overtaken(later, d *delivery) bool {
	if !later.from.before(d.at) {
		return false
	}
	return !d.at.at.Before(later.from.at.Add(a.least(later))) ||
		slices.ContainsFunc(a.g.settled[later.position], func(s *settlement) bool {
			return s.kind == ack && s.outcome != refused && s.session == later.session && s.call.before(d.at) &&
				!s.ret.before(later.from)
		})
}

// leases holds that a message has one member at a time, and that an acknowledgement that comes after
// the lease is refused.
func (a *audit) leases() {
	for at, list := range a.g.delivered {
		for i, d := range list {
			for _, later := range list[i+1:] {
				if !a.released(d, later.at) && !a.overtaken(later, d) {
					a.find("two members: %v of %s, group %s, has another member %s after its delivery%s", at, a.t.name,
						a.g.name, later.at.at.Sub(d.at.at), a.story(a.g, at))
				}
			}
		}
		for _, s := range a.g.settled[at] {
			if s.kind == ack && s.outcome == done {
				a.late(at, list, s)
			}
		}
	}
}

// late holds that an acknowledgement that was answered as done came from the member that had the
// message, or after it was acknowledged. When the other member has lost it again, the server may have
// given it back to the first: what that one says of the delivery that it has read counts for the one
// that it has not.
func (a *audit) late(at position, list []*delivery, s *settlement) {
	var own, other *delivery
	for _, d := range list {
		switch {
		case !d.at.before(s.call):
		case d.session == s.session:
			own, other = d, nil
		case own != nil && own.at.before(d.from):
			other = d
		}
	}
	if other == nil || a.outage(own.from, s.ret) || a.changed(own.from, s.ret) || a.released(other, s.ret) {
		return
	}
	if !a.byOther(at, s) && !a.gone(at, s.ret) {
		a.find("late acknowledgement: %v of %s, group %s, counts though another member has it%s", at, a.t.name, a.g.name,
			a.story(a.g, at))
	}
}

// byOther reports whether another member may have acknowledged a message before a statement was answered.
func (a *audit) byOther(at position, s *settlement) bool {
	return slices.ContainsFunc(a.g.settled[at], func(x *settlement) bool {
		return x.kind == ack && x.outcome != refused && x.session != s.session && x.call.before(s.ret)
	})
}

// follows reports whether a delivery came after the statement of the member that had the message until
// then. In simulated time another session gets it after that, unless the statement is on its way meanwhile.
// On a stream in both directions it waits for the answers before it, which are up to 2 ms apart:
//
//  1. The lease is over. The member acknowledges the message; its statement is on its way.
//  2. Another member gets the message, and acknowledges it.
//  3. The statement of the first member takes effect. It is answered as done, because the message is.
//
// The same session may have got it again before: its statement about a delivery that it has read counts
// for one that is on its way to it.
func (a *audit) follows(s *settlement, d *delivery) bool {
	if a.Simulated && d.session != s.session {
		return s.ret.before(d.at) ||
			s.call.at.Before(d.at.at) && !a.byOther(d.position, s) && !a.gone(d.position, s.ret)
	}
	return s.ret.before(d.from)
}

// acknowledged holds that nothing comes again that is acknowledged, unless the group was moved back.
func (a *audit) acknowledged() {
	for at, list := range a.g.delivered {
		for _, s := range a.g.settled[at] {
			if s.kind != ack || s.outcome != done {
				continue
			}
			for _, d := range list {
				moved := slices.ContainsFunc(a.seeks, func(c *control) bool { return c.meets(s.call, d.at) })
				if a.follows(s, d) && !moved && !a.unsaved(s, d) {
					a.find("again: %v of %s, group %s, comes %s after its acknowledgement%s", at, a.t.name, a.g.name,
						d.at.at.Sub(s.ret.at), a.story(a.g, at))
				}
			}
		}
	}
}

// unsaved reports whether a kill may have taken an acknowledgement that was answered before it was
// stored.
func (a *audit) unsaved(s *settlement, d *delivery) bool {
	return slices.ContainsFunc(a.outages, func(o span) bool {
		return o.meets(s.ret, d.at) && o.call.at.Sub(s.ret.at) < flushed && !a.t.saved(s, o.call)
	})
}

// attempts holds that attempts count what failed, have a bound, and wait as long as was asked.
func (a *audit) attempts() {
	for at, list := range a.g.delivered {
		for i, d := range list {
			if _, limit := attemptsOf(a.g.settings(list[0].from, d.at)); d.attempt > limit+1 {
				a.find("attempts: %v of %s, group %s, is delivered for the %dth time", at, a.t.name, a.g.name, d.attempt)
			}
			if a.Simulated && d.attempt > i+1 {
				a.find("attempts: delivery %d of %v of %s, group %s, is said to be number %d", i+1, at, a.t.name, a.g.name,
					d.attempt)
			}
			failed, earlier := 0, stamp{}
			if i > 0 {
				earlier = list[i-1].at
			}
			for _, s := range a.g.settled[at] {
				if s.kind != nack || s.outcome != done || !a.follows(s, d) || a.changed(s.call, d.at) ||
					a.unparked(s.call, d.at) || a.outage(s.call, d.at) {
					continue
				}
				failed++
				if due := s.call.at.Add(s.delay); earlier.before(s.call) && d.at.at.Before(due.Add(-5*time.Millisecond)) {
					a.find("delay: %v of %s, group %s, comes %s too early%s", at, a.t.name, a.g.name, due.Sub(d.at.at),
						a.story(a.g, at))
				}
			}
			if d.attempt < failed+1 {
				a.find("attempts: %v of %s, group %s, was returned %d times and is attempt %d%s", at, a.t.name, a.g.name,
					failed, d.attempt, a.story(a.g, at))
			}
		}
	}
}

// pauses holds that a paused group gets nothing, and that what it says does not count.
func (a *audit) pauses() {
	for i, c := range a.g.controls {
		if c.kind != pause {
			continue
		}
		until := stamp{seq: never}
		if i+1 < len(a.g.controls) {
			until = a.g.controls[i+1].call
		}
		for at, list := range a.g.delivered {
			for _, d := range list {
				if c.ret.before(d.from) && d.at.before(until) {
					a.find("paused: %s of %s gets %v", a.g.name, a.t.name, at)
				}
			}
			for _, s := range a.g.settled[at] {
				if s.kind == ack && s.outcome == done && c.ret.before(s.call) && s.ret.before(until) &&
					!a.saidBefore(at, c.ret) {
					a.find("paused: %s of %s acknowledges %v", a.g.name, a.t.name, at)
				}
			}
		}
	}
}

// saidBefore reports whether a message may have been acknowledged before a moment.
func (a *audit) saidBefore(at position, before stamp) bool {
	return slices.ContainsFunc(a.g.settled[at], func(s *settlement) bool {
		return s.kind == ack && s.outcome != refused && s.call.before(before)
	})
}

// seeking holds that a group that moves forward does not get what lies between.
func (a *audit) seeking() {
	for i, c := range a.seeks {
		until := stamp{seq: never}
		if i+1 < len(a.seeks) {
			until = a.seeks[i+1].call
		}
		for at, list := range a.g.delivered {
			if p := a.at[at]; p == nil || covers(c.to, at) || !p.ret.before(c.call) {
				continue
			}
			for _, d := range list {
				if c.ret.before(d.from) && d.at.before(until) {
					a.find("skipped: %s of %s was moved to %v and gets %v", a.g.name, a.t.name, c.to, at)
				}
			}
		}
	}
}

// keys holds the order of keys: a message is delivered when all before it of its key are
// acknowledged, and while no other one of the key is in hand.
func (a *audit) keys() {
	if !slices.ContainsFunc(a.g.settings(stamp{}, stamp{seq: never}), keyed) {
		return
	}
	type line struct {
		deliveries   []*delivery
		publications []*publication
	}
	byKey := map[string]*line{}
	for _, p := range a.t.order {
		if k := p.message.GetKey(); k != "" {
			if byKey[k] == nil {
				byKey[k] = &line{}
			}
			byKey[k].publications = append(byKey[k].publications, p)
			byKey[k].deliveries = append(byKey[k].deliveries, a.g.delivered[p.position]...)
		}
	}
	for k, l := range byKey {
		slices.SortFunc(l.publications, func(x, y *publication) int {
			return cmp.Compare(x.position.position, y.position.position)
		})
		before := int64(0)
		for _, p := range l.publications {
			for _, d := range a.g.delivered[p.position] {
				if before > d.at.seq && p.message.GetDelay() == nil && a.ordered(d) {
					a.find("key order: %s of %s gets %v before it has acknowledged what is before it of %s", a.g.name,
						a.t.name, p.position, k)
				}
			}
			if p.message.GetDelay() == nil { // later messages pass one that waits
				before = max(before, a.doneAt(p))
			}
		}
		inOrder(l.deliveries)
		for i, d := range l.deliveries {
			for j := i - 1; j >= 0 && a.ordered(d) && d.at.at.Sub(l.deliveries[j].from.at) < longLease; j-- {
				if x := l.deliveries[j]; d.position != x.position && a.holds(x, d.at) && !a.overtaken(d, x) {
					a.find("key order: %s of %s has %v and %v of %s in hand, the second %v after the first%s\n\t--%s", a.g.name,
						a.t.name, x.position, d.position, k, d.at.at.Sub(x.at.at), a.story(a.g, x.position),
						a.story(a.g, d.position))
				}
			}
		}
	}
}
