package machine

import (
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
)

// Times to live, message by message: see ttl.go.

// ttl gives a record a time to live now and then.
func (w *world) ttl(r *record) *durationpb.Duration {
	if !w.one(3) {
		return nil
	}
	d := time.Second + time.Duration(w.rng.Int64N(int64(30*time.Second)))
	// The stored time is in ms; no message ends before its time to live is over.
	ends := w.now.Truncate(time.Millisecond).Add((d + time.Millisecond - 1).Truncate(time.Millisecond))
	if whole := ends.Truncate(time.Second); whole.Equal(ends) {
		r.ends = whole
	} else {
		r.ends = whole.Add(time.Second)
	}
	return durationpb.New(d)
}

// over reports whether the time of a message is over.
func (w *world) over(r *record) bool { return !r.ends.IsZero() && !r.ends.After(w.now) }

// accepts reports whether a message is for a group, whoever its members are.
func (g *modelGroup) accepts(r *record) bool {
	return !r.void && (g.kind == "" || g.kind == r.kind) && (r.to == "" || r.to == g.config.Name)
}

// expire counts a message that is over.
func (w *world) expired(g *modelGroup, r *record) {
	if g.accepts(r) && r.due(g) {
		g.gone[ByExpiry]++
	}
	w.m.acknowledge(g, r.position)
}

// lapse settles what is over at the front of a group, and checks that it stops for a reason.
func (w *world) lapse() {
	g := w.group()
	if g == nil {
		return
	}
	w.log("lapse %s", g.config.Name)
	w.p.Elapsed(w.now.UnixNano())
	w.before("lapse", g, nil)
	processed, filtered := g.real.processed, g.real.filtered
	total := int64(0)
	for range 100 {
		n, wait := g.real.Lapse(1 + w.rng.IntN(5))
		total += n
		if wait.Reason == Idle {
			break
		}
		if wait.Reason == Fetch {
			clear(w.absent)
		}
	}
	w.after("lapse", g, nil)
	var done, others int64
	for _, r := range w.m.records {
		o := r.position
		if r.acked[g] || !g.real.acked.Contains(o) {
			continue
		}
		if open := r.reads(g) || r.required[g] || r.owed[g]; !open || g.leases[o].member != nil || g.dying[o] ||
			!r.void && !w.over(r) {
			w.fail("%s: %d lapses", g.config.Name, o)
			return
		}
		if !r.void {
			done++
		}
		if !r.void && !g.accepts(r) {
			others++
		}
		w.expired(g, r)
	}
	if done != total {
		w.fail("%s: %d messages lapsed, should be %d", g.config.Name, total, done)
	}
	if p, f := g.real.processed-processed, g.real.filtered-filtered; p != others || f != others {
		w.fail("%s: %d count as processed, %d as filtered, should be %d", g.config.Name, p, f, others)
	}
	if g.state == Cancelled {
		return
	}
	for _, r := range w.m.records {
		if (r.reads(g) || r.required[g] || r.owed[g]) && !r.acked[g] {
			if g.leases[r.position].member == nil && !g.dying[r.position] && (r.void || w.over(r)) {
				w.fail("%s: %d is over and holds the log", g.config.Name, r.position)
			}
			break
		}
	}
}

// overLeft checks that Next has left nothing that is over.
func (w *world) overLeft(g *modelGroup) {
	if g.state != Active || len(g.members) == 0 {
		return
	}
	for _, r := range w.m.records {
		if !w.over(r) || !r.reads(g) || r.acked[g] || g.leases[r.position].member != nil || g.dying[r.position] ||
			r.history[g] || w.blocked(g, r) {
			continue
		}
		w.fail("%s: %d is over, and Next leaves it", g.config.Name, r.position)
	}
}

var expiryBugs = []bug{
	{name: "what is over is delivered", before: "next", finds: "after its time",
		do: func(w *world, _ *modelGroup, _ *modelMember) { w.p.clock = 0 }},
	{name: "messages end early", before: "next", finds: "acknowledged by itself",
		do: func(w *world, _ *modelGroup, _ *modelMember) {
			if !slices.ContainsFunc(w.m.records, w.undue) {
				w.p.clock += int64(2 * time.Second)
			}
		}},
	{name: "the front ends early", before: "lapse", finds: "lapses",
		do: func(w *world, _ *modelGroup, _ *modelMember) { w.p.clock += int64(time.Minute) }},
	{name: "what is over is not counted", after: "next", finds: "were released",
		do: func(_ *world, g *modelGroup, _ *modelMember) { g.real.released.gone[ByExpiry] = 0 }},
	{name: "what is over is forgotten by the cursor", after: "save", finds: "were released",
		do: func(_ *world, g *modelGroup, _ *modelMember) {
			resave(g, func(c *GroupState) { c.released.gone[ByExpiry] = 0 })
		}},
	{name: "the front is not looked at again", before: "lapse", finds: "holds the log",
		do: func(_ *world, g *modelGroup, _ *modelMember) {
			g.real.front = front{g.real.nextOpen(0), NoEnd}
		}},
	{name: "what is over stays open", after: "lapse", finds: "open",
		do: func(_ *world, g *modelGroup, _ *modelMember) { g.real.open++ }},
	{name: "a front that lapses takes what a member has", before: "lapse", finds: "",
		do: func(_ *world, g *modelGroup, _ *modelMember) {
			for _, l := range g.real.leases.All() {
				g.real.acked.Add(l.From, l.To)
			}
		}},
}
