package operations

import (
	"context"
	"maps"
	"sync"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/commitlog"
)

// ages remembers when the first message of each partition was published. A partition whose
// first message is younger than all that could end its keeping costs no read.
type ages struct {
	mu     sync.Mutex
	cycle  int64
	firsts map[commitlog.Partition]first
}

// first is the first message of a partition.
type first struct {
	position int64
	at       int64 // unix ms
	cycle    int64 // in which it was asked for last
}

// shortest is the age at which a message may have to go at the earliest.
func shortest(c *topicv1.TopicConfig) time.Duration {
	return min(c.GetMessageRetention().AsDuration(), c.GetZeroSubscriptionRetention().AsDuration(),
		c.GetMaxRetention().AsDuration(), c.GetZombieSubscriptionTtl().AsDuration())
}

// young reports whether even the first message of a partition, at start, is younger than an
// age. A message that cannot be read does not count as younger: the trim that follows finds
// out why.
func (a *ages) young(
	ctx context.Context, log commitlog.Reader, p commitlog.Partition, start int64, now time.Time, age time.Duration,
) bool {
	a.mu.Lock()
	f, ok := a.firsts[p]
	a.mu.Unlock()
	if !ok || f.position != start {
		batches, err := log.Read(ctx, p, start, 1)
		if err != nil || len(batches) == 0 {
			return false
		}
		f = first{position: start, at: batches[0].Time}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	f.cycle = a.cycle
	a.firsts[p] = f
	return now.Sub(time.UnixMilli(f.at)) <= age
}

// forget drops what was not asked for since it was called last.
func (a *ages) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.firsts, func(_ commitlog.Partition, f first) bool { return f.cycle != a.cycle })
	a.cycle++
}
