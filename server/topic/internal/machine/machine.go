package machine

import (
	"slices"
	"strings"

	"github.com/parley-chat/parley/server/commitlog"
)

// maxSettled is how many runs the machine keeps of what is complete beyond what the
// groups say. Of more the oldest are forgotten: a group that begins there then gets them
// as if they were not complete.
const maxSettled = 8192

// Machine is the machine.
type Machine struct {
	number     int32
	start, end int64
	source     Source
	groups     []*GroupState // by name
	// settled is what was complete when a group that shows it was removed or went back.
	settled   Set
	watermark int64
	version   uint64
	filters   filterCache
	lost      []Lost
	maxOpen   int
	returning []*GroupState // are restored, and to be reconciled
	onRelease func(Cause, int64)
	clock     int64 // see Elapsed
	trimming  int64 // see Trimming
	schedule  schedule
}

// New makes a machine without groups for the partition with a number, whose log has the
// positions from start to end.
func New(number int32, start, end int64, source Source) *Machine {
	return &Machine{
		number: number, start: start, end: end, source: source, watermark: start, filters: filterCache{},
		maxOpen: MaxOpen,
	}
}

// OnRelease makes f be called when messages that are due to a group are taken from it. A message
// that the group gets back and loses again counts each time.
func (p *Machine) OnRelease(f func(Cause, int64)) { p.onRelease = f }

func (p *Machine) released(c Cause, n int64) {
	if p.onRelease != nil && n > 0 {
		p.onRelease(c, n)
	}
}

// Version changes with what AppendState writes, but for moves of the watermark that follow
// from the groups.
func (p *Machine) Version() uint64 { return p.version }

// Bounds returns the first position that is kept, and that behind the last.
func (p *Machine) Bounds() (start, end int64) { return p.start, p.end }

// Published says that the log has come to an end; the positions before it can be
// delivered. Next follows for each group.
func (p *Machine) Published(end int64) { p.end = max(p.end, end) }

// Trimmed says that positions before start are gone. A group that was to receive some
// does not; Stats counts them.
func (p *Machine) Trimmed(start int64) {
	if start <= p.start {
		return
	}
	p.start = start
	p.end = max(p.end, start)
	p.settled.Remove(0, start)
	p.version++
	p.schedule.trim(start)
	for _, g := range p.groups {
		g.trim(start)
	}
}

// Trimming says that the log is being trimmed before a position, which follows from TrimLimits in the same step; 0
// says that it is not any more. Meanwhile a group that reads in order of key, and has something to read before that
// position, gets nothing. Without that two members would have messages of one key:
//
//  1. TrimLimits says that messages 0 to 4 may go. The log is being trimmed, which takes a write.
//  2. Next gives message 3 to a member.
//  3. Trimmed takes message 3 from that member, which still works on it.
//  4. Next gives message 7, the next one of the key, to another member.
func (p *Machine) Trimming(before int64) { p.trimming = before }

// Watermark returns the position below which every message is acknowledged by all groups
// that hold it. It never goes back.
func (p *Machine) Watermark() int64 {
	p.watermark = max(p.watermark, min(p.pinned(), p.end))
	return p.watermark
}

// hold keeps the watermark before a group holds what lies below it: then it does not follow
// from the groups any more.
func (p *Machine) hold(from int64) {
	if from < p.Watermark() {
		p.version++
	}
}

// pinned is the lowest position that a group holds.
func (p *Machine) pinned() int64 {
	low := NoEnd
	for _, g := range p.groups {
		if g.holding() {
			low = min(low, g.pin())
		}
	}
	return low
}

// TrimLimits returns the position before which the log may be trimmed: below it, every
// message is either older than c.Forced, or held by no group, owed to none and older than the cutoff
// of its kind. living is what it would be if nothing were owed to dead groups.
func (p *Machine) TrimLimits(c Cutoffs) (limit, living int64) {
	unrequired := SetOf(Run{From: p.start, To: p.end})
	unrequired.Subtract(&p.settled)
	for _, g := range p.groups {
		unrequired.Subtract(&g.required)
	}
	living = min(p.end, p.pinned(), p.kept(), unrequired.NextAbsent(max(p.start, c.Complete)))
	if first, ok := unrequired.Next(c.Unrequired); ok {
		living = min(living, first)
	}
	least := max(p.start, min(c.Forced, p.end))
	living = max(living, least)
	limit = living
	for _, g := range p.groups {
		if g.state == Dead {
			limit = min(limit, g.owedFrom())
		}
	}
	return max(limit, least), living
}

// kept is the lowest position that a group which holds the log is owed or, if it reads in order of
// key, has in hand: the next message of the key must not be delivered beside one that was trimmed.
func (p *Machine) kept() int64 {
	low := NoEnd
	for _, g := range p.groups {
		if !g.holding() {
			continue
		}
		low = min(low, g.owedFrom())
		if leases := g.leases.All(); g.config.KeyOrder && len(leases) > 0 {
			low = min(low, leases[0].From)
		}
	}
	return low
}

// complete returns what has been acknowledged by all groups that were to receive it, one
// at least.
func (p *Machine) complete() Set {
	var done, open Set
	for _, g := range p.groups {
		missing := g.required.Clone()
		missing.Subtract(&g.acked)
		open.Union(&missing)
		acked := g.required.Clone()
		acked.Intersect(&g.acked)
		done.Union(&acked)
	}
	done.Subtract(&open)
	done.Union(&p.settled)
	return done
}

// settle keeps what is complete from depending on the groups.
func (p *Machine) settle() {
	p.settled = p.complete()
	if runs := p.settled.Runs(); len(runs) > maxSettled {
		p.settled.Remove(0, runs[len(runs)-maxSettled].From)
	}
	p.version++
}

// Status says which groups are to acknowledge a position, and which have.
func (p *Machine) Status(position int64) Status {
	s := Status{Complete: p.settled.Contains(position)}
	required, open := false, false
	for _, g := range p.groups {
		acked := g.acked.Contains(position)
		if g.required.Contains(position) {
			s.Required = append(s.Required, g.config.Name)
			required, open = true, open || !acked
		}
		if acked {
			s.Acknowledged = append(s.Acknowledged, g.config.Name)
		}
		s.InFlight = s.InFlight || g.leases.Has(position)
	}
	s.Complete = s.Complete || (required && !open)
	return s
}

// Group returns a group, nil if there is none.
func (p *Machine) Group(name string) *GroupState {
	if i, ok := p.find(name); ok {
		return p.groups[i]
	}
	return nil
}

// Groups returns the groups by name. The slice is the machine's.
func (p *Machine) Groups() []*GroupState { return p.groups }

func (p *Machine) find(name string) (int, bool) {
	return slices.BinarySearchFunc(p.groups, name, func(g *GroupState, name string) int {
		return strings.Compare(g.config.Name, name)
	})
}

// Subscribe adds an active group. In place of a cancelled group of the name it is its
// next generation. gap: some of what it asked for is no longer there. Errors:
// ErrOutOfRange, ErrState if the group is there and not cancelled, ErrGeneration.
func (p *Machine) Subscribe(c Config, b Begin) (g *GroupState, start int64, gap bool, err error) {
	if b.Start > p.end {
		return nil, 0, false, ErrOutOfRange
	}
	if old := p.Group(c.Name); old != nil {
		if old.state != Cancelled {
			return nil, 0, false, ErrState
		}
		if c.Generation <= old.config.Generation {
			return nil, 0, false, ErrGeneration
		}
		p.remove(old)
	}
	p.hold(b.Start)
	g = p.add(c, Active)
	g.start = max(b.Start, p.start)
	g.claim(g.start, b.Backfill)
	if b.Rest {
		complete := p.complete()
		g.readable.Subtract(&complete)
	}
	g.rebuild()
	return g, g.start, b.Start < p.start, nil
}

// add adds a group that is to receive nothing.
func (p *Machine) add(c Config, s State) *GroupState {
	g := &GroupState{
		p: p, state: s, start: p.start, fails: newFailureTable(),
		keys: newKeyTable(), address: commitlog.AddressOf(c.Name), counts: &Counts{},
	}
	g.setConfig(c)
	i, _ := p.find(c.Name)
	p.groups = slices.Insert(p.groups, i, g)
	return g
}

// Remove forgets a group that is cancelled or dead, and what it has not released. Its
// acknowledged positions stay complete. Error: ErrState.
func (p *Machine) Remove(g *GroupState) error {
	if g.state != Cancelled && g.state != Dead {
		return ErrState
	}
	p.remove(g)
	return nil
}

func (p *Machine) remove(g *GroupState) {
	g.abandon()
	p.settle()
	p.filters.Release(g.filter)
	for _, m := range g.members {
		p.filters.Release(m.filter)
		m.gone = true
	}
	g.members = nil
	i, _ := p.find(g.config.Name)
	p.groups = slices.Delete(p.groups, i, i+1)
}

// TakeLost appends what members have lost since the last call other than by Detach.
func (p *Machine) TakeLost(dst []Lost) []Lost {
	for _, l := range p.lost {
		if !l.Member.gone {
			dst = append(dst, l)
		}
	}
	clear(p.lost)
	p.lost = p.lost[:0]
	return dst
}

func (p *Machine) lose(l *lease[*Member]) {
	if n := len(p.lost); n > 0 && p.lost[n-1].Member == l.Owner && p.lost[n-1].To == l.From {
		p.lost[n-1].To = l.To
		return
	}
	p.lost = append(p.lost, Lost{l.Owner, l.From, l.To})
}
