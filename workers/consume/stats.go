package consume

import (
	"sync/atomic"
	"time"

	"github.com/parley-chat/parley/server/kafka"
)

// Stats counts what an Engine has done, and how far it is behind in its partitions.
type Stats struct {
	Handled, Skipped, Ignored, DeadLettered, Commits int64

	// Parked counts the dead letters of records that were not tried because their key is
	// parked. ParkedKeys and ParkedRecords are what is parked now, of the partitions that
	// this member has.
	Parked, ParkedKeys, ParkedRecords int64

	Pauses    int64 // times that a partition had to wait for a record
	Calls     int64 // of the handler
	Unwritten int64 // times that a dead letter could not be written
	// Rebalances counts how often partitions were assigned. Assignments within
	// rebalanceSpan are one rebalance: members hand partitions over in several steps.
	Rebalances int64

	Lag    int64         // records
	Oldest time.Duration // age of the oldest of them, about
	// OldestOf is the same by topic, without topics that are not behind.
	OldestOf map[string]time.Duration

	// Stalled is the time since a record was finished, or a poll succeeded while no record
	// waited.
	Stalled time.Duration
}

// counters are the parts of Stats that only grow.
type counters struct {
	handled, calls, skipped, ignored, deadLettered, parked, unwritten, pauses, commits, rebalances atomic.Int64

	lastProgress atomic.Int64 // unix ms, see Stats.Stalled
}

// finished is how many records the engine is done with.
func (c *counters) finished() int64 {
	return c.handled.Load() + c.skipped.Load() + c.ignored.Load() + c.deadLettered.Load()
}

// Stats returns the counters; it may be called from any goroutine.
func (e *Engine) Stats() Stats {
	s := Stats{
		Handled: e.handled.Load(), Skipped: e.skipped.Load(), DeadLettered: e.deadLettered.Load(), Pauses: e.pauses.Load(),
		Commits: e.commits.Load(),
		Ignored: e.ignored.Load(), Calls: e.calls.Load(), Rebalances: e.rebalances.Load(),
		Unwritten: e.unwritten.Load(), Parked: e.parked.Load(), OldestOf: map[string]time.Duration{},
	}
	now := e.cfg.Clock()
	s.Stalled = max(0, now.Sub(time.UnixMilli(e.lastProgress.Load())))
	e.mu.Lock()
	defer e.mu.Unlock()
	standing := e.parkedNow()
	s.ParkedKeys, s.ParkedRecords = int64(standing.Keys), standing.Records
	for id, p := range e.partitions {
		b := &p.backlog
		if b.unfinished > 0 {
			s.addLag(id, b.unfinished, now.Sub(b.oldest))
		}
		if age := now.Sub(b.since); b.unfetched > 0 && age >= unfetchedSpan {
			s.addLag(id, b.unfetched, age)
		}
	}
	return s
}

// addLag adds records of a partition that are not handled, and the age of the oldest.
func (s *Stats) addLag(p kafka.Partition, records int64, age time.Duration) {
	s.Lag += records
	s.Oldest = max(s.Oldest, age)
	s.OldestOf[p.Topic] = max(s.OldestOf[p.Topic], age)
}
