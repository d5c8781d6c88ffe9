package modeltest

import (
	"fmt"
	"slices"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
)

// purgeOf is the first purge of a message, nil if it was not purged.
func (t *topicState) purgeOf(at position) *purging {
	for _, p := range t.purges {
		if at.position < p.ends[at.partition] {
			return p
		}
	}
	return nil
}

// purged reports whether a message was purged for certain before a moment.
func (t *topicState) purged(at position, before stamp) bool {
	p := t.purgeOf(at)
	return p != nil && p.ret.before(before)
}

// checkPurges holds that each purge ends at its position. Times are stored in milliseconds.
func (w *World) checkPurges(t *topicState) {
	for _, x := range t.purges {
		until := x.before.GetTime().AsTime()
		byTime := x.before.GetTime() != nil
		var of position
		_, err := fmt.Sscanf(x.before.GetMessageId(), "%d-%d", &of.partition, &of.position)
		for _, p := range t.order {
			purge := t.purgeOf(p.position)
			if purge != nil && purge.ret.before(x.call) {
				continue
			}
			gone := purge == x
			switch {
			case err == nil && gone != (p.position.partition == of.partition && p.position.position < of.position),
				x.before.GetLatest() && (p.ret.before(x.call) && !gone || x.ret.before(p.call) && gone),
				byTime && (p.ret.at.Before(until) && !gone || p.call.at.After(until.Add(time.Millisecond)) && gone):
				w.find("purge: one of %s before %v ends at %v, with %v of %v..%v", t.name, x.before, x.ends, p.position,
					p.call.at, p.ret.at)
			}
		}
	}
}

// saved reports whether an acknowledgement is stored for certain when the server is killed: it was in a
// topic that counts references, or that was changed into one before the kill.
func (t *topicState) saved(s *settlement, kill stamp) bool {
	mode := t.config.GetCompletionMode()
	for _, f := range t.flips {
		counts := f.mode == topicv1.CompletionMode_COMPLETION_MODE_REFERENCE_COUNTING
		switch {
		case f.ret.before(s.call):
			mode = f.mode
		case counts && s.ret.before(f.call) && f.ret.before(kill):
			return true
		case f.call.before(s.ret) && !counts:
			return false // it belongs to either side
		}
	}
	return mode != topicv1.CompletionMode_COMPLETION_MODE_OFFSET_WATERMARK
}

// parking holds that a message which failed as often as it may waits until it is unparked.
func (a *audit) parking() {
	if !a.g.parks() {
		return
	}
	for at, list := range a.g.delivered {
		for _, s := range a.g.settled[at] {
			var last *delivery
			for _, d := range list {
				if d.at.before(s.call) {
					last = d
				}
			}
			if s.kind != nack || s.outcome != done || last == nil || last.session != s.session || last.attempt < maxPoison {
				continue
			}
			for _, d := range list {
				if a.follows(s, d) && !a.unparked(last.from, d.at) && !a.outage(last.from, d.at) {
					a.find("parked: %v of %s comes to %s, which has not unparked it%s", at, a.t.name, a.g.name,
						a.story(a.g, at))
				}
			}
		}
	}
}

// unparked reports whether the group was given what it parked between two moments.
func (a *audit) unparked(from, to stamp) bool {
	return slices.ContainsFunc(a.g.controls, func(c *control) bool { return c.kind == unpark && c.meets(from, to) })
}

// lifetime holds that a message is not delivered when its time is over, and says when that is.
func (a *audit) lifetime(p *publication, d *delivery) {
	if p == nil || p.message.GetTtl() == nil {
		return
	}
	earliest, latest, ok := p.expires()
	if said := d.message.GetExpireTime().AsTime(); said.Before(earliest) || said.After(latest) {
		a.find("expire time: %v of %s is published at %v with %v, and ends at %v", d.position, a.t.name, p.call.at.UTC(),
			p.message.GetTtl().AsDuration(), said)
	}
	if ok && d.from.at.After(latest) {
		a.find("expired: %v of %s comes to %s %v too late", d.position, a.t.name, a.g.name, d.from.at.Sub(latest))
	}
}

// ledger holds that what the group lost is counted, by its cause, and nothing else is. A group that
// moves may lose the same message again. The messages that a group missed while it was dead may count
// for its death. Of what was published before the group, only what it holds is due to it: not what was
// complete.
func (a *audit) ledger() {
	if a.g.ended || len(a.seeks) > 0 {
		return
	}
	var least, limit int64
	for _, p := range a.t.order {
		if _, _, ends := p.expires(); !ends || a.deadLetters[p.position] > 0 {
			continue
		}
		if _, due := a.due(p); due && !p.call.before(a.g.born.ret) && a.t.purgeOf(p.position) == nil &&
			!a.saidBefore(p.position, stamp{seq: never}) {
			least++
		}
		if !a.keeps(p) {
			limit++
		}
	}
	a.forced()
	got := a.g.released.GetExpired()
	if got > limit || got < least && !(a.g.mortal && a.t.trims()) {
		a.find("ledger: %s of %s counts %d messages as expired, and these are from %d to %d", a.g.name, a.t.name, got,
			least, limit)
	}
}

// keeps reports whether the group acknowledged a message for certain before it ended. An acknowledgement
// of one that has ended is answered as done, and means nothing.
func (a *audit) keeps(p *publication) bool {
	earliest, _, _ := p.expires()
	return slices.ContainsFunc(a.g.settled[p.position], func(s *settlement) bool {
		return s.kind == ack && s.outcome == done && s.ret.at.Before(earliest) &&
			!a.unsaved(s, &delivery{at: stamp{seq: never}})
	})
}

// forced holds that a purge is counted for what it took from the group, and not for what the group had
// acknowledged. Of what ended, either may count.
func (a *audit) forced() {
	var least, limit int64
	for _, p := range a.t.order {
		purge := a.t.purgeOf(p.position)
		if purge == nil || a.deadLetters[p.position] > 0 {
			continue
		}
		_, _, ends := p.expires()
		_, due := a.due(p)
		if due && !ends && !p.call.before(a.g.born.ret) && !a.saidBefore(p.position, stamp{seq: never}) {
			least++
		}
		if !a.answered(p.position, purge.call) {
			limit++
		}
	}
	if got := a.g.released.GetForced(); got < least || got > limit {
		a.find("ledger: %s of %s counts %d messages as purged, and these are from %d to %d", a.g.name, a.t.name, got,
			least, limit)
	}
}
