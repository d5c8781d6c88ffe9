package machine

import (
	"slices"
	"strconv"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
)

// leaseSteps is into how many steps the length of a lease is divided: leases end at whole
// steps, so that the messages that a member gets in one step are one lease.
const leaseSteps = 64

// delivery is one call of Next.
type delivery struct {
	*GroupState
	now, deadline int64
	limit         int
	simple        bool // every member takes every message
	ready         *Set
	late          bool  // ready is what a backfill has
	again         int64 // deliveries of messages that had failed before
	dst           []Piece
}

// leaseEnd is when a lease ends that begins now.
func (g *GroupState) leaseEnd(now int64) int64 {
	step := max(int64(g.config.Lease)/leaseSteps, 1)
	return (now + int64(g.config.Lease) + step - 1) / step * step
}

// begins says that a lease begins, or is extended, that ends at a time.
func (g *GroupState) begins(deadline int64) {
	if len(g.leases.All()) == 0 {
		g.deadline = deadline
	}
	g.deadline = min(g.deadline, deadline)
}

// Next delivers messages, limit at most: retries that are due and what is next, oldest
// first. It appends to dst, which may have memory to use. Wake precedes and follows.
func (g *GroupState) Next(now time.Time, limit int, dst []Piece) ([]Piece, Wait) {
	if g.state != Active || len(g.members) == 0 {
		return dst, Wait{Reason: Full}
	}
	if g.config.KeyOrder && g.p.trimming > 0 && g.nextOpen(g.p.start) < g.p.trimming {
		return dst, Wait{Reason: Idle}
	}
	d := delivery{GroupState: g, now: now.UnixNano(), limit: limit, ready: &g.ready, dst: dst}
	before := g.delivered
	defer func() {
		g.counts.Delivered.Add(g.delivered - before)
		g.counts.Redelivered.Add(d.again)
	}()
	d.deadline = g.leaseEnd(d.now)
	d.simple = g.filter == nil && !g.config.KeyOrder && !g.config.Hash &&
		!slices.ContainsFunc(g.members, func(m *Member) bool { return m.filter != nil })
	g.retry(d.now)
	var w Wait
	ok := true
	if !d.suspects.Empty() || d.draining.member != nil {
		w, ok = d.serveAlone()
	}
	if ok {
		w, ok = d.serveAside()
	}
	for ok && d.limit > 0 {
		w, ok = d.step()
	}
	if ok {
		w = Wait{Reason: Limit}
	}
	if w.Reason == Idle || w.Reason == Full {
		w = d.catchUp(w)
	}
	if w.Reason == Idle && (!d.simple || !d.suspects.Empty()) && d.anyAside() {
		w.Reason = Credits // an acknowledgement may change it
	}
	return d.dst, w
}

// step deals with the first positions that are ready; false if it cannot.
func (d *delivery) step() (Wait, bool) {
	r, ok := d.ready.NextRun(0)
	if !ok || r.From >= d.p.end {
		return Wait{Reason: Idle}, false
	}
	if d.full() {
		return Wait{Reason: Credits}, false
	}
	batch, residence := d.p.source.At(r.From)
	if residence == Missing {
		due, waits := d.p.schedule.due[r.From]
		waits = waits && !d.wasDue(r.From)
		if waits && d.keys.Len() == 0 && d.mayOpen(r.From) > r.From {
			d.postpone(r.From, due)
			return Wait{}, true
		}
		return Wait{Reason: Fetch, Position: r.From}, false
	}
	if residence == Beyond {
		return Wait{Reason: Idle}, false
	}
	if batch.Base > r.From {
		d.skipVoid(r.From, min(r.To, batch.Base))
		return Wait{}, true
	}
	i := int(r.From - batch.Base)
	j := i + int(min(int64(d.limit), int64(batch.Count()-i), r.To-r.From))
	if d.late {
		j = i + int(min(int64(j-i), d.history.Allowed))
	}
	if j = min(j, int(d.mayOpen(r.From)-batch.Base)); j <= i {
		return Wait{Reason: Full}, false
	}
	if batch.Expires() {
		var done bool
		if j, done = d.lapsed(batch, i, j); done {
			return Wait{}, true
		}
	}
	if batch.Delays() {
		var done bool
		if j, done = d.later(batch, i, j); done {
			return Wait{}, true
		}
	}
	suspect := false
	if !d.suspects.Empty() {
		j, suspect = d.cutAtSuspects(batch, i, j)
	}
	attempt := 1
	if d.fails.Upto(r.From) {
		var end int64
		attempt, end = d.fails.Attempt(r.From, batch.Base+int64(j), d.now, d.config.MaxAttempts)
		if j = int(end - batch.Base); attempt == 0 {
			d.deferOne(batch, i)
			return Wait{}, true
		}
	}
	if to := batch.Address(); to != "" && to != d.address {
		d.pass(batch, i)
		return Wait{}, true
	}
	if suspect {
		return d.isolate(batch, i, j)
	}
	if d.simple && d.keys.Len() == 0 {
		return d.inTurns(batch, i, j, attempt)
	}
	return d.one(batch, i, attempt)
}

// mayOpen is the position before which messages from one on may be delivered: what is open already,
// and as many more as there is room for. The message that all others wait behind can be opened in
// any case. Without that a group whose history alone fills a cursor would never continue.
func (d *delivery) mayOpen(from int64) int64 {
	room := d.room()
	switch {
	case d.late && room <= 0 && from == d.behind(), !d.late && from >= d.reached && room <= 0 && from == d.Floor():
		return from + 1
	case d.late:
		return from + max(room, 0)
	}
	return max(from, d.reached) + max(room, 0)
}

// skipVoid passes positions that do not exist.
func (d *delivery) skipVoid(from, to int64) {
	d.take(from, to)
	d.acked.Add(from, to)
	d.open -= to - from
	d.version++
}

// deferOne deals with message i, which failed and is not to be delivered now.
func (d *delivery) deferOne(batch *commitlog.Batch, i int) {
	position := batch.Base + int64(i)
	key := ""
	if d.fails.Dying.Contains(position) {
		if key = batch.Key(i); !d.waits(key, position) {
			d.take(position, position+1)
			d.keys.Hold(key, position) // until MarkDeadLettered
		}
		return
	}
	if d.config.KeyOrder || d.config.Exhausted == ParkKey {
		key = batch.Key(i)
		if d.waits(key, position) {
			return
		}
	}
	d.take(position, position+1)
	f := d.fails.Get(position)
	if f.Attempts < d.config.MaxAttempts {
		if d.config.KeyOrder {
			d.keys.Hold(key, position)
		}
		d.fails.Wait(position, d.until(batch, i, f.Due))
		return
	}
	if d.config.Exhausted == ParkKey {
		d.keys.Hold(key, position)
		d.fails.Park(position, key, d.until(batch, i, NoEnd))
		return
	}
	if d.config.KeyOrder {
		d.keys.Hold(key, position)
	}
	d.exhaust(position, f.Attempts, "")
}

// inTurns delivers messages that any member may have, some to each.
func (d *delivery) inTurns(batch *commitlog.Batch, i, j, attempt int) (Wait, bool) {
	share := (j - i + len(d.members) - 1) / len(d.members)
	for range d.members {
		m := d.members[d.turn%len(d.members)]
		d.turn = (d.turn + 1) % len(d.members)
		if n := m.budget.Take(batch, i, min(j, i+share), d.late); n > 0 {
			d.take(batch.Base+int64(i), batch.Base+int64(i+n))
			d.deliverTo(m, batch, i, i+n, attempt)
			return Wait{}, true
		}
	}
	return Wait{Reason: Credits}, false
}

// one deals with one message that not every member may have, or not now.
func (d *delivery) one(batch *commitlog.Batch, i, attempt int) (Wait, bool) {
	position := batch.Base + int64(i)
	takers := d.takers(batch, i)
	if takers == 0 {
		d.pass(batch, i)
		return Wait{}, true
	}
	key := ""
	if d.config.KeyOrder || d.config.Hash || d.keys.Len() > 0 {
		key = batch.Key(i)
	}
	if d.waits(key, position) {
		return Wait{}, true
	}
	m := d.choose(batch, i, takers, key)
	if m == nil && d.late {
		return Wait{Reason: Credits}, false
	}
	d.take(position, position+1)
	if d.config.KeyOrder {
		d.keys.Hold(key, position)
	}
	if m != nil {
		d.deliverTo(m, batch, i, i+1, attempt)
		return Wait{}, true
	}
	// Others may have credits for what follows.
	return Wait{Reason: Credits}, slices.ContainsFunc(d.members, func(m *Member) bool { return m.budget.Has() })
}

// takers is how many members take message i.
func (d *delivery) takers(batch *commitlog.Batch, i int) (n int) {
	if d.filter.Accepts(batch, i) {
		for _, m := range d.members {
			if m.filter.Accepts(batch, i) {
				n++
			}
		}
	}
	return n
}

// pass is done with message i, which no member of the group takes.
func (d *delivery) pass(batch *commitlog.Batch, i int) {
	position := batch.Base + int64(i)
	d.unheld(batch, i)
	d.take(position, position+1)
	d.filtered++
	d.done(position, position+1)
}

// unheld makes messages that wait for the key of message i follow when that is done.
func (d *delivery) unheld(batch *commitlog.Batch, i int) {
	position := batch.Base + int64(i)
	if d.keys.Len() > 0 && !d.keys.Blocked(batch.Key(i), position) {
		d.keys.Hold(batch.Key(i), position)
	}
}

// choose returns the member that gets message i of those that take it, and takes its
// credits. If there are none it sets the message aside for all that may have it, unless it
// is of a backfill: others would wait behind it.
func (d *delivery) choose(batch *commitlog.Batch, i, takers int, key string) *Member {
	position := batch.Base + int64(i)
	at, of := d.turn, len(d.members)
	if d.config.Hash {
		at, of = hashed(key, d.p.number, position, takers), 1
	}
	var may []*Member
	for k := range d.members { // by name from the first, or in turns
		m := d.members[k]
		if !d.config.Hash {
			m = d.members[(at+k)%of]
		}
		if !m.filter.Accepts(batch, i) {
			continue
		}
		if d.config.Hash {
			if at--; at >= 0 {
				continue
			}
		}
		if m.aside.Empty() && m.budget.Take(batch, i, i+1, d.late) > 0 {
			d.turn = (d.turn + k + 1) % len(d.members)
			return m
		}
		may = append(may, m)
		if d.config.Hash {
			break
		}
	}
	for _, m := range may {
		if !d.late {
			m.aside.Add(position, position+1)
		}
	}
	return nil
}

// serveAside delivers what was set aside for members that have credits again.
func (d *delivery) serveAside() (Wait, bool) {
	for _, m := range d.members {
		for position, ok := m.aside.First(); ok && d.limit > 0 && m.budget.Has(); position, ok = m.aside.First() {
			batch, residence := d.p.source.At(position)
			if residence != Resident {
				return Wait{Reason: Fetch, Position: position}, false
			}
			if !d.serve(m, batch, int(position-batch.Base), (*Member).setAside, (*Budget).takeOne) {
				break
			}
		}
	}
	return Wait{}, true
}

func (m *Member) setAside() *Set { return &m.aside }

// serve deals with message i, which waits for members in the sets that of returns: it gives it to a member if
// take takes credits for it, unless it is over or its key was parked meanwhile. False: there are no credits.
func (d *delivery) serve(
	m *Member, batch *commitlog.Batch, i int, of func(*Member) *Set, take func(*Budget, *commitlog.Batch, int) bool,
) bool {
	position := batch.Base + int64(i)
	over := d.p.over(batch, i)
	blocked := !over && d.keys.Len() > 0 && d.waits(batch.Key(i), position)
	if !over && !blocked && !take(m.budget, batch, i) {
		return false
	}
	for _, other := range d.members {
		of(other).Remove(position, position+1)
	}
	switch {
	case over:
		d.lapse(batch, i)
	case !blocked:
		d.deliverTo(m, batch, i, i+1, d.fails.Get(position).Attempts+1)
	}
	return true
}

// deliverTo gives a member messages, whose credits are taken.
func (d *delivery) deliverTo(m *Member, batch *commitlog.Batch, i, j, attempt int) {
	d.GroupState.begins(d.deadline)
	d.leases.Insert(lease[*Member]{
		From: batch.Base + int64(i), To: batch.Base + int64(j), Deadline: d.deadline, Size: int64(batch.Size(i, j)),
		Order: m.budget.Order(), Owner: m,
	})
	m.inFlight += int64(j - i)
	d.delivered += int64(j - i)
	if attempt > 1 {
		d.again += int64(j - i)
	}
	d.limit -= j - i
	if n := len(d.dst); n > 0 {
		last := &d.dst[n-1]
		if last.Member == m && last.Batch == batch && last.To == i && last.Attempt == attempt {
			last.To = j
			return
		}
	}
	d.dst = append(d.dst, Piece{Member: m, Batch: batch, From: i, To: j, Attempt: attempt})
}

// hashed is which of a number of members HASH chooses for a message.
func hashed(key string, partition int32, position int64, takers int) int {
	return int(hash(key, partition, position)&0x7fffffff) % takers
}

// hash is Java's String.hashCode of a key or, without one, of the message's id.
func hash(key string, partition int32, position int64) int32 {
	if key == "" {
		var id [32]byte
		b := strconv.AppendInt(id[:0], int64(partition), 10)
		b = strconv.AppendInt(append(b, '-'), position, 10)
		return javaHash(string(b))
	}
	return javaHash(key)
}
