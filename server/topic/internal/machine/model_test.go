package machine

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
)

// The model keeps, for each message, sets of groups: who is to receive it, who may read
// it, who has acknowledged it. It does everything message by message.

// record is a message of the model, or a position that does not exist.
type record struct {
	position  int64
	key, kind string
	to        string // the only group that it is for; empty: all
	void      bool
	ends      time.Time // when its time is over; zero: never
	// postponed says that it waits for a time: it may be due, and is due.
	postponed       bool
	dueFrom, dueAll time.Time
	required        map[*modelGroup]bool
	readable        map[*modelGroup]bool
	acked           map[*modelGroup]bool
	history         map[*modelGroup]bool // has it of a backfill
	settled         bool                 // was complete when a group went that shows it
	owed            map[*modelGroup]bool // the log is kept for it
	ever            map[*modelGroup]bool // it was due, at some time
	lost            map[*modelGroup]Cause
}

func (r *record) complete() bool {
	if r.settled {
		return true
	}
	for g := range r.required {
		if !r.acked[g] {
			return false
		}
	}
	return len(r.required) > 0
}

// modelGroup is a generation of a group.
type modelGroup struct {
	config      Config
	kind        string // accepts this kind only, unless it is empty
	state       State
	start       int64
	fails       map[int64]fail
	leases      map[int64]loan
	dying       map[int64]bool
	deadLetters map[int64]bool // of those that die, nobody has fetched these
	moves       int64
	owes        bool   // what is published is owed to it, which is dead
	gone        Ledger // of what the log has no longer
	// suspects were with a member that ended abnormally.
	suspects map[int64]bool
	members  []*modelMember
	bound    *bound
	saved    *snapshot
	real     *GroupState
}

type fail struct {
	attempts        int
	dueFrom, dueAll time.Time // may be due, is due
}

type loan struct {
	member      *modelMember
	end, surely time.Time // it does not end before, and ends then
	deadline    int64     // as the machine counts
	order       int       // of the delivery among those of the member
}

type modelMember struct {
	g    *modelGroup
	name string
	kind string
	lost map[int64]bool
	real *Member

	order     int // deliveries
	guessed   int // deliveries up to here were guessed about
	elsewhere int // messages in other partitions
	hidden    int64
}

// snapshot is what a saved cursor says.
type snapshot struct {
	bytes                     []byte
	end                       int64 // positions from here on are required if open
	open                      bool
	start                     int64
	required, readable, acked map[int64]bool
	history                   map[int64]bool
	fails                     map[int64]fail
	moves                     int64
	owed, ever                map[int64]bool
	lost                      map[int64]Cause
	owes                      bool
	gone                      Ledger
	from                      int64 // the log's start
}

type model struct {
	start, end int64
	records    []*record // from start on
	groups     []*modelGroup
	watermark  int64
}

func (m *model) at(p int64) *record { return m.records[p-m.start] }

func (m *model) publish(r *record) {
	r.position = m.end
	r.required, r.readable, r.acked = map[*modelGroup]bool{}, map[*modelGroup]bool{}, map[*modelGroup]bool{}
	r.history, r.owed, r.ever = map[*modelGroup]bool{}, map[*modelGroup]bool{}, map[*modelGroup]bool{}
	r.lost = map[*modelGroup]Cause{}
	for _, g := range m.groups {
		if g.state == Active || g.state == Paused {
			r.required[g], r.readable[g], r.ever[g] = true, true, true
		} else if g.state == Dead && g.owes {
			r.owed[g], r.ever[g] = true, true
		}
	}
	m.records = append(m.records, r)
	m.end++
}

// claim is the rule of everyone who begins, comes back or moves.
func (m *model) claim(g *modelGroup, from int64, hold bool) int64 {
	n := int64(0)
	for _, r := range m.records {
		if r.position < from || r.acked[g] {
			continue
		}
		n++
		r.readable[g] = true
		r.regain(g)
		if hold && !r.complete() {
			r.required[g], r.ever[g] = true, true
		}
	}
	return n
}

// missed returns from where on a group reads that comes back with the newest most of the positions that it has not
// acknowledged since it began; negative: all.
func (m *model) missed(g *modelGroup, limit int64) int64 {
	from := m.end
	for _, r := range slices.Backward(m.records) {
		if limit == 0 || r.position < max(g.start, m.start) {
			break
		}
		if !r.acked[g] {
			from = r.position
			limit--
		}
	}
	return from
}

// drop takes a group off what it has not acknowledged before a position.
func (m *model) drop(g *modelGroup, to int64) int64 {
	n := int64(0)
	for _, r := range m.records {
		if r.position < to && !r.acked[g] {
			if r.required[g] {
				n++
			}
			delete(r.required, g)
			delete(r.readable, g)
			delete(r.history, g)
		}
	}
	return n
}

func (m *model) settle() {
	for _, r := range m.records {
		r.settled = r.complete()
	}
}

// loseLeases ends the leases of a group below a position.
func (g *modelGroup) loseLeases(below int64) {
	for p, l := range g.leases {
		if p < below {
			l.member.lost[p] = true
			delete(g.leases, p)
		}
	}
}

func (g *modelGroup) reset() {
	g.loseLeases(1 << 62)
	clear(g.fails)
	clear(g.dying)
	clear(g.deadLetters)
	clear(g.suspects)
}

// tried reports whether a message was delivered and has come back for more than a moment.
func (g *modelGroup) tried(r *record) bool {
	return g.fails[r.position].attempts > 0 || g.suspects[r.position]
}

func (m *model) trim(start int64) {
	m.trimLedgers(start)
	for _, g := range m.groups {
		for p := m.start; p < start; p++ {
			delete(g.leases, p)
			delete(g.fails, p)
			delete(g.dying, p)
			delete(g.deadLetters, p)
			delete(g.suspects, p)
			for _, member := range g.members {
				delete(member.lost, p)
			}
		}
		g.start = max(g.start, start)
	}
	m.records = m.records[start-m.start:]
	m.start = start
}

// acknowledge says that a group is done with a message.
func (m *model) acknowledge(g *modelGroup, p int64) {
	m.at(p).acked[g] = true
	delete(g.fails, p)
	delete(g.suspects, p)
}

// failed counts an attempt.
func (m *model) failed(g *modelGroup, p int64, delay time.Duration, now time.Time) {
	f := g.fails[p]
	f.attempts++
	if delay >= 0 {
		f.dueFrom, f.dueAll = now.Add(delay), now.Add(delay)
	} else {
		pause := min(g.config.InitialBackoff<<(f.attempts-1), g.config.MaxBackoff)
		f.dueFrom, f.dueAll = now.Add(pause*4/5), now.Add(pause*6/5)
	}
	g.fails[p] = f
	if f.attempts < g.config.MaxAttempts {
		return
	}
	switch g.config.Exhausted {
	case Discard:
		m.acknowledge(g, p)
	case DeadLetter:
		g.dying[p], g.deadLetters[p] = true, true
	}
}

// dieAgain makes dead letters again of what had failed too often before a crash.
func (m *model) dieAgain(g *modelGroup) {
	if g.config.Exhausted != DeadLetter || (g.state != Active && g.state != Paused) {
		return
	}
	for _, r := range m.records {
		if g.fails[r.position].attempts >= g.config.MaxAttempts && r.reads(g) && !r.acked[g] {
			g.dying[r.position], g.deadLetters[r.position] = true, true
		}
	}
}

// takers lists the members that a message may go to, by name.
func (g *modelGroup) takers(r *record) []*modelMember {
	var list []*modelMember
	if g.kind != "" && g.kind != r.kind || r.to != "" && r.to != g.config.Name {
		return nil
	}
	for _, m := range g.members {
		if m.kind == "" || m.kind == r.kind {
			list = append(list, m)
		}
	}
	slices.SortFunc(list, func(a, b *modelMember) int { return strings.Compare(a.name, b.name) })
	return list
}

// pinned is the lowest position that is held, the end if none is.
func (m *model) pinned() int64 {
	for _, r := range m.records {
		for g := range r.required {
			if !r.acked[g] && g.holds() {
				return r.position
			}
		}
	}
	return m.end
}

func (m *model) floor(g *modelGroup) (int64, bool) {
	for _, r := range m.records {
		if r.readable[g] && !r.acked[g] {
			return r.position, true
		}
	}
	return m.end, g.state == Active || g.state == Paused
}

// save is what a cursor written now says.
func (m *model) save(g *modelGroup) {
	s := &snapshot{
		bytes: g.real.AppendCursor(nil), end: m.end, open: g.state == Active || g.state == Paused, start: g.start,
		required: map[int64]bool{}, readable: map[int64]bool{}, acked: map[int64]bool{}, history: map[int64]bool{},
		fails: map[int64]fail{},
	}
	for _, r := range m.records {
		if r.required[g] {
			s.required[r.position] = true
		}
		if r.readable[g] {
			s.readable[r.position] = true
		}
		if r.acked[g] {
			s.acked[r.position] = true
		}
		if r.history[g] {
			s.history[r.position] = true
		}
	}
	s.moves = g.moves
	m.saveLedger(g, s)
	for p, f := range g.fails {
		f.dueAll = f.dueAll.Add(100 * time.Millisecond)
		s.fails[p] = f
	}
	g.saved = s
}

// restore makes the group what its cursor says.
func (m *model) restore(g *modelGroup) {
	s := g.saved
	g.start, g.moves = max(s.start, m.start), s.moves
	g.members, g.leases, g.dying, g.deadLetters = nil, map[int64]loan{}, map[int64]bool{}, map[int64]bool{}
	g.fails, g.suspects, g.bound = map[int64]fail{}, map[int64]bool{}, newBound(g.bound.limit)
	for p, f := range s.fails {
		if p >= m.start {
			g.fails[p] = f
		}
	}
	m.restoreLedger(g)
	set := func(to map[*modelGroup]bool, yes bool) {
		if delete(to, g); yes {
			to[g] = true
		}
	}
	for _, r := range m.records {
		later := r.position >= s.end && s.open
		set(r.required, s.required[r.position] || later)
		set(r.readable, s.readable[r.position] || later)
		set(r.acked, s.acked[r.position])
		set(r.history, s.history[r.position])
	}
}

// open is how many messages of a group are certainly open: members have them, or they failed. One
// more is about to be.
func (m *model) open(g *modelGroup, more int64) (n int) {
	for _, r := range m.records {
		p := r.position
		if r.reads(g) && !r.acked[g] && (g.leases[p].member != nil || g.fails[p].attempts > 0 || p == more) {
			n++
		}
	}
	return n
}

// unacked is how many messages can be open at most.
func (m *model) unacked(g *modelGroup) (n int) {
	for _, r := range m.records {
		if r.reads(g) && !r.acked[g] {
			n++
		}
	}
	return n
}

// compare says how the machine differs from the model, "" if it does not.
func (m *model) compare(p *Machine) string {
	for _, g := range m.groups {
		for _, r := range m.records {
			o := r.position
			if got, want := g.real.required.Contains(o), r.required[g]; got != want {
				return fmt.Sprintf("%s is required for %d: %v, should be %v", g.config.Name, o, got, want)
			}
			if got, want := g.real.readable.Contains(o), r.readable[g]; got != want {
				return fmt.Sprintf("%s reads %d: %v, should be %v", g.config.Name, o, got, want)
			}
			if got, want := g.real.history.Set.Contains(o), r.history[g]; got != want {
				return fmt.Sprintf("%s has %d of a backfill: %v, should be %v", g.config.Name, o, got, want)
			}
			if got, want := g.real.acked.Contains(o), r.acked[g]; got != want {
				return fmt.Sprintf("%s has acknowledged %d: %v, should be %v", g.config.Name, o, got, want)
			}
			if got, want := g.real.leases.Has(o), g.leases[o].member != nil; got != want {
				return fmt.Sprintf("%s has %d under way: %v, should be %v", g.config.Name, o, got, want)
			}
		}
		if why := m.compareGroup(g); why != "" {
			return why
		}
		if why := m.compareLedger(g); why != "" {
			return why
		}
	}
	done := p.complete()
	for _, r := range m.records {
		if got, want := done.Contains(r.position), r.complete(); got != want {
			return fmt.Sprintf("%d is complete: %v, should be %v", r.position, got, want)
		}
	}
	if why := m.compareStatus(p); why != "" {
		return why
	}
	m.watermark = max(m.watermark, m.pinned())
	if got := p.Watermark(); got != m.watermark {
		return fmt.Sprintf("watermark %d, should be %d", got, m.watermark)
	}
	return ""
}

// compareStatus asks for the status of some message.
func (m *model) compareStatus(p *Machine) string {
	if len(m.records) == 0 {
		return ""
	}
	r := m.records[int(m.end*7919)%len(m.records)]
	var want Status
	for _, g := range m.groups {
		if r.required[g] {
			want.Required = append(want.Required, g.config.Name)
		}
		if r.acked[g] {
			want.Acknowledged = append(want.Acknowledged, g.config.Name)
		}
		want.InFlight = want.InFlight || g.leases[r.position].member != nil
	}
	want.Complete = r.complete()
	if got := p.Status(r.position); !reflect.DeepEqual(got, want) {
		return fmt.Sprintf("status of %d: %+v, should be %+v", r.position, got, want)
	}
	return ""
}

func (m *model) compareGroup(g *modelGroup) string {
	if f, ok := m.floor(g); ok && g.real.Floor() != f {
		return fmt.Sprintf("%s has its floor at %d, should be %d", g.config.Name, g.real.Floor(), f)
	}
	if got, want := g.real.open, g.real.countOpen(); got != want {
		return fmt.Sprintf("%s counts %d that are open, should be %d", g.config.Name, got, want)
	}
	s := g.real.Stats()
	pending, failures := int64(0), 0
	for _, r := range m.records {
		if !r.acked[g] && (r.required[g] || r.owed[g] && g.state != Dead) {
			pending++
		}
		if g.fails[r.position].attempts > 0 {
			failures++
		}
		if got, want := g.real.fails.Get(r.position).Attempts, g.fails[r.position].attempts; got != want {
			return fmt.Sprintf("%s counts %d attempts of %d, should be %d", g.config.Name, got, r.position, want)
		}
		if got, want := g.real.suspects.Contains(r.position), g.suspects[r.position]; got != want && r.reads(g) {
			return fmt.Sprintf("%s: %d is suspect: %v, should be %v", g.config.Name, r.position, got, want)
		}
		if got, want := g.real.fails.Dying.Contains(r.position), g.dying[r.position]; got != want {
			return fmt.Sprintf("%s has a letter of %d: %v, should be %v", g.config.Name, r.position, got, want)
		}
	}
	if least := m.open(g, -1); g.real.open < int64(least) {
		return fmt.Sprintf("%s counts %d that are open, %d certainly are", g.config.Name, g.real.open, least)
	}
	if s.Pending != pending || s.InFlight != int64(len(g.leases)) || g.real.fails.Len() != failures {
		return fmt.Sprintf("%s: %+v, should be %d pending, %d in flight, %d failures",
			g.config.Name, s, pending, len(g.leases), failures)
	}
	return ""
}
