package consume

import (
	"slices"
	"time"

	"github.com/parley-chat/parley/server/kafka"
)

// buffer holds the records that were fetched of a partition and are not in work, and says
// whether the partition backs off.
type buffer struct {
	records  []*kafka.Record // in order of offsets
	end      int64           // of the partition, when the last of them was fetched
	bytes    int
	paused   bool // nothing more is fetched
	oneByOne bool // see portion

	backingOff  bool
	retryAt     time.Time
	retryOffset int64         // of the record that waits, or waited last
	backoff     time.Duration // before the retry of that record; 0: no record waits
}

const (
	// maxReady is how many bytes are taken from the client before they are worked on:
	// enough for all partitions to have a turn in a round. The client itself keeps two
	// answers besides.
	maxReady = 4 << 20
	// maxKept bounds the bytes kept of partitions that back off. Further records are
	// fetched again, together with those that were fetched ahead of the other partitions.
	maxKept = 8 << 20
)

// quantum is how many records of a partition are taken at least at a time, if there are so
// many. The more of a partition is in a round, the less often a handler is called that gets
// a key's records together.
const quantum = 125

// Backoffs of a partition.
const (
	firstBackoff = 50 * time.Millisecond
	maxBackoff   = 5 * time.Second
)

// idlePoll bounds a poll while no partition backs off. A poll without records says that
// nothing is behind.
const idlePoll = 5 * time.Second

func sizeOf(r *kafka.Record) int { return len(r.Key) + len(r.Value) + 64 }

// add appends what a poll has brought.
func (b *buffer) add(batch kafka.Batch) {
	b.records, b.end = append(b.records, batch.Records...), batch.End
	for _, r := range batch.Records {
		b.bytes += sizeOf(r)
	}
}

// take removes the first n records.
func (b *buffer) take(n int) kafka.Batch {
	batch := kafka.Batch{Records: b.records[:n:n], End: b.end}
	b.records = b.records[n:]
	for _, r := range batch.Records {
		b.bytes -= sizeOf(r)
	}
	return batch
}

// putBack puts records before the others again.
func (b *buffer) putBack(records []*kafka.Record) {
	for _, r := range records {
		b.bytes += sizeOf(r)
	}
	b.records = slices.Concat(records, b.records)
}

// backOff starts the wait for the record at an offset.
func (b *buffer) backOff(offset int64, now time.Time) {
	if b.backoff > 0 && b.retryOffset == offset { // not the first time for this record
		b.backoff = min(2*b.backoff, maxBackoff)
	} else {
		b.backoff = firstBackoff
	}
	b.backingOff, b.retryOffset, b.retryAt = true, offset, now.Add(b.backoff)
}

// add takes over what a poll has brought.
func (e *Engine) add(batches map[kafka.Partition]kafka.Batch) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for id, batch := range batches {
		p := e.partition(id)
		p.backlog.onFetched(batch.Records[len(batch.Records)-1].Offset + 1)
		p.buffer.add(batch)
	}
}

// ready is how many bytes can be worked on.
func (e *Engine) ready() (n int) {
	for _, p := range e.current() {
		if !p.buffer.backingOff {
			n += p.buffer.bytes
		}
	}
	return n
}

// waiting reports whether a record waits for its retry.
func (e *Engine) waiting() bool {
	return slices.ContainsFunc(e.current(), func(p *partition) bool { return p.buffer.backoff > 0 })
}

// untilRetry is how long a poll may wait.
func (e *Engine) untilRetry() time.Duration {
	d, now := idlePoll, e.cfg.Clock()
	if e.cfg.Follow != nil {
		d = min(d, followEvery)
	}
	for _, p := range e.current() {
		if p.buffer.backingOff {
			d = min(d, p.buffer.retryAt.Sub(now))
		}
	}
	return max(d, time.Millisecond)
}

// takeRound starts a round: at most kafka.MaxPoll records, of each partition from its first
// one on. Over the rounds, partitions take turns.
func (e *Engine) takeRound() []*portion {
	list := slices.DeleteFunc(e.current(),
		func(p *partition) bool { return len(p.buffer.records) == 0 || p.buffer.backingOff })
	if len(list) == 0 {
		return nil
	}
	slices.SortFunc(list, func(a, b *partition) int { return comparePartitions(a.id, b.id) })
	first, _ := slices.BinarySearchFunc(list, e.lastTurn, func(p *partition, last kafka.Partition) int {
		if c := comparePartitions(p.id, last); c != 0 {
			return c
		}
		return -1 // the one after it
	})
	list = slices.Concat(list[first:], list[:first])
	n := make([]int, len(list))
	each := max(kafka.MaxPoll/len(list), quantum)
	for left, took := kafka.MaxPoll, true; took; {
		took = false
		for i, p := range list {
			if more := min(each, left, len(p.buffer.records)-n[i]); more > 0 {
				n[i] += more
				left -= more
				e.lastTurn, took = p.id, true
			}
		}
	}
	portions := make([]*portion, 0, len(list))
	for i, p := range list {
		if n[i] > 0 {
			portions = append(portions, newPortion(p, n[i]))
		}
	}
	return portions
}

// resumeDue resumes the partitions whose backoff is over.
func (e *Engine) resumeDue(s Fetching) {
	now := e.cfg.Clock()
	for _, p := range e.current() {
		if p.buffer.backingOff && !now.Before(p.buffer.retryAt) {
			p.buffer.backingOff = false
			if len(p.buffer.records) == 0 {
				p.resumeFetching(s)
			}
		}
	}
}

// resumeFetching has the partition fetched again.
func (p *partition) resumeFetching(s Fetching) {
	if p.buffer.paused {
		s.Resume(p.id)
		p.buffer.paused = false
	}
}

// pause has a partition wait at a record of its portion.
func (e *Engine) pause(s Fetching, po *portion, offset int64) {
	b := &po.partition.buffer
	b.backOff(offset, e.cfg.Clock())
	from := slices.IndexFunc(po.batch.Records, func(r *kafka.Record) bool { return r.Offset >= offset })
	b.putBack(po.batch.Records[from:])
	kept := 0
	for _, p := range e.current() {
		if p.buffer.backingOff {
			kept += p.buffer.bytes
		}
	}
	if kept > maxKept {
		b.records, b.bytes = nil, 0
		s.Rewind(po.partition.id, offset)
	}
	if !b.paused {
		s.Pause(po.partition.id)
		b.paused = true
	}
	e.pauses.Add(1)
}

// unpause says that no record of a partition waits any more.
func (p *partition) unpause(s Fetching) {
	p.buffer.backoff, p.buffer.oneByOne = 0, false
	p.resumeFetching(s)
}
