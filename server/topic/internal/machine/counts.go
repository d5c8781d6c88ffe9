package machine

import "sync/atomic"

// Counts count what becomes of messages, since the process began. The groups of several machines may
// share one: it is safe for concurrent use.
type Counts struct {
	Delivered     atomic.Int64 // deliveries
	Redelivered   atomic.Int64 // deliveries of messages that had failed before, which are among Delivered
	Acknowledged  atomic.Int64 // messages, by members
	LeasesExpired atomic.Int64 // deliveries whose lease ended
	DeadLettered  atomic.Int64 // messages that are stored as dead letters
}

// CountIn makes the group count there from now on.
func (g *GroupState) CountIn(c *Counts) { g.counts = c }
