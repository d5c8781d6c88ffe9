package modeltest

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
)

// never is later than all that happens.
const never = int64(1) << 62

// flushed is how long an acknowledgement of OFFSET_WATERMARK may take to be stored. The server says
// a second; a busy machine needs longer.
const flushed = 10 * time.Second

// audit holds what was seen of a group against the contract.
type audit struct {
	*World
	t           *topicState
	g           *group
	at          map[position]*publication
	deadLetters map[position]int
	dead        map[string]map[position]int // dead letters of all groups
	seeks       []*control
	asked       []*control // for a backfill
}

// check looks for what the server broke, when the run is over.
func (w *World) check() {
	for _, t := range w.topics {
		at := map[position]*publication{}
		for _, p := range t.order {
			at[p.position] = p
		}
		w.checkPublishers(t)
		w.checkPurges(t)
		deadLetters := w.checkDeadLetters(t, at)
		for _, g := range w.tenures {
			if g.topic != t {
				continue
			}
			a := w.audit(t, g, at, deadLetters)
			for _, list := range g.delivered {
				inOrder(list)
			}
			a.contents()
			a.start()
			a.losses()
			a.leases()
			a.acknowledged()
			a.attempts()
			a.pauses()
			a.seeking()
			a.keys()
			a.hashing()
			a.deadLetterCalls()
			a.bounds()
			a.parking()
			a.ledger()
			a.floors()
		}
	}
}

// audit is that of a group.
func (w *World) audit(t *topicState, g *group, at map[position]*publication, dead map[string]map[position]int) *audit {
	a := &audit{World: w, t: t, g: g, at: at, deadLetters: dead[g.name], dead: dead}
	for _, c := range g.controls {
		switch c.kind {
		case seek:
			a.seeks = append(a.seeks, c)
		case backfill:
			a.asked = append(a.asked, c)
		}
	}
	return a
}

// checkPublishers holds that messages of one publisher and key are in one partition, in the order in
// which they were published.
func (w *World) checkPublishers(t *topicState) {
	last := map[[2]string]position{}
	for _, p := range t.order {
		if p.deadLetter != nil {
			continue // it stands behind what was published since
		}
		of := [2]string{p.message.GetCorrelationId(), p.message.GetKey()}
		was, ok := last[of]
		if of[1] != "" && ok && (was.partition != p.position.partition || was.position >= p.position.position) {
			w.find("publish order: key %s of %s has %v behind %v", of[1], t.name, p.position, was)
		}
		last[of] = p.position
	}
}

// story says what happened to a message in a group, for a finding. Times are those since the first
// delivery.
func (w *World) story(g *group, of position) string {
	list := g.delivered[of]
	if len(list) == 0 {
		return ""
	}
	var lines []string
	zero := list[0].at.at
	for _, d := range list {
		lines = append(lines, fmt.Sprintf("%v..%v session %s: attempt %d", d.from.at.Sub(zero), d.at.at.Sub(zero), d.id,
			d.attempt))
	}
	for _, s := range g.settled[of] {
		lines = append(lines, fmt.Sprintf("%v..%v session %s: %s, %s", s.call.at.Sub(zero), s.ret.at.Sub(zero), s.id,
			[]string{"ack", "nack", "extend"}[s.kind], []string{"unknown", "done", "refused"}[s.outcome]))
	}
	for _, l := range w.deadLetters {
		if l.topic == g.topic && l.group == g.name && l.of == of.String() {
			lines = append(lines, fmt.Sprintf("%v letter %v with %q", l.message.GetPublishTime().AsTime().Sub(zero), l.position,
				l.message.GetHeaders()["parley-error"]))
		}
	}
	for _, o := range w.outages {
		if o.ret.at.After(zero) && o.call.at.Before(list[len(list)-1].at.at.Add(10*time.Second)) {
			lines = append(lines, fmt.Sprintf("%v..%v kill", o.call.at.Sub(zero), o.ret.at.Sub(zero)))
		}
	}
	return "\n\t" + strings.Join(lines, "\n\t")
}

// isOwn reports whether a header is the server's.
func isOwn(name, _ string) bool { return strings.HasPrefix(name, "parley-") }

// same compares a message with what was published, but for what the server adds.
func same(published, m *topicv1.TopicMessage) bool {
	headers := maps.Clone(m.GetHeaders())
	maps.DeleteFunc(headers, isOwn)
	return published.GetKey() == m.GetKey() && published.GetType() == m.GetType() &&
		published.GetCorrelationId() == m.GetCorrelationId() && maps.Equal(published.GetHeaders(), headers) &&
		string(published.GetPayload()) == string(m.GetPayload())
}

// inOrder sorts deliveries as they were received.
func inOrder(list []*delivery) {
	slices.SortFunc(list, func(x, y *delivery) int { return cmp.Compare(x.at.seq, y.at.seq) })
}

// contents holds that what was delivered was published, and is for the group.
func (a *audit) contents() {
	for at, list := range a.g.delivered {
		for i, d := range list {
			p := a.at[at]
			switch {
			case a.t.published[string(d.message.GetPayload())] == nil:
				a.find("content: %s of %s gets %.60s, which was never published", a.g.name, a.t.name, d.message.GetPayload())
			case p == nil || !same(p.message, d.message):
				a.find("content: %s of %s gets other content at %v: %.60s", a.g.name, a.t.name, at, d.message.GetPayload())
			case p.deadLetter != nil && (p.deadLetter.group != a.g.name || d.message.GetExpireTime() != nil ||
				d.message.GetHeaders()[redrivenHeader] != p.deadLetter.id()):
				a.find("redriven: %v of %s, letter %s of group %s, comes to %s with %v", at, a.t.name, p.deadLetter.id(),
					p.deadLetter.group, a.g.name, d.message.GetHeaders())
			case !a.lets(p, d, i > 0):
				a.find("filter: %s of %s gets %v", a.g.name, a.t.name, at)
			}
			if d.at.before(p.since()) {
				a.find("content: %v of %s was delivered before it was published", at, a.t.name)
			}
			// The server counts from publish_time, which is cut to milliseconds.
			if p != nil && d.at.at.Before(p.call.at.Add(p.message.GetDelay().AsDuration()-time.Millisecond)) {
				a.find("early: %v of %s, which waits for %v, was delivered after %v", at, a.t.name,
					p.message.GetDelay().AsDuration(), d.at.at.Sub(p.call.at))
			}
			a.lifetime(p, d)
			if a.t.purged(at, d.from) {
				a.find("purged: %v of %s comes to %s", at, a.t.name, a.g.name)
			}
		}
	}
}

// since is when a message was published first; nil was never.
func (p *publication) since() stamp {
	if p == nil {
		return stamp{}
	}
	return p.call
}

// start holds that a group gets nothing from before its start, and of a backfill with a bound as
// much as that. Messages that were published while the group subscribed are on either side.
func (a *audit) start() {
	if len(a.seeks) > 0 || a.g.topic.config.GetSemantics() == topicv1.Semantics_SEMANTICS_QUEUE {
		return
	}
	history, got, beside, ended := 0, 0, 0, 0
	for _, p := range a.t.order {
		switch delivered := len(a.g.delivered[p.position]) > 0; {
		case p.ret.before(a.g.born.call):
			history++
			if delivered {
				got++
			} else if _, _, ends := p.expires(); ends || p.deadLetter != nil {
				ended++
			}
		case !a.g.born.ret.before(p.call) && delivered:
			beside++
		}
	}
	all, limit := a.g.config.GetStart().GetEarliest(), int(a.g.config.GetMaxBackfillMessages())
	if len(a.asked) > 0 {
		all, limit = true, a.asked[0].most
		a.unasked()
		a.incomplete()
	}
	switch {
	case all && limit < 0:
	case all:
		if got > limit || !a.t.trims() && len(a.t.purges) == 0 && !a.g.ended && got+beside < min(limit, history)-ended {
			a.find("backfill: %s of %s gets %d of %d messages, and %d besides, at most %d", a.g.name, a.t.name, got,
				history, beside, limit)
		}
	case got > 0:
		a.find("start: %s of %s starts at the end and gets %d messages from before", a.g.name, a.t.name, got)
	}
}

// need reports whether the group has to get a message, and acknowledge it, after a moment.
func (a *audit) need(p *publication) (since stamp, ok bool) {
	if _, _, ends := p.expires(); ends || a.t.purged(p.position, stamp{seq: never}) {
		return stamp{}, false
	}
	return a.due(p)
}

// due is need without regard to what messages lose by their time to live.
func (a *audit) due(p *publication) (since stamp, ok bool) {
	if p.deadLetter != nil && p.deadLetter.group != a.g.name {
		return stamp{}, false
	}
	// A group whose filter changes has to get what all of its filters let through.
	for _, c := range a.g.settings(p.call, stamp{seq: never}) {
		if !passes(c, p.message) {
			return stamp{}, false
		}
	}
	if a.g.ended {
		return stamp{}, false
	}
	all := a.g.topic.config.GetSemantics() == topicv1.Semantics_SEMANTICS_QUEUE ||
		a.g.config.GetStart().GetEarliest() && a.g.config.GetMaxBackfillMessages() < 0 && !a.t.trims() ||
		len(a.asked) > 0 && a.asked[0].most < 0 && !a.asked[0].open && !a.t.trims() || a.wasOpen(p)
	ok = all || a.g.born.ret.before(p.call)
	for _, s := range a.seeks {
		switch {
		case s.ret.before(p.call):
		case !covers(s.to, p.position):
			ok = false
		case p.ret.before(s.call):
			ok = true
			// A member may acknowledge a message that it still has when the group is moved.
			if a.answered(p.position, s.call) {
				since = s.call
			}
		}
	}
	return since, ok
}

// answered reports whether a message was acknowledged, for certain, before a moment.
func (a *audit) answered(at position, before stamp) bool {
	return slices.ContainsFunc(a.g.settled[at], func(s *settlement) bool {
		return s.kind == ack && s.outcome == done && s.ret.before(before)
	})
}

// covers reports whether a group that moves to a position gets a message that is there.
func covers(to *topicv1.Position, at position) bool {
	var from position
	if _, err := fmt.Sscanf(to.GetMessageId(), "%d-%d", &from.partition, &from.position); err == nil {
		return at.partition == from.partition && at.position >= from.position
	}
	return to.GetEarliest()
}

// doneAt is the earliest moment at which a message may have been acknowledged, or 0 if the group
// gave it up or need not get it.
func (a *audit) doneAt(p *publication) int64 {
	if p == nil || a.deadLetters[p.position] > 0 {
		return 0
	}
	_, due := a.due(p)
	if _, _, ends := p.expires(); ends || !due {
		return 0
	}
	first := never
	if purge := a.t.purgeOf(p.position); purge != nil {
		first = purge.call.seq
	}
	for _, s := range a.g.settled[p.position] {
		if s.kind == ack && s.outcome != refused {
			first = min(first, s.call.seq)
		}
	}
	return first
}

// losses holds that each message that the group has to get was delivered and acknowledged, or has a
// dead letter. The server tells a group that was dead while messages were removed how many it missed.
func (a *audit) losses() {
	var missed int64
	for _, p := range a.t.order {
		since, ok := a.need(p)
		if !ok || a.deadLetters[p.position] > 0 {
			continue
		}
		delivered := slices.ContainsFunc(a.g.delivered[p.position], func(d *delivery) bool { return since.before(d.at) })
		settled := slices.ContainsFunc(a.g.settled[p.position], func(s *settlement) bool {
			return s.kind == ack && s.outcome != refused && since.before(s.call)
		})
		switch {
		case settled:
		case a.g.mortal && a.t.trims():
			missed++
		case !delivered:
			a.find("lost: %s of %s never gets %v", a.g.name, a.t.name, p.position)
		default:
			a.find("lost: %s of %s is passed over %v, which it did not acknowledge%s", a.g.name, a.t.name, p.position,
				a.story(a.g, p.position))
		}
	}
	if missed > a.g.missed {
		a.find("missed: %s of %s did not get %d messages, the server says %d", a.g.name, a.t.name, missed, a.g.missed)
	}
}

// floors holds that positions and statuses claim nothing that is not acknowledged. A position
// counts as done when all positions up to it are done.
func (a *audit) floors() {
	if a.g.ended || len(a.seeks) > 0 {
		return
	}
	below := map[int32][]int64{} // by partition and position, when all up to it are done
	for n := range a.t.config.GetPartitions() {
		list := []int64{0}
		for pos := int64(0); a.at[position{n, pos}] != nil; pos++ {
			list = append(list, max(list[pos], a.doneAt(a.at[position{n, pos}])))
		}
		below[n] = list
	}
	hold := func(what string, p *probe, targets map[int32]int64) {
		for n, at := range targets {
			if at >= int64(len(below[n])) {
				a.find("%s: %s of %s is at %d-%d, which is behind the end", what, a.g.name, a.t.name, n, at)
			} else if below[n][at] > p.ret.seq {
				a.find("%s: %s of %s is at %d-%d, and has not acknowledged all below", what, a.g.name, a.t.name, n, at)
			}
		}
	}
	for _, p := range a.g.probes {
		if !a.g.mortal { // messages missed while it was dead may have been removed
			hold("floor", p, p.floors)
		}
	}
	if !a.g.steady {
		return
	}
	for _, p := range a.t.watermarks {
		hold("watermark", p, p.watermarks)
	}
	for _, p := range a.t.statuses {
		open := a.doneAt(p.message) > p.ret.seq
		if open && (p.completed || slices.Contains(p.acknowledged, a.g.name)) {
			a.find("status: %v of %s is acknowledged by %v, and %s has not", p.message.position, a.t.name, p.acknowledged,
				a.g.name)
		}
	}
}
