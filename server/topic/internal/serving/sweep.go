package serving

import (
	"context"
	"time"

	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/topic/internal/machine"
)

// sweepEvery is at which the groups with members are checked.
const sweepEvery = time.Second

// Sweep checks the groups with members every second. It does work that was due before its
// last run and is not done: a timer was lost, or is late by more than a second. It depends on
// no timer of a group, and a group that it finds in order costs it two locks.
type Sweep struct {
	engine *Engine
	last   time.Time // of the last check, by Steady; zero: there was none
}

// Run checks groups until the context ends.
func (s *Sweep) Run(ctx context.Context) { wait.Every(ctx, sweepEvery, s.once) }

// once checks once. Work that became due since the last run is not late: when the process
// stood still meanwhile, the timers run now as this does. It also measures progress.
func (s *Sweep) once() {
	before := s.last
	s.last = s.engine.Steady()
	if before.IsZero() {
		return
	}
	for _, l := range s.engine.Topics.All() {
		for _, g := range l.Busy() {
			g.Metric.stalled.Store(s.group(g, before))
		}
	}
}

// group checks a group, and reports whether it is stalled in a partition.
func (s *Sweep) group(g *Group, before time.Time) (stalled bool) {
	polled, receiving := g.asked()
	for n := range g.parts {
		if done := g.sweep(n, before); done > 0 {
			s.engine.Counters.LeasesOverdue.Add(done)
			s.engine.Logger.Error("leases or retries were overdue, and no timer ran", "topic", g.Topic(), "group", g.Name(),
				"partition", n, "messages", done)
		}
		if g.measureProgress(n, s.last, polled, receiving) != machine.Flowing && g.Members() > 0 {
			stalled = true
		}
	}
	return stalled
}
