package machine

import "slices"

// Stall says why a group gets nothing although it has something to do and a member waits for it. It
// is a state of a moment: it means something if nothing moves for the length of a lease.
type Stall int

// Why a group gets nothing.
const (
	Flowing      Stall = iota // it need not, or nothing keeps it from it
	AtBound                   // as many messages are open as may be, see MaxOpen
	Undelivered               // messages are ready, and a member has credits
	KeysHeld                  // all that is left waits behind messages of the same key, which members have
	SuspectsHeld              // suspects wait until a member has nothing, and the members keep what they have
)

// String returns what an operator reads.
func (s Stall) String() string {
	switch s {
	case AtBound:
		return "as many messages are open as may be: acknowledge, unpark or discard some"
	case Undelivered:
		return "messages are ready and a member has credits: restart the server that has the topic, and report this"
	case KeysHeld:
		return "messages wait for keys whose messages a member extends and does not acknowledge"
	case SuspectsHeld:
		return "messages of a member that ended abnormally wait for a member that has no other messages: " +
			"the members extend theirs and do not acknowledge them"
	}
	return ""
}

// Moved changes with every message that is delivered, acknowledged or over, or has failed.
func (g *GroupState) Moved() int64 { return g.delivered + g.processed + g.failed + g.expired }

// Stalled says why the group gets nothing now. polled says that a member asks again and again, whose
// credits come with each question. It costs O(keys) if messages wait for keys, and O(members).
func (g *GroupState) Stalled(polled bool) Stall {
	if g.state != Active || len(g.members) == 0 {
		return Flowing
	}
	if at, some := g.ready.Next(g.reached); some && g.there(at) && g.room() <= 0 {
		return AtBound
	}
	if d := g.draining.member; d != nil && (polled || d.budget.Awaits()) {
		return SuspectsHeld
	}
	if g.full() { // as it was asked for: the members have their messages
		return Flowing
	}
	if !polled && !slices.ContainsFunc(g.members, func(m *Member) bool { return m.budget.idle() }) {
		return Flowing
	}
	if at, some := g.ready.First(); some && g.there(at) {
		return Undelivered
	}
	if g.keys.Blocks(g.leases.Has) {
		return KeysHeld
	}
	return Flowing
}

// there reports whether a position can be delivered: it is not being written.
func (g *GroupState) there(position int64) bool {
	_, residence := g.p.source.At(position)
	return position < g.p.end && residence != Beyond
}
