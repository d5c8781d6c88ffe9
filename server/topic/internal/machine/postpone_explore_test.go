package machine

import (
	"container/heap"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/parley-chat/parley/server/commitlog"
)

// Times of delivery, message by message: see postpone.go.

// postpone makes a message wait now and then.
func (w *world) postpone(r *record, m *commitlog.Message) {
	if !w.one(4) {
		return
	}
	d := time.Duration(w.rng.Int64N(int64(20 * time.Second)))
	due := w.now.Truncate(time.Millisecond).Add((d + time.Millisecond - 1).Truncate(time.Millisecond))
	if w.one(2) {
		m.Delay = durationpb.New(d)
	} else {
		m.DeliverTime = timestamppb.New(due)
	}
	r.dueFrom, r.dueAll, r.postponed = due, due, true
}

// undue reports whether a message may not be delivered yet.
func (w *world) undue(r *record) bool { return r.dueFrom.After(w.now) }

// awaited checks that a group wants to be checked when a message is due, and that what has failed, or is suspect, does
// not wait for that again.
func (w *world) awaited(g *modelGroup) {
	at, ok := g.real.wakeAt()
	for _, d := range g.real.postponed {
		if g.state == Active && (!ok || at.UnixNano() > d.due) {
			w.fail("%s: nothing delivers %d when it is due", g.config.Name, d.position)
		}
		if g.fails[d.position].attempts > 0 || g.suspects[d.position] {
			w.fail("%s: %d was tried, and waits for its time", g.config.Name, d.position)
		}
	}
}

// wasDue is called before the clock is set back: what has been due may wait again, or be
// delivered, as what only waits for credits is.
func (m *model) wasDue(now time.Time) {
	for _, r := range m.records {
		if !r.dueFrom.After(now) {
			r.dueFrom = time.Time{}
		}
	}
	for _, g := range m.groups {
		for p, f := range g.fails {
			if !f.dueFrom.After(now) {
				f.dueFrom = time.Time{}
				g.fails[p] = f
			}
		}
	}
}

// keysMove checks that each key that messages wait for is held by one that can end that: what is next, with a member,
// or waits for something else than a key.
func (w *world) keysMove(g *modelGroup) {
	for key, h := range g.real.keys.holds {
		if len(h.waiting) == 0 || g.state != Active {
			continue
		}
		moves := h.holder != noHolder && !slices.Contains(h.waiting, h.holder)
		for _, r := range w.m.records {
			next := g.real.ready.Contains(r.position) || g.real.history.Ready.Contains(r.position)
			moves = moves || next && r.key == key && !g.real.keys.Blocked(key, r.position)
		}
		if !moves {
			w.fail("%s: nothing of key %q moves, %v wait for it", g.config.Name, key, h.waiting)
		}
	}
}

// endless reports whether a message has no time to live, whose end is another way to miss it.
func (w *world) endless(d delay) bool { return w.m.at(d.position).ends.IsZero() }

var postponeBugs = []bug{
	{name: "messages are delivered before they are due", before: "next", finds: "before it is due",
		do: func(w *world, _ *modelGroup, _ *modelMember) {
			if !slices.ContainsFunc(w.m.records, func(r *record) bool { return !r.ends.IsZero() }) {
				w.p.Elapsed(w.now.Add(time.Minute).UnixNano())
			}
		}},
	{name: "what waits for its time is forgotten", after: "next", finds: "is left behind",
		do: func(w *world, g *modelGroup, _ *modelMember) {
			g.real.postponed = slices.DeleteFunc(g.real.postponed, w.endless)
			heap.Init(&g.real.postponed)
		}},
	{name: "what waits for its time holds its key", after: "next", finds: "is left behind",
		do: func(_ *world, g *modelGroup, _ *modelMember) {
			for _, d := range g.real.postponed {
				if key, _ := g.real.keyOf(d.position); key != "" && !g.real.keys.Blocked(key, d.position) {
					g.real.keys.Hold(key, d.position)
				}
			}
		}},
	{name: "what waits for its time waits longer", after: "next", finds: "is left behind",
		do: func(w *world, g *modelGroup, _ *modelMember) {
			for i, d := range g.real.postponed {
				if w.endless(d) {
					g.real.postponed[i].due += int64(time.Hour)
				}
			}
			heap.Init(&g.real.postponed)
		}},
	{name: "what is spent is neither parked nor dying", after: "next", finds: "is spent",
		do: func(_ *world, g *modelGroup, _ *modelMember) { clear(g.real.fails.parked) }},
	{name: "what waits for its time is not open", after: "next", finds: "that are open",
		do: func(_ *world, g *modelGroup, _ *modelMember) {
			if len(g.real.postponed) > 0 {
				g.real.open--
			}
		}},
}
