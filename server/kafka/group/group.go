package group

import (
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// state is the state of a group.
type state uint8

const (
	empty      state = iota // it has no members
	preparing               // waits until its members have joined
	completing              // waits for the leader's assignment
	stable                  // members have their assignments
	dead                    // its rows are being removed
)

// String returns the name that requests and answers have for the state.
func (s state) String() string {
	return [...]string{"Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead"}[s]
}

// group is a consumer group.
type group struct {
	header
	name     string
	state    state
	leader   string // id, or ""
	protocol string // that all members use in this generation
	members  []*member
	pending  []pendingMember
	offsets  map[partitionKey]offset // that are durable
	bytes    int                     // of members and assignments
	assigned int                     // bytes of assignments, of those

	joinBy     time.Duration // when preparing ends, or never
	initial    bool          // preparing began when the group was empty
	initialEnd time.Duration // when no new member can prolong it any more
	newMember  bool          // one came since joinBy was set
	syncBy     time.Duration // when members that have not asked for their assignment are removed, or never
	expiry     time.Duration // stamp at which an offset, or the empty group, may expire; for an empty group
	retry      time.Duration // elapsed time before which expiry is not tried again

	persisted   bool                  // the store has its row and those of its offsets
	unknown     int                   // writes whose outcome is not known
	headerWrite uint64                // the last write of its row
	offsetWrite uint64                // the last write of one of its offsets
	offsetBytes int                   // of offsets, and of those in such writes
	inflight    map[partitionKey]int  // offsets in such writes, and in how many
	erasing     map[partitionKey]bool // offsets whose removal is in such a write
	stray       map[partitionKey]bool // offsets that are not, but may be in the store, since their writes failed

	next  time.Duration // see nextTime
	index int           // in the queue, or -1
}

// pendingMember was given an id and has not joined with it.
type pendingMember struct {
	id    string
	until time.Duration
}

// waiter is a request that waits for the group.
type waiter struct {
	token   uint64 // 0 if its connection ended
	version int16
}

type protocol struct {
	name     string
	metadata []byte
}

// member is a member of a group.
type member struct {
	id         string
	instance   *string // of a static member
	client     Client
	session    time.Duration
	rebalance  time.Duration
	protocols  []protocol
	assignment []byte
	bytes      int // of all but the assignment

	joining, syncing bool // waits for an answer
	join, sync       waiter
	fresh            bool // has not been in a generation
	unaware          bool // does not know its id
	unsynced         bool // has not asked for its assignment
	until            time.Duration
}

// find returns the member with the id, or nil.
func (g *group) find(id string) *member {
	for _, x := range g.members {
		if x.id == id {
			return x
		}
	}
	return nil
}

// static returns the member with the instance id, or nil.
func (g *group) static(instance string) *member {
	for _, x := range g.members {
		if x.instance != nil && *x.instance == instance {
			return x
		}
	}
	return nil
}

func (g *group) isPending(id string) bool {
	return slices.ContainsFunc(g.pending, func(p pendingMember) bool { return p.id == id })
}

// pendingBytes is what a pending member is counted with.
const pendingBytes = 512

// unpend removes pending members, and reports whether there were any.
func (m *machine) unpend(g *group, which func(pendingMember) bool) bool {
	n := len(g.pending)
	g.pending = slices.DeleteFunc(g.pending, which)
	m.count(g, pendingBytes*(len(g.pending)-n))
	return len(g.pending) < n
}

func (m *machine) unpendID(g *group, id string) bool {
	return m.unpend(g, func(p pendingMember) bool { return p.id == id })
}

// check returns the member that a request comes from, or the code that refuses the request.
func (g *group) check(id string, instance *string) (*member, int16) {
	if instance != nil {
		x := g.static(*instance)
		if x == nil {
			return nil, kerr.UnknownMemberID.Code
		}
		if x.id != id {
			return nil, kerr.FencedInstanceID.Code
		}
		return x, 0
	}
	if x := g.find(id); x != nil {
		return x, 0
	}
	return nil, kerr.UnknownMemberID.Code
}

// rebalanceTimeout is the longest of all members.
func (g *group) rebalanceTimeout() (d time.Duration) {
	for _, x := range g.members {
		d = max(d, x.rebalance)
	}
	return d
}

func (x *member) supports(name string) bool {
	return slices.ContainsFunc(x.protocols, func(p protocol) bool { return p.name == name })
}

func (x *member) metadata(name string) []byte {
	for _, p := range x.protocols {
		if p.name == name {
			return p.metadata
		}
	}
	return nil
}

// common reports whether all members have the protocol.
func (g *group) common(name string) bool {
	return !slices.ContainsFunc(g.members, func(x *member) bool { return !x.supports(name) })
}

// supports reports whether a member with the protocols may join.
func (g *group) supports(kind string, protocols []kmsg.JoinGroupRequestProtocol) bool {
	if kind == "" || len(protocols) == 0 {
		return false
	}
	if len(g.members) == 0 {
		return true
	}
	return g.kind == kind && slices.ContainsFunc(protocols, func(p kmsg.JoinGroupRequestProtocol) bool {
		return g.common(p.Name)
	})
}

// choose returns the protocol that most members like best of those that all have; of equals, the first member's.
func (g *group) choose() string {
	var common []string
	for _, p := range g.members[0].protocols {
		if g.common(p.name) {
			common = append(common, p.name)
		}
	}
	votes := map[string]int{}
	for _, x := range g.members {
		for _, p := range x.protocols {
			if slices.Contains(common, p.name) {
				votes[p.name]++
				break
			}
		}
	}
	best := ""
	for _, name := range common {
		if votes[name] > votes[best] {
			best = name
		}
	}
	return best
}

// nextTime returns when something of the group is due, or never.
func (g *group) nextTime(m *machine) time.Duration {
	if g.state == dead {
		return never
	}
	next := min(g.joinBy, g.syncBy)
	for _, p := range g.pending {
		next = min(next, p.until)
	}
	for _, x := range g.members {
		if x.expires() {
			next = min(next, x.until)
		}
	}
	if g.state == empty && g.expiry > 0 {
		next = min(next, max(g.retry, m.now+max(0, g.expiry-m.stamped)))
	}
	return next
}

// expires reports whether the session of a member can end now. That of a member that waits for the group cannot, unless
// the member is new: whether it waits still is then not known.
func (x *member) expires() bool { return x.fresh || (!x.joining && !x.syncing) }

// due does what is due in a group.
func (m *machine) due(g *group) {
	unpended := m.unpend(g, func(p pendingMember) bool { return p.until <= m.now })
	members := len(g.members)
	for _, x := range slices.Clone(g.members) {
		if x.expires() && x.until <= m.now {
			m.remove(g, x, kerr.UnknownMemberID.Code)
		}
	}
	switch {
	case len(g.members) < members:
		m.reduced(g)
	case unpended:
		m.tryComplete(g)
	}
	if g.syncBy <= m.now {
		m.expireSync(g)
	}
	if g.joinBy <= m.now {
		m.joinTimeout(g)
	}
	if g.state == empty && g.expiry > 0 && g.expiry <= m.stamped && g.retry <= m.now {
		m.expire(g)
	}
}

// remove removes a member. Its waiting requests are answered with the code. The caller calls
// reduced.
func (m *machine) remove(g *group, x *member, code int16) {
	m.refuseJoin(x, code)
	m.refuseSync(x, code)
	g.members = slices.DeleteFunc(g.members, func(y *member) bool { return y == x })
	m.count(g, -x.bytes-len(x.assignment))
	g.assigned -= len(x.assignment)
	if g.leader == x.id {
		g.leader = ""
		if len(g.members) > 0 {
			g.leader = g.members[0].id
		}
	}
}

// count adds to the bytes of a group.
func (m *machine) count(g *group, bytes int) {
	g.bytes += bytes
	m.bytes += bytes
}

// reduced does what follows when members were removed: the others rebalance, or need not wait for them.
func (m *machine) reduced(g *group) {
	switch g.state {
	case preparing:
		m.tryComplete(g)
	case stable, completing:
		m.prepare(g)
	case empty, dead:
	}
}
