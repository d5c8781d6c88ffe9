package topicstore

import (
	"sync/atomic"
	"time"
)

// Counters count what logs do; several may share them.
type Counters struct {
	Transactions   atomic.Int64 // that were committed
	Messages       atomic.Int64 // of these
	Time           atomic.Int64 // that they took, ns
	Refused        atomic.Int64 // transactions that were not committed, or of which that is not known
	Ended          atomic.Int64 // logs that can write nothing any more, but for those that were closed
	Waiting        atomic.Int64 // bytes that wait to be written
	RemovalsFailed atomic.Int64 // partitions whose trimmed records could not be removed
	OffsetsFailed  atomic.Int64 // groups whose offsets could not be shown
}

func (c *Counters) committed(messages int, took time.Duration) {
	c.Transactions.Add(1)
	c.Messages.Add(int64(messages))
	c.Time.Add(int64(took))
}
