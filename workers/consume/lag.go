package consume

import (
	"context"
	"time"

	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/kafka"
)

// The lag of a consumer has two parts: what it has fetched and not finished, which it knows to
// the record, and what Kafka has beyond that. It asks Kafka for the second part, since nothing
// is fetched while a handler hangs. Kafka counts in offsets, and markers of transactions have
// offsets, too: offsets for which several polls return nothing are not records. The log in a
// store has no markers, but may have gaps.

// backlog is how far a partition is behind.
type backlog struct {
	unfinished int64     // records that were fetched
	oldest     time.Time // when the next of them was published, as far as is known

	started   bool  // fetchedTo is known
	fetchedTo int64 // offset up to which the partition was fetched

	unfetched  int64     // offsets beyond fetchedTo
	since      time.Time // when they were first seen
	emptyPolls int       // that have brought nothing of them since
}

const (
	watchEvery    = 5 * time.Second
	unfetchedSpan = 10 * time.Second // longer than a poll that brings nothing
	emptySpan     = 3 * time.Second  // longer than a fetch that waits for more holds what there is
	maxEmptyPolls = 4
)

// onEnd takes the offset at which Kafka says that the partition ends.
func (b *backlog) onEnd(end int64, now time.Time) {
	switch {
	case !b.started: // nothing has come yet: all of it may have been read before
		b.started, b.fetchedTo = true, end
	case end <= b.fetchedTo:
		b.unfetched = 0
	default:
		if b.unfetched == 0 {
			b.since, b.emptyPolls = now, 0
		}
		b.unfetched = end - b.fetchedTo
	}
}

// onPoll takes a poll that could have brought unfetched records.
func (b *backlog) onPoll(now time.Time) {
	if b.unfetched == 0 {
		return
	}
	if b.emptyPolls++; b.emptyPolls >= maxEmptyPolls && now.Sub(b.since) >= emptySpan {
		b.fetchedTo += b.unfetched // they are markers, or were aborted
		b.unfetched = 0
	}
}

// onPolled takes a poll that succeeded. A failed poll does not show which records there are: its
// partitions would count as read while no consumer can read them.
func (e *Engine) onPolled() {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.cfg.Clock()
	for _, p := range e.partitions {
		if !p.buffer.paused && len(p.buffer.records) == 0 {
			p.backlog.onPoll(now)
		}
	}
}

// onFetched takes the offset behind the last record that a poll has brought.
func (b *backlog) onFetched(next int64) {
	if next > b.fetchedTo {
		b.started, b.fetchedTo, b.unfetched = true, next, 0
	}
}

// watchEnds asks Kafka for the ends of the partitions until ctx ends. If Kafka does not
// answer, nothing changes: the age of the oldest record grows by itself.
func (e *Engine) watchEnds(ctx context.Context, s Session, topics []string) {
	wait.Every(ctx, watchEvery, func() {
		ask, cancel := context.WithTimeout(ctx, watchEvery)
		defer cancel()
		if ends, err := s.Ends(ask, topics); err == nil {
			e.onEnds(ends)
		}
	})
}

func (e *Engine) onEnds(ends map[kafka.Partition]int64) {
	now := e.cfg.Clock()
	e.mu.Lock()
	defer e.mu.Unlock()
	for id, end := range ends {
		if p := e.partitions[id]; p != nil && p.ownership != unowned {
			p.backlog.onEnd(end, now)
		}
	}
}

// onCaughtUp says that all that was fetched before a poll is finished: a partition that the
// poll brought nothing of is not behind, unless it backs off.
func (e *Engine) onCaughtUp(batches map[kafka.Partition]kafka.Batch) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for id, p := range e.partitions {
		if _, came := batches[id]; !came && !p.buffer.backingOff {
			p.backlog.unfinished = 0
		}
	}
}

// measure updates the backlog of a portion's partition.
func (e *Engine) measure(po *portion) {
	i := 0
	for i < len(po.done)-1 && po.done[i] {
		i++
	}
	r := po.batch.Records[i]
	unfinished := po.batch.End - r.Offset
	if po.done[i] {
		unfinished--
		if unfinished <= 1 { // it is the end of a transaction, or about to come
			unfinished = 0
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if p := po.partition; p.ownership != unowned {
		p.backlog.unfinished, p.backlog.oldest = unfinished, r.Timestamp
	}
}
