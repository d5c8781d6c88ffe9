package serving

import (
	"sync/atomic"

	"github.com/parley-chat/parley/server/topic/internal/machine"
)

// Counters count since the start, for metrics.
type Counters struct {
	Published        atomic.Int64 // messages
	Blocked          atomic.Int64 // publishes refused without an active subscription
	Full             atomic.Int64 // publishes refused because the topic or the disk is full
	Mismatched       atomic.Int64 // publishes refused by the topic's schema
	Unsubscribed     atomic.Int64 // publishes stored without an active subscription
	Died             atomic.Int64 // groups
	Released         atomic.Int64 // messages that groups held when they died or were cancelled
	Braked           atomic.Int64 // cycles of detection
	NearTimeout      atomic.Int64 // groups, now
	HeartbeatWrites  atomic.Int64
	HeartbeatsFailed atomic.Int64 // heartbeats
	DeadLetters      atomic.Int64 // messages
	Trimmed          atomic.Int64 // messages
	TrimsSkipped     atomic.Int64 // times that a group kept messages whose retention was over
	Zombies          atomic.Int64 // times that a group was moved on
	LeasesOverdue    atomic.Int64 // messages whose lease or retry the sweep had to do
	JobsFailed       atomic.Int64
	// Ledger counts messages that were due to groups and were taken from them, by machine.Cause. One that
	// a group gets back and loses again counts twice.
	Ledger [machine.Causes]atomic.Int64

	DetectionFailed atomic.Int64 // groups that could not be marked, or revived
	TrimBacklog     atomic.Int64 // messages older than their retention after the last trim, now
	TrimBehind      atomic.Int64 // trims in a row after which there were more of these, now
	Orphans         atomic.Int64 // cursors that belonged to no subscription
	Gauges          Gauges
}

// Gauges are what a scan of all topics found, for metrics.
type Gauges struct {
	Active, Paused, Dead, Cancelled atomic.Int64 // subscriptions
	// Overdue is for how long a lease has been over, or a retry due, at most, without being
	// acted on, a time.Duration.
	Overdue atomic.Int64
	Tracked atomic.Int64 // runs and retries that are kept of the topics in use
}
