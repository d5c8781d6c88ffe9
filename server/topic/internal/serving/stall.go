package serving

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/topic/internal/machine"
)

// stall is what the sweep has seen of a partition of a group. The lock of the part guards it.
type stall struct {
	moved int64         // of the machine's group, at the last check
	since time.Time     // of the first check since then at which it got nothing; zero: it need not
	why   machine.Stall // once that has lasted for a lease
}

// measureProgress measures progress in a partition, and returns why the group is stalled there: it has something
// to do, a member waits for it, and nothing was delivered or settled for the length of a lease. polled
// and receiving are what asked returned.
func (g *Group) measureProgress(n int, now, polled time.Time, receiving bool) machine.Stall {
	var moved int64
	var why machine.Stall
	var lease time.Duration
	recent := false // a poll that got nothing
	g.cfg.Parts[n].Do(func(m *machine.Machine) {
		if h := m.Group(g.cfg.Name); h != nil {
			lease = h.Config().Lease
			recent = !polled.IsZero() && now.Sub(polled) <= lease
			moved, why = h.Moved(), h.Stalled(recent)
		}
	})
	if why != machine.AtBound && !recent && !receiving { // members that do not read end as slow
		why = machine.Flowing
	}
	p := &g.parts[n]
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case why == machine.Flowing || moved != p.stall.moved:
		p.stall = stall{moved: moved}
	case p.stall.since.IsZero():
		p.stall.since = now
	case now.Sub(p.stall.since) >= lease+sweepEvery:
		p.stall.why = why
	}
	return p.stall.why
}

// stallReasons are the names of the machine's reasons on the wire.
var stallReasons = map[machine.Stall]topicv1.StallReason{
	machine.AtBound:      topicv1.StallReason_STALL_REASON_AT_BOUND,
	machine.Undelivered:  topicv1.StallReason_STALL_REASON_UNDELIVERED,
	machine.KeysHeld:     topicv1.StallReason_STALL_REASON_KEYS_HELD,
	machine.SuspectsHeld: topicv1.StallReason_STALL_REASON_SUSPECTS_HELD,
}

// Stalls returns the partitions in which the group gets nothing, as the last sweep saw them. A group without
// members has none.
func (g *Group) Stalls() (stalls []*topicv1.Stall) {
	if g.Members() == 0 {
		return nil
	}
	for n := range g.parts {
		p := &g.parts[n]
		p.mu.Lock()
		seen := p.stall
		p.mu.Unlock()
		if seen.why != machine.Flowing {
			stalls = append(stalls, &topicv1.Stall{Partition: int32(n), Reason: stallReasons[seen.why],
				Since: timestamppb.New(seen.since), Text: seen.why.String()})
		}
	}
	return stalls
}

// asked returns when a session last got nothing from a poll, of those that got nothing from their
// last one, zero if there are none; and whether a session waits for an event.
func (g *Group) asked() (polled time.Time, receiving bool) {
	latest := int64(0)
	for _, s := range g.Sessions() {
		latest = max(latest, s.empty.Load())
		s.mu.Lock()
		receiving = receiving || s.inside > 0
		s.mu.Unlock()
	}
	if latest > 0 {
		polled = time.Unix(0, latest)
	}
	return polled, receiving
}
