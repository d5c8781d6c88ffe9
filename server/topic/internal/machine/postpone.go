package machine

import (
	"container/heap"
	"maps"
	"slices"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
)

// A message can say before when it is not delivered. Until then it is open and nothing else: it holds no key, so
// that later messages pass it, also those of its key. From then on it is as any other message, at its position.
//
// Messages that are known not to be due are kept for the partition, because all groups ask for them, and a group that
// starts again need not read them. They are found again after a restart as Next comes to
// them, so no cursor has them.

// What has failed was due, and does not wait again, although the clock may say that it is not due: it was set back,
// or is that of the next owner of the partition. Without that its key would proceed, and a dead letter come back:
//
//  1. Message 0 is due, and fails for the last time. It holds its key until it is stored as a dead letter.
//  2. The topic starts on a server by whose clock message 0 is not due. Next comes to it again, and it waits.
//  3. Next delivers message 1 of its key.
//  4. Message 0 is stored as a dead letter. When its time comes, Next delivers it.
//
// Neither does a suspect, which goes to a member that has nothing, and then holds its key.

// MaxPostponed is how many messages of a partition may be known not to be due: see Postponed. They are open in each
// group. If acknowledged messages lie between them, they take half of a cursor, and the rest is for others.
const MaxPostponed = MaxOpen / 4

// schedule is what is known not to be due in a partition.
type schedule struct {
	due   map[int64]int64 // unix ns by the clock of Elapsed, by position
	order delays
}

// Note notes those messages of a batch that are not due. Elapsed precedes.
func (p *Machine) Note(batch *commitlog.Batch) {
	if !batch.Delays() {
		return
	}
	for i := range batch.Count() {
		p.undue(batch, i)
	}
}

// undue reports whether message i is not due, and notes it then. One that ends before it is due is checked then.
func (p *Machine) undue(batch *commitlog.Batch, i int) bool {
	at := batch.Delivery(i)
	if end := batch.Expiry(i); end != 0 {
		at = min(at, end)
	}
	if at <= p.clock {
		return false
	}
	s, position := &p.schedule, batch.Base+int64(i)
	if _, known := s.due[position]; !known {
		if s.due == nil {
			s.due = map[int64]int64{}
		}
		s.due[position] = at
		heap.Push(&s.order, delay{at, position})
	}
	return true
}

// elapsed forgets what is due.
func (s *schedule) elapsed(now int64) {
	for len(s.order) > 0 && s.order[0].due <= now {
		delete(s.due, heap.Pop(&s.order).(delay).position)
	}
}

// trim forgets what lies before the start of the log.
func (s *schedule) trim(start int64) {
	if len(s.order) == 0 {
		return
	}
	maps.DeleteFunc(s.due, func(position, _ int64) bool { return position < start })
	s.order = slices.DeleteFunc(s.order, func(d delay) bool { return d.position < start })
	heap.Init(&s.order)
}

// Postponed returns how many messages are known not to be due: those that Note or Next has come to. Elapsed precedes.
func (p *Machine) Postponed() int { return len(p.schedule.order) }

// FirstOpen returns the lowest position that a group reads or is owed and has not acknowledged; the end if there is
// none.
func (p *Machine) FirstOpen() int64 {
	first := p.end
	for _, g := range p.groups {
		if g.state != Cancelled {
			first = min(first, g.nextOpen(p.start))
		}
	}
	return first
}

// postpone makes a message wait until it is due, at a time of the clock of Elapsed.
func (d *delivery) postpone(position, due int64) {
	d.take(position, position+1)
	heap.Push(&d.postponed, delay{d.now + due - d.p.clock, position})
}

// later makes the first of the messages of a batch from i to j wait if it is not due, unless it is not for the
// group, or was due before. If it need not wait, later returns the end of those that need not.
func (d *delivery) later(batch *commitlog.Batch, i, j int) (to int, done bool) {
	if d.p.undue(batch, i) {
		position := batch.Base + int64(i)
		if d.isFor(batch, i) && !d.wasDue(position) {
			d.postpone(position, d.p.schedule.due[position])
			d.passKey(batch, i)
			return 0, true
		}
		return i + 1, false
	}
	for to = i + 1; to < j && !d.p.undue(batch, to); to++ {
	}
	return to, false
}

// wasDue reports whether a message is known to have been due: it has failed, or is suspect.
func (g *GroupState) wasDue(position int64) bool {
	return g.fails.Get(position).Attempts > 0 || g.suspects.Contains(position)
}

// passKey lets the messages proceed that wait for message i because its key was free for it when it was due. It is
// not due any more: the clock was set back.
func (d *delivery) passKey(batch *commitlog.Batch, i int) {
	if d.keys.Len() == 0 {
		return
	}
	d.unheld(batch, i)
	d.free(batch.Base + int64(i))
}

// isFor reports whether message i is for the group, regardless of the filters of its
// members.
func (g *GroupState) isFor(batch *commitlog.Batch, i int) bool {
	to := batch.Address()
	return (to == "" || to == g.address) && g.filter.Accepts(batch, i)
}

// Due takes out of a set what is known not to be due.
func (p *Machine) Due(s *Set) {
	for position := range p.schedule.due {
		s.Remove(position, position+1)
	}
}

// OldestDue returns the lowest position that the group is to receive, has not acknowledged, and that is due as far as
// that is known; the end if there is none. It returns since when that can be delivered; zero if its batch is not in
// memory. Elapsed precedes.
func (g *GroupState) OldestDue() (position int64, since time.Time) {
	position = g.Oldest()
	if since, ok := g.dueSince(position); ok {
		return position, since
	}
	missing := g.Missing()
	for _, r := range missing.Runs() {
		for position = r.From; position < min(r.To, g.p.end); position++ {
			if since, ok := g.dueSince(position); ok {
				return position, since
			}
		}
	}
	return g.p.end, time.Time{}
}

// dueSince returns since when the message at a position can be delivered; false if it is not due.
func (g *GroupState) dueSince(position int64) (since time.Time, ok bool) {
	if _, waits := g.p.schedule.due[position]; waits {
		return since, false
	}
	batch, residence := g.p.source.At(position)
	if position >= g.p.end || residence != Resident {
		return since, true
	}
	if batch.Base <= position && g.p.undue(batch, int(position-batch.Base)) {
		return since, false
	}
	return batch.Since(position), true
}
