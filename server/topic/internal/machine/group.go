package machine

import (
	"slices"
	"strings"

	"github.com/parley-chat/parley/server/commitlog"
)

// GroupState is a group of a partition.
//
// Every position that it reads and has not acknowledged is in exactly one state: ready, leased,
// delayed, waiting for its key, waiting for a member that has credits or, if it is suspect, no
// messages, parked, or dying. Those of a backfill are ready in the backfill's own set.
type GroupState struct {
	p      *Machine
	config Config
	filter *sharedFilter
	state  State
	start  int64
	// address is that of messages which are for this group alone.
	address commitlog.Address
	// version counts changes of what a cursor has.
	version uint64

	required Set // is to receive; open while it is active or paused
	readable Set // is delivered: what is required but for a backfill, and what it may read
	acked    Set // has acknowledged
	// owed is due to the group although it need not be required: it keeps the log and nothing else, so
	// that it can be complete. A dead group is owed what it was to receive when it died and what is
	// published since. A group that has come back is owed what it got back of that.
	owed     Set
	released released // was due, and does not come
	floor    int64    // no position below is readable and not acknowledged
	low      int64    // no position below is required and not acknowledged

	ready  Set                 // can be delivered, or checked
	leases leaseTable[*Member] // members have
	fails  *failureTable       // what was delivered in vain, and what it waits for
	// postponed waits until it is due: see postpone.go.
	postponed delays
	history   catchUp // what it catches up beside
	// suspects were with members that ended abnormally, and draining is the member that is to take one:
	// see suspects.go.
	suspects Set
	draining draining
	keys     *keyTable // of which a message is under way
	// reached is behind what Next has come to, but for a backfill, and open how many messages it has
	// come to that are not acknowledged, a backfill's as well: see MaxOpen.
	reached int64
	open    int64

	members  []*Member // by name
	turn     int       // whose it is
	deadline int64     // no lease ends before, unix ns: see Wake

	processed, filtered, failed int64
	delivered, expired          int64 // deliveries, and messages that were over, since the process began
	counts                      *Counts
	front                       front
	moves                       int64 // by SeekTo
}

// Config returns how the group is served. It is not written to.
func (g *GroupState) Config() *Config { return &g.config }

// State returns where the group is in its life.
func (g *GroupState) State() State { return g.state }

// Version changes with each change of what AppendCursor writes.
func (g *GroupState) Version() uint64 { return g.version }

// Configure changes how the group is served; name and generation stay. Leases end, which is
// no attempt, and dead letters that are not stored may come again: the new rules apply to
// messages that were under way by the old ones.
func (g *GroupState) Configure(c Config) {
	c.Name, c.Generation = g.config.Name, g.config.Generation
	g.p.hold(g.pin())
	g.setConfig(c)
	g.endLeases(g.p.end)
	g.fails.Spare()
	g.rebuild()
}

func (g *GroupState) setConfig(c Config) {
	old := g.filter
	g.config, g.filter = c, g.p.filters.Use(c.Filter)
	g.p.filters.Release(old)
}

// Floor returns the position below which everything is acknowledged or not for the group.
// It goes back by SeekTo, Resurrect and Restore only. Positions of a backfill do not count.
func (g *GroupState) Floor() int64 {
	if f := g.readable.NextWithout(&g.acked, g.floor); f != NoEnd {
		g.floor = f
	}
	return g.floor
}

// pin returns the lowest position that is required and not acknowledged.
func (g *GroupState) pin() int64 {
	if g.low != NoEnd {
		g.low = g.required.NextWithout(&g.acked, g.low)
	}
	return g.low
}

// holding reports whether the log is kept for the group.
func (g *GroupState) holding() bool {
	return g.state == Active || (g.state == Paused && g.config.HoldsPaused)
}

// changed makes what is derived from the sets of positions be derived again.
func (g *GroupState) changed() {
	g.low = g.p.start
	g.version++
}

// unread is what the group has not acknowledged since it began.
func (g *GroupState) unread() Set {
	unread := SetOf(Run{From: max(g.start, g.p.start), To: g.p.end})
	unread.Subtract(&g.acked)
	return unread
}

// Missed returns how many positions a group that is dead, or that Reconcile resurrects, has not acknowledged since it
// began: Resurrect gives it these.
func (g *GroupState) Missed() int64 {
	unread := g.unread()
	return unread.Count(0, g.p.end)
}

// claim lets the group read what it has not acknowledged from a position on and makes it
// receive what comes. With hold it is also to receive what is there and not complete. It
// returns how many of the messages that are there it reads.
func (g *GroupState) claim(from int64, hold bool) int64 {
	want := SetOf(Run{From: from, To: g.p.end})
	want.Subtract(&g.acked)
	n := want.Count(0, g.p.end)
	g.readable.Union(&want)
	g.regain(&want)
	g.readable.Add(g.p.end, NoEnd)
	if hold {
		complete := g.p.complete()
		want.Subtract(&complete)
		g.required.Union(&want)
	}
	g.required.Add(g.p.end, NoEnd)
	g.floor, g.reached = g.p.start, g.failedBefore()
	g.changed()
	return n
}

// Pause stops the deliveries. Leases end, which is no attempt. Error: ErrState if the
// group is not active.
func (g *GroupState) Pause() error {
	if g.state != Active {
		return ErrState
	}
	g.state = Paused
	back := g.endLeases(g.p.end)
	g.putBack(&back)
	g.recall()
	return nil
}

// Resume undoes Pause. Error: ErrState if the group is not paused.
func (g *GroupState) Resume() error {
	if g.state != Paused {
		return ErrState
	}
	g.p.hold(g.pin())
	g.state = Active
	return nil
}

// Die makes an active group dead: it is required for nothing that is published from now on,
// and holds neither the watermark nor completion. It is owed what it has not acknowledged, until
// LetGo. Release follows, in a step of its own. Error: ErrState.
func (g *GroupState) Die() error {
	if g.state != Active {
		return ErrState
	}
	g.end(Dead)
	return nil
}

// Cancel ends the group for good, in any state but cancelled. Release follows. Error:
// ErrState.
func (g *GroupState) Cancel() error {
	if g.state == Cancelled {
		return ErrState
	}
	g.end(Cancelled)
	return nil
}

func (g *GroupState) end(s State) {
	g.Floor() // it is known while there is something to read only
	g.state = s
	g.leaveHistory()
	if s == Dead {
		g.owed.Union(&g.required)
		g.fitOwed()
	} else {
		g.owed = Set{}
	}
	g.required.Remove(g.p.end, NoEnd)
	g.readable.Remove(g.p.end, NoEnd)
	g.reset()
	g.keys.Reset(func(int64) bool { return false })
	g.stopWaiting()
	g.ready = Set{}
	g.reached, g.open = 0, 0 // it may come back, which begins anew
	g.changed()
}

// Release takes a dead or cancelled group off the messages that it has not acknowledged,
// and returns how many these were. Doing so again changes nothing. Error: ErrState.
func (g *GroupState) Release() (int64, error) {
	if g.state != Dead && g.state != Cancelled {
		return 0, ErrState
	}
	return g.abandon(), nil
}

// abandon makes the group required for nothing that it has not acknowledged.
func (g *GroupState) abandon() int64 {
	n := g.drop(NoEnd)
	if n > 0 {
		g.version++
	}
	g.compact()
	return n
}

// drop takes the group off what lies before a position and is not acknowledged, and
// returns how many messages these were for which it was required.
func (g *GroupState) drop(to int64) int64 {
	before := g.required.Count(0, g.p.end)
	for _, s := range []*Set{&g.required, &g.readable, &g.history.Set} {
		if to == NoEnd {
			s.Intersect(&g.acked)
			continue
		}
		kept := g.acked.Clone()
		kept.Add(to, NoEnd)
		s.Intersect(&kept)
	}
	return before - g.required.Count(0, g.p.end)
}

// Resurrect makes a dead group active. It is to receive what it has missed, the newest most
// positions; negative: all of them. Those that are not complete are held for it. The log is kept
// for the others if they are owed, and they are delivered as long as they are there if not. Older
// positions that are owed are released, by the cause. It returns how many positions it gets.
// Error: ErrState if it is not dead, as for the second of two calls.
func (g *GroupState) Resurrect(limit int64, rest Cause) (int64, error) {
	if g.state != Dead {
		return 0, ErrState
	}
	g.p.hold(g.start)
	return g.resurrect(limit, rest), nil
}

func (g *GroupState) resurrect(limit int64, rest Cause) int64 {
	g.owed.Union(&g.required) // of a group that was restored and whose cursor does not know that it died
	g.owed.Remove(g.p.end, NoEnd)
	g.drop(NoEnd)
	g.state = Active
	from := max(g.start, g.p.start)
	if unread := g.unread(); limit == 0 {
		from = g.p.end
	} else if n := unread.Count(0, g.p.end); limit > 0 && n > limit {
		from = unread.Nth(n - limit)
	}
	older := g.owed.Clone()
	older.Remove(from, NoEnd)
	g.release(rest, &older)
	g.owed.Remove(0, from)
	n := g.claim(from, true)
	g.rebuild()
	return n
}

// trim forgets what lies before the start of the log.
func (g *GroupState) trim(start int64) {
	g.lose(start, ByRetention)
	for _, s := range []*Set{&g.required, &g.readable, &g.acked, &g.ready} {
		s.Remove(0, start)
	}
	g.history.Trim(start)
	g.fails.Forget(start)
	g.suspects.Remove(0, start)
	for _, m := range g.members {
		m.lost.Trim(start)
		m.aside.Remove(0, start)
		m.alone.Remove(0, start)
	}
	g.start, g.floor = max(g.start, start), max(g.floor, start)
	for l := g.leases.All(); len(l) > 0 && l[0].From < start; l = g.leases.All() {
		g.cut(0, l[0].From, min(l[0].To, start))
	}
	g.changed()
	g.recount()
	if delayed, parked := g.fails.Waiting(); delayed+parked+len(g.postponed)+g.keys.Len() > 0 || g.anyAside() {
		g.rebuild()
	}
}

// lose counts what lies before a position and is due as released, for good. Jobs say beforehand
// why a dead group does not get its messages: the remaining messages here were removed although
// they are due.
func (g *GroupState) lose(start int64, c Cause) {
	g.released.Trim(start, &g.acked)
	if g.state != Cancelled {
		due := g.dueBelow(start)
		n := countWithout(&due, &g.acked)
		g.released.gone[c] += n
		g.p.released(c, n)
	}
	g.owed.Remove(0, start)
}

// reset ends what is under way: leases, retries, dead letters. Messages that are ready stay
// ready.
func (g *GroupState) reset() {
	g.endLeases(g.p.end)
	g.fails.Clear()
	g.suspects.Clear()
}

// endLeases ends the leases of positions below a position, and returns these. Members
// are notified.
func (g *GroupState) endLeases(below int64) (ended Set) {
	for len(g.leases.All()) > 0 && g.leases.All()[0].From < below {
		l := g.leases.All()[0]
		l.To = min(l.To, below)
		g.cut(0, l.From, l.To)
		l.Owner.lose(l.From, l.To)
		g.p.lose(&l)
		ended.Add(l.From, l.To)
	}
	return ended
}

// putBack makes positions ready that were leased.
func (g *GroupState) putBack(back *Set) {
	if g.keys.Len() > 0 {
		for _, r := range back.Runs() {
			for p := r.From; p < r.To; p++ {
				if next, ok := g.keys.Return(p, g.acked.Contains); ok {
					g.ready.Add(next, next+1)
				}
			}
		}
	} else {
		g.open -= g.history.PutBack(back, g.fails, &g.suspects, g.p.end)
	}
	if runs := back.Runs(); len(runs) == 1 {
		g.ready.Add(runs[0].From, runs[0].To)
		return
	}
	g.ready.Union(back)
}

// cut takes positions out of lease i, whose they are.
func (g *GroupState) cut(i int, from, to int64) {
	m := g.leases.All()[i].Owner
	size := g.leases.Cut(i, from, to)
	m.inFlight -= to - from
	m.budget.Back(to-from, size)
}

// rebuild makes everything ready that is neither leased nor dying. Next finds out again
// what has to wait, and for what. In order of key what is dying is ready, too: after a restore
// the key that it holds up is not known until Next comes to it.
func (g *GroupState) rebuild() {
	g.keys.Reset(func(position int64) bool { return g.fails.Dying.Contains(position) || g.leases.Has(position) })
	g.stopWaiting()
	var away Set
	if !g.config.KeyOrder {
		away = g.fails.Dying.Clone()
	}
	for _, l := range g.leases.All() {
		away.Add(l.From, l.To)
	}
	g.ready = g.readable.Clone()
	g.ready.Subtract(&g.acked)
	g.ready.Subtract(&away)
	others := g.history.Rebuild(&g.acked, &away, g.fails, &g.suspects)
	g.ready.Union(&others)
	g.recount()
}

// maxGroupRuns is of how many runs the history of a dead group may be. Beyond that, what all
// groups have acknowledged is remembered by the machine alone.
const maxGroupRuns = 8192

// compact keeps a released group small, whose sets only describe the past. Its acknowledgements
// are kept for its return. Of a history of more runs than open messages can leave, the oldest
// part is forgotten, with what it missed there.
func (g *GroupState) compact() {
	if g.required.Len() > maxGroupRuns {
		g.p.settle()
		g.required.Subtract(&g.acked)
		g.readable.Subtract(&g.acked)
		g.version++
	}
	if runs := g.acked.Runs(); len(runs) > maxAckedRuns {
		g.p.settle()
		g.start = max(g.start, runs[len(runs)-maxAckedRuns].From)
		g.lose(g.start, ByBound)
		for _, s := range []*Set{&g.required, &g.readable, &g.acked} {
			s.Remove(0, g.start)
		}
		g.version++
	}
}

// Stats counts what the group has to do. It costs O(runs).
func (g *GroupState) Stats() Stats {
	delayed, parked := g.fails.Waiting()
	s := Stats{
		Start: g.start, Floor: g.Floor(), Pending: g.Lag(),
		Retrying: int64(delayed), Delayed: int64(len(g.postponed)), Parked: int64(parked),
		Undeliverable: g.fails.Dying.Count(0, g.p.end),
		Members:       len(g.members), Processed: g.processed, Filtered: g.filtered, Failed: g.failed,
		Missed: g.released.gone.Total(),
	}
	for _, m := range g.members {
		s.InFlight += m.inFlight
	}
	return s
}

// Members returns the members by name. The slice is the group's.
func (g *GroupState) Members() []*Member { return g.members }

// Attach adds a member, which takes the messages that a filter accepts, all with nil.
// Error: ErrMemberExists.
func (g *GroupState) Attach(name string, f *Filter, b *Budget) (*Member, error) {
	i, found := slices.BinarySearchFunc(g.members, name, func(m *Member, name string) int {
		return strings.Compare(m.name, name)
	})
	if found {
		return nil, ErrMemberExists
	}
	m := &Member{g: g, name: name, filter: g.p.filters.Use(f), budget: b}
	g.members = slices.Insert(g.members, i, m)
	if g.anyAside() {
		g.rebuild()
	}
	return m, nil
}

// anyAside reports whether messages wait for members.
func (g *GroupState) anyAside() bool { return slices.ContainsFunc(g.members, (*Member).awaited) }

func (m *Member) awaited() bool { return !m.aside.Empty() || !m.alone.Empty() }
