package group

import (
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/parley-chat/parley/server/internal/racetest"
)

// mistake is a way to be wrong that the explorer must notice.
type mistake struct {
	name    string
	finds   string                                 // part of what must be said
	request func(w *world, req kmsg.Request)       // changes what the machine is asked
	state   func(w *world)                         // changes the machine after an input
	reply   func(w *world, r reply) []reply        // changes an answer
	restart func(w *world, before, after *machine) // changes a new machine
	deaf    bool                                   // the machine does not learn that connections end
	asleep  bool                                   // it is not woken
}

// asMember makes a commit one of a member of the group, if its sender is none.
func asMember(w *world, req kmsg.Request, which func(c *kmsg.OffsetCommitRequest, g *group, x *member) bool) {
	c, ok := req.(*kmsg.OffsetCommitRequest)
	if !ok || w.m.groups[c.Group] == nil {
		return
	}
	g := w.m.groups[c.Group]
	if g.state == completing {
		return
	}
	if g.find(c.MemberID) != nil {
		return
	}
	for _, x := range g.members {
		if which(c, g, x) {
			c.MemberID, c.InstanceID, c.Generation = x.id, nil, g.generation
			return
		}
	}
}

// replies changes the answers of one kind.
func replies[R kmsg.Response](change func(w *world, r R) int) func(*world, reply) []reply {
	return func(w *world, r reply) []reply {
		n := 1
		if body, ok := r.body.(R); ok {
			n = change(w, body)
		}
		return []reply{r, r}[:n]
	}
}

// answerEarly answers requests of a kind without waiting for the store.
func answerEarly[R kmsg.Request](w *world) {
	left := w.m.waiting[:0:0]
	for _, one := range w.m.waiting {
		c := w.calls[one.token]
		if c == nil {
			left = append(left, one)
			continue
		}
		if _, ok := c.req.(R); ok {
			w.m.reply(one.token, one.answer(false))
		} else {
			left = append(left, one)
		}
	}
	w.m.waiting = left
}

var mistakes = []mistake{
	{name: "commits of older generations are accepted", finds: "of an older generation is accepted",
		request: func(w *world, req kmsg.Request) {
			if c, ok := req.(*kmsg.OffsetCommitRequest); ok && w.m.groups[c.Group] != nil {
				c.Generation = w.m.groups[c.Group].generation
			}
		}},
	{name: "commits of members that are gone are accepted", finds: "is accepted",
		request: func(w *world, req kmsg.Request) {
			asMember(w, req, func(*kmsg.OffsetCommitRequest, *group, *member) bool { return true })
		}},
	{name: "a static member that was replaced may commit", finds: "is accepted",
		request: func(w *world, req kmsg.Request) {
			asMember(w, req, func(c *kmsg.OffsetCommitRequest, _ *group, x *member) bool {
				return c.InstanceID != nil && x.instance != nil && *c.InstanceID == *x.instance
			})
		}},
	{name: "members survive a restart", finds: "from before a restart is accepted",
		restart: func(_ *world, before, after *machine) {
			for name, g := range before.groups {
				if to := after.groups[name]; to != nil && g.state == stable {
					to.members, to.state, to.generation = g.members, stable, g.generation
					to.kind, to.protocol, to.leader = g.kind, g.protocol, g.leader
					after.touched(to)
				}
			}
		}},
	{name: "generations are counted from the start after a restart", finds: "after generation",
		restart: func(_ *world, _, after *machine) {
			for _, g := range after.groups {
				g.generation = 0
			}
		}},
	{name: "a rebalance does not raise the generation", finds: "generation 1",
		state: func(w *world) {
			for _, g := range w.m.groups {
				if g.state == completing {
					g.generation = 1
				}
			}
		},
		reply: replies(func(_ *world, r *kmsg.JoinGroupResponse) int {
			if r.ErrorCode == 0 {
				r.Generation = 1
			}
			return 1
		})},
	{name: "a commit is answered before it is durable", finds: "the committed offset is",
		state: answerEarly[*kmsg.OffsetCommitRequest]},
	{name: "a fetch does not wait for commits", finds: "a fetch missed commit",
		state: answerEarly[*kmsg.OffsetFetchRequest]},
	{name: "a commit that could not be stored is answered as one that was", finds: "the committed offset is",
		reply: replies(func(_ *world, r *kmsg.OffsetCommitResponse) int {
			for i := range r.Topics[0].Partitions {
				if p := &r.Topics[0].Partitions[i]; p.ErrorCode == kerr.CoordinatorNotAvailable.Code {
					p.ErrorCode = 0
				}
			}
			return 1
		})},
	{name: "a fetched offset is the next one", finds: "the committed offset is",
		reply: replies(func(_ *world, r *kmsg.OffsetFetchResponse) int {
			if p := &r.Groups[0].Topics[0].Partitions[0]; p.Offset >= 0 {
				p.Offset++
			}
			return 1
		})},
	{name: "partitions share an offset", finds: "",
		request: func(_ *world, req kmsg.Request) {
			if c, ok := req.(*kmsg.OffsetCommitRequest); ok && len(c.Topics[0].Partitions) > 1 {
				c.Topics[0].Partitions[1].Offset = c.Topics[0].Partitions[0].Offset
			}
		}},
	{name: "offsets of a group with members expire", finds: "the committed offset is -1",
		state: func(w *world) {
			for _, g := range w.m.groups {
				for p, o := range g.offsets {
					if g.state == stable && w.m.stamped-o.committed > exploreKept {
						delete(g.offsets, p)
					}
				}
			}
		}},
	{name: "the time without members counts from the last commit", finds: "",
		state: func(w *world) {
			for _, g := range w.m.groups {
				if g.state == empty && g.empty > 1 {
					g.empty = 1
					g.expiry = w.m.firstExpiry(g)
					w.m.touched(g)
				}
			}
		}},
	{name: "an answer is lost", finds: "has no answer",
		reply: replies(func(w *world, _ *kmsg.SyncGroupResponse) int { return min(1, w.rng.IntN(5)) })},
	{name: "an answer is given twice", finds: "an answer to nobody",
		reply: replies(func(*world, *kmsg.HeartbeatResponse) int { return 2 })},
	{name: "requests without a connection are answered", finds: "an answer to nobody", deaf: true},
	{name: "sessions do not end", finds: "",
		state: func(w *world) {
			for _, g := range w.m.groups {
				for _, x := range g.members {
					x.until = never
				}
				g.syncBy = never
				w.m.touched(g)
			}
		}},
	{name: "nothing is done later", finds: "without faults", asleep: true},
	{name: "a leader that leaves stays the leader", finds: "",
		state: func(w *world) {
			for _, g := range w.m.groups {
				if g.state == completing && len(g.members) > 1 && w.one(3) {
					g.leader = "gone"
				}
			}
		}},
	{name: "the leader is not told of the others", finds: "was not told of",
		reply: replies(func(_ *world, r *kmsg.JoinGroupResponse) int {
			if len(r.Members) > 1 {
				r.Members = r.Members[:1]
			}
			return 1
		})},
	{name: "members get each other's assignments", finds: "the leader's is",
		request: func(_ *world, req kmsg.Request) {
			if s, ok := req.(*kmsg.SyncGroupRequest); ok && len(s.GroupAssignment) > 1 {
				a := s.GroupAssignment
				a[0].MemberAssignment, a[1].MemberAssignment = a[1].MemberAssignment, a[0].MemberAssignment
			}
		}},
}

// The explorer finds each of the seeded mistakes.
func TestSeededMistakes(t *testing.T) {
	racetest.SkipSerial(t)
	for _, b := range mistakes {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			for seed := uint64(1); seed <= within; seed++ {
				failed := explore(seed, &b, nil)
				if failed == "" {
					continue
				}
				if !strings.Contains(failed, b.finds) {
					t.Errorf("another mistake than the one that was made:\n%s", explain(seed, &b))
				}
				t.Logf("seed %d: %s", seed, failed)
				return
			}
			t.Fatalf("not found in %d schedules", within)
		})
	}
}
