package machine

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// bug is a way to be wrong that the model must notice. It does its work on the machine
// before or after an operation.
type bug struct {
	name          string
	before, after string // the operation
	do            func(w *world, g *modelGroup, m *modelMember)
	limit         func(w *world, c Cutoffs, limit int64) int64
	finds         string // part of what must be said
}

// all are the positions from the start to the end.
func (w *world) all() Set {
	return SetOf(Run{From: w.m.start, To: w.m.end})
}

// resave makes the saved cursor of a group one that was written in another state.
func resave(g *modelGroup, change func(g *GroupState)) {
	copied := *g.real
	copied.acked, copied.required = g.real.acked.Clone(), g.real.required.Clone()
	change(&copied)
	g.saved.bytes = copied.AppendCursor(nil)
}

var bugs = []bug{
	{name: "the floor is the highest acknowledged position", after: "ack", finds: "has acknowledged",
		do: func(w *world, g *modelGroup, _ *modelMember) {
			if runs := g.real.acked.Runs(); len(runs) > 1 {
				g.real.acked.Add(runs[0].From, runs[len(runs)-1].To)
			}
		}},
	{name: "an acknowledgement counts for whoever sends it", before: "ack", finds: "",
		do: func(_ *world, _ *modelGroup, m *modelMember) {
			for i := range m.g.real.leases.All() {
				m.g.real.leases.All()[i].Owner = m.real
			}
		}},
	{name: "an acknowledgement does not end the lease", after: "ack", finds: "under way",
		do: func(w *world, g *modelGroup, m *modelMember) {
			if p, ok := g.real.acked.First(); ok && !g.real.leases.Has(p) {
				g.real.leases.Insert(leaseOf(m.real, p))
			}
		}},
	{name: "dead groups are still required", after: "die", finds: "",
		do: func(w *world, g *modelGroup, _ *modelMember) { g.real.required.Add(w.m.end, NoEnd) }},
	{name: "a release takes what is acknowledged, too", after: "release", finds: "is required for",
		do: func(_ *world, g *modelGroup, _ *modelMember) { g.real.required.Clear() }},
	{name: "a release takes one requirement of each message, whoever's", after: "release", finds: "is required for",
		do: func(w *world, g *modelGroup, _ *modelMember) {
			for _, other := range w.p.groups {
				if other != g.real && other.state == Active {
					other.required.Remove(w.m.start, w.m.end)
				}
			}
		}},
	{name: "a release does nothing", after: "release", finds: "is required for",
		do: func(w *world, g *modelGroup, _ *modelMember) {
			all := w.all()
			g.real.required.Union(&all)
		}},
	{name: "a group that begins is required for what is complete", after: "subscribe", finds: "is required for",
		do: func(w *world, g *modelGroup, _ *modelMember) { g.real.required.Union(&g.real.readable) }},
	{name: "a group that begins at the end begins at 0", after: "subscribe", finds: "",
		do: func(w *world, g *modelGroup, _ *modelMember) {
			all := w.all()
			g.real.readable.Union(&all)
			g.real.ready.Union(&all)
		}},
	{name: "a new generation has what the old one acknowledged", after: "subscribe", finds: "has acknowledged",
		do: func(w *world, g *modelGroup, _ *modelMember) {
			if g.config.Generation > 1 {
				g.real.acked = w.all()
			}
		}},
	{name: "a group that comes back is not to receive what it missed", after: "resurrect", finds: "is required for",
		do: func(w *world, g *modelGroup, _ *modelMember) { g.real.required.Remove(0, w.m.end) }},
	{name: "a group that comes back is required for what is complete", after: "resurrect", finds: "is required for",
		do: func(w *world, g *modelGroup, _ *modelMember) { g.real.required.Union(&g.real.readable) }},
	{name: "a paused group is not to receive what is published", after: "pause", finds: "is required for",
		do: func(w *world, g *modelGroup, _ *modelMember) { g.real.required.Remove(w.m.end, NoEnd) }},
	{name: "a pause counts an attempt", after: "pause", finds: "attempts of",
		do: func(w *world, g *modelGroup, _ *modelMember) {
			for _, l := range w.p.lost {
				g.real.fails.Put(l.From, Failure{Attempts: 1})
			}
		}},
	{name: "a lease that ends is no attempt", after: "expire", finds: "attempts of",
		do: func(_ *world, g *modelGroup, _ *modelMember) { g.real.fails = newFailureTable() }},
	{name: "a message whose lease ends is not handed out again", after: "expire", finds: "",
		do: func(w *world, g *modelGroup, _ *modelMember) {
			for p := range g.real.fails.All() {
				g.real.ready.Remove(p, p+1)
			}
		}},
	{name: "a retry that is due waits for Next", after: "expire", finds: "something is due after",
		do: func(w *world, g *modelGroup, _ *modelMember) {
			for p, f := range g.real.fails.All() {
				if g.real.ready.Contains(p) && f.Due > 0 && f.Due <= w.now.UnixNano() {
					g.real.ready.Remove(p, p+1)
					g.real.fails.Wait(p, f.Due)
				}
			}
		}},
	{name: "the deadline is that of the last lease", after: "next", finds: "nothing ends the lease",
		do: func(_ *world, g *modelGroup, _ *modelMember) {
			for _, l := range g.real.leases.All() {
				g.real.deadline = max(g.real.deadline, l.Deadline)
			}
		}},
	{name: "what is given back is due at once", after: "nack", finds: "before it is due",
		do: func(_ *world, g *modelGroup, _ *modelMember) {
			for p, f := range g.real.fails.All() {
				g.real.fails.Put(p, Failure{Attempts: f.Attempts})
			}
		}},
	{name: "a message is handed out to two", after: "next", finds: "",
		do: func(_ *world, g *modelGroup, _ *modelMember) {
			if all := g.real.leases.All(); len(all) > 0 {
				g.real.ready.Add(all[0].From, all[0].To)
			}
		}},
	{name: "a key is not held", before: "next", finds: "of the same key",
		do: func(_ *world, g *modelGroup, _ *modelMember) { g.real.keys = newKeyTable() }},
	{name: "a parked message does not hold its key", before: "next", finds: "of its key is parked",
		do: func(_ *world, g *modelGroup, _ *modelMember) {
			if !g.real.config.KeyOrder {
				g.real.keys = newKeyTable()
			}
		}},
	{name: "without members everything is filtered", before: "next", finds: "acknowledged by itself",
		do: func(w *world, g *modelGroup, _ *modelMember) {
			if p, ok := g.real.ready.First(); ok && len(g.members) == 0 && g.state == Active && p < w.m.end {
				d := delivery{GroupState: g.real, ready: &g.real.ready}
				d.take(p, p+1)
				d.done(p, p+1)
			}
		}},
	{name: "members are chosen in the order of their coming", before: "next", finds: "the hash of",
		do: func(_ *world, g *modelGroup, _ *modelMember) { slices.Reverse(g.real.members) }},
	{name: "what is for one group goes to all", before: "next", finds: "does not pass the filters",
		do: func(w *world, _ *modelGroup, _ *modelMember) {
			for _, b := range w.batches {
				b.Producer.ID = ""
			}
		}},
	{name: "what is for one group goes to nobody", before: "next", finds: "acknowledged by itself",
		do: func(_ *world, g *modelGroup, _ *modelMember) { g.real.address = "nobody" }},
	{name: "a group that takes the rest gets what is complete", after: "subscribe", finds: "reads",
		do: func(w *world, g *modelGroup, _ *modelMember) {
			complete := w.p.complete()
			complete.Remove(0, g.start)
			complete.Remove(w.m.end, NoEnd)
			g.real.readable.Union(&complete)
			g.real.rebuild()
		}},
	{name: "a parked message that is discarded stays", after: "discard parked", finds: "has acknowledged",
		do: func(w *world, g *modelGroup, _ *modelMember) {
			for _, r := range w.m.records {
				if r.acked[g] {
					g.real.acked.Remove(r.position, r.position+1)
				}
			}
		}},
	{name: "any number may be open", before: "next", finds: "are open than may be",
		do: func(w *world, _ *modelGroup, _ *modelMember) { w.p.maxOpen = MaxOpen }},
	{name: "what is acknowledged stays open", after: "ack", finds: "open",
		do: func(_ *world, g *modelGroup, _ *modelMember) { g.real.open = max(g.real.open, 1) }},
	{name: "what is returned is not open", after: "nack", finds: "open",
		do: func(_ *world, g *modelGroup, _ *modelMember) {
			g.real.open = g.real.countOpen() - int64(g.real.fails.Len())
		}},
	{name: "a dead letter is acknowledged before it is stored", after: "nack", finds: "",
		do: func(_ *world, g *modelGroup, _ *modelMember) {
			for _, r := range g.real.fails.Dying.Runs() {
				g.real.MarkDeadLettered(r.From)
			}
		}},
	{name: "seeking back keeps what is acknowledged", after: "seek", finds: "has acknowledged",
		do: func(w *world, g *modelGroup, _ *modelMember) { g.real.acked = w.all() }},
	{name: "seeking back makes complete messages pending", after: "seek", finds: "",
		do: func(w *world, g *modelGroup, _ *modelMember) { w.p.settled.Clear() }},
	{name: "with a group goes what it had completed", after: "remove", finds: "is complete",
		do: func(w *world, _ *modelGroup, _ *modelMember) { w.p.settled.Clear() }},
	{name: "a cursor has the floor only", after: "save", finds: "",
		do: func(_ *world, g *modelGroup, _ *modelMember) {
			resave(g, func(c *GroupState) { c.acked.Remove(c.Floor(), NoEnd) })
		}},
	{name: "a cursor takes what is under way for acknowledged", after: "save", finds: "should be",
		do: func(_ *world, g *modelGroup, _ *modelMember) {
			resave(g, func(c *GroupState) {
				for _, l := range c.leases.All() {
					c.acked.Add(l.From, l.To)
				}
			})
		}},
	{name: "a cursor forgets the attempts", after: "save", finds: "attempts of",
		do: func(_ *world, g *modelGroup, _ *modelMember) {
			resave(g, func(c *GroupState) { c.fails = newFailureTable() })
		}},
	{name: "a cursor forgets that the group was moved", after: "save", finds: "moves",
		do: func(_ *world, g *modelGroup, _ *modelMember) { resave(g, func(c *GroupState) { c.moves = 0 }) }},
	{name: "a letter after a move is that from before", after: "seek", finds: "moves",
		do: func(_ *world, g *modelGroup, _ *modelMember) { g.real.moves-- }},
	{name: "the watermark goes back", after: "subscribe", finds: "watermark",
		do: func(w *world, _ *modelGroup, _ *modelMember) { w.p.watermark = 0 }},
	{name: "the log is trimmed whatever is held", finds: "may be trimmed",
		limit: func(_ *world, c Cutoffs, limit int64) int64 { return max(limit, c.Complete) }},
	{name: "what nobody is to receive goes as what is complete", finds: "may be trimmed",
		limit: func(w *world, c Cutoffs, _ int64) int64 {
			c.Unrequired = c.Complete
			return w.p.TrimLimit(c)
		}},
	{name: "a paused group holds nothing", before: "trim", finds: "",
		do: func(w *world, _ *modelGroup, _ *modelMember) {
			for _, g := range w.p.groups {
				g.config.HoldsPaused = false
			}
		}},
}

func leaseOf(m *Member, p int64) (l lease[*Member]) {
	l.From, l.To, l.Owner, l.Deadline = p, p+1, m, time.Unix(1<<33, 0).UnixNano()
	return l
}

// Every seeded mistake is found.
func TestSeededMistakes(t *testing.T) {
	for _, b := range slices.Concat(bugs, backfillBugs, suspectBugs, ledgerBugs, quotaBugs, expiryBugs, postponeBugs) {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			for seed := uint64(1); seed <= within; seed++ {
				failed := run(seed, &b, nil)
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
