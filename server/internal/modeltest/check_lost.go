package modeltest

import "slices"

// lifetime holds that a message is not delivered when its time is over, and says when that is.
func (a *audit) lifetime(p *publication, d *delivery) {
	if p == nil || p.message.GetTtl() == nil {
		return
	}
	earliest, latest, ok := p.expires()
	if said := d.message.GetExpireTime().AsTime(); said.Before(earliest) || said.After(latest) {
		a.find("expire time: %v of %s is published at %v with %v, and ends at %v", d.place, a.t.name, p.call.at.UTC(),
			p.message.GetTtl().AsDuration(), said)
	}
	if ok && d.from.at.After(latest) {
		a.find("expired: %v of %s comes to %s %v too late", d.place, a.t.name, a.g.name, d.from.at.Sub(latest))
	}
}

// ledger holds that what the group lost is counted, by its cause, and nothing else is. A group that
// moves may lose the same message again. What a group missed while it was dead may count for its death.
// Of what was published before the group, only what it holds is due to it: not what was complete.
func (a *audit) ledger() {
	if a.g.ended || len(a.seeks) > 0 {
		return
	}
	var least, most int64
	for _, p := range a.t.order {
		if _, _, ends := p.expires(); !ends || a.letters[p.place] > 0 {
			continue
		}
		if _, due := a.due(p); due && !p.call.before(a.g.born.ret) && !a.saidBefore(p.place, stamp{seq: never}) {
			least++
		}
		if !a.keeps(p) {
			most++
		}
	}
	got := a.g.released.GetExpired()
	if got > most || got < least && !(a.g.mortal && a.t.trims()) {
		a.find("ledger: %s of %s counts %d messages as expired, and these are from %d to %d", a.g.name, a.t.name, got,
			least, most)
	}
}

// keeps reports whether the group acknowledged a message for certain before it ended. An acknowledgement
// of one that has ended is answered as done, and means nothing.
func (a *audit) keeps(p *publication) bool {
	earliest, _, _ := p.expires()
	return slices.ContainsFunc(a.g.settled[p.place], func(s *settlement) bool {
		return s.kind == ack && s.outcome == done && s.ret.at.Before(earliest) &&
			!a.unsaved(s, &delivery{at: stamp{seq: never}})
	})
}
