package consume

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/parley-chat/parley/server/kafka"
)

// stock is what was fetched of a partition and is not in work, and whether the
// partition waits.
type stock struct {
	records []*kafka.Record // in order of offsets
	end     int64           // of the partition, when the last of them was fetched
	size    int             // bytes
	paused  bool            // nothing more is fetched
	apart   bool            // see share

	held   bool // until a time
	until  time.Time
	offset int64         // of the record that waits, or waited last
	wait   time.Duration // for it; 0: none does
}

const (
	// maxReady is how many bytes are taken over from the client before they are worked
	// on: enough for all partitions to have a turn in a round. The client itself keeps
	// two answers besides.
	maxReady = 4 << 20
	// maxKept bounds the bytes kept of partitions that wait. What is more is fetched
	// again, which costs the other partitions what was fetched of them ahead.
	maxKept = 8 << 20
)

// turn is how many records of a partition are taken at least at a time, if there are
// so many. A handler that gets a key's records together is called the less the more of
// a partition is in a round.
const turn = 125

// Waits of a held partition.
const (
	firstHold = 50 * time.Millisecond
	maxHold   = 5 * time.Second
)

// idlePoll bounds a poll while nothing is held; a poll that brought nothing says
// that nothing is behind.
const idlePoll = 5 * time.Second

func (e *Engine) nextRelease() time.Duration {
	d, now := idlePoll, e.cfg.Clock()
	if e.cfg.Follow != nil {
		d = min(d, followEvery)
	}
	for _, st := range e.stocks {
		if st.held {
			d = min(d, st.until.Sub(now))
		}
	}
	return max(d, time.Millisecond)
}

// ready is how many bytes can be worked on.
func (e *Engine) ready() (n int) {
	for _, st := range e.stocks {
		if !st.held {
			n += st.size
		}
	}
	return n
}

func sizeOf(r *kafka.Record) int { return len(r.Key) + len(r.Value) + 64 }

// add takes over what a poll brought.
func (e *Engine) add(batch map[kafka.Partition]kafka.Batch) {
	e.fetched(batch)
	for p, b := range batch {
		st := e.stocks[p]
		if st == nil {
			st = &stock{}
			e.stocks[p] = st
		}
		st.records, st.end = append(st.records, b.Records...), b.End
		for _, r := range b.Records {
			st.size += sizeOf(r)
		}
	}
}

// take begins a round: at most kafka.MaxPoll records, of each partition from its
// first one on. Partitions have their turns one after the other over the rounds.
func (e *Engine) take() []*share {
	var parts []kafka.Partition
	for p, st := range e.stocks {
		if len(st.records) > 0 && !st.held {
			parts = append(parts, p)
		}
	}
	if len(parts) == 0 {
		return nil
	}
	slices.SortFunc(parts, compare)
	first, _ := slices.BinarySearchFunc(parts, e.last, func(p, last kafka.Partition) int {
		if c := compare(p, last); c != 0 {
			return c
		}
		return -1 // the one after it
	})
	parts = slices.Concat(parts[first:], parts[:first])
	n := map[kafka.Partition]int{}
	each := max(kafka.MaxPoll/len(parts), turn)
	for left, took := kafka.MaxPoll, true; took; {
		took = false
		for _, p := range parts {
			if more := min(each, left, len(e.stocks[p].records)-n[p]); more > 0 {
				n[p] += more
				left -= more
				e.last, took = p, true
			}
		}
	}
	shares := make([]*share, 0, len(n))
	for _, p := range parts {
		if n[p] > 0 {
			shares = append(shares, e.share(p, n[p]))
		}
	}
	return shares
}

func compare(a, b kafka.Partition) int {
	return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.ID, b.ID))
}

// share takes the first n records of a partition.
func (e *Engine) share(p kafka.Partition, n int) *share {
	st := e.stocks[p]
	if e.ahead[p] == nil {
		e.ahead[p] = map[int64]bool{}
	}
	sh := &share{part: p, batch: kafka.Batch{Records: st.records[:n:n], End: st.end}, ahead: e.ahead[p], done: make([]bool, n), apart: st.apart}
	st.records = st.records[n:]
	for i, r := range sh.batch.Records {
		sh.done[i] = sh.ahead[r.Offset]
		st.size -= sizeOf(r)
	}
	return sh
}

// release lets held partitions go on whose time has come.
func (e *Engine) release(s *kafka.Session) {
	now := e.cfg.Clock()
	for p, st := range e.stocks {
		if st.held && !now.Before(st.until) {
			st.held = false
			if len(st.records) == 0 {
				e.resume(s, p, st)
			}
		}
	}
}

// resume has a partition fetched again.
func (e *Engine) resume(s *kafka.Session, p kafka.Partition, st *stock) {
	if st.paused {
		s.Hold(p, false)
		st.paused = false
	}
}

// hold lets a partition wait at the record with an offset, which is in its share.
func (e *Engine) hold(s *kafka.Session, sh *share, next int64) {
	st := e.stocks[sh.part]
	if st.wait > 0 && st.offset == next { // not the first time for this record
		st.wait = min(2*st.wait, maxHold)
	} else {
		st.wait = firstHold
	}
	st.held, st.offset, st.until = true, next, e.cfg.Clock().Add(st.wait)
	from := slices.IndexFunc(sh.batch.Records, func(r *kafka.Record) bool { return r.Offset >= next })
	rest := sh.batch.Records[from:]
	for _, r := range rest {
		st.size += sizeOf(r)
	}
	st.records = slices.Concat(rest, st.records)
	kept := 0
	for st := range maps.Values(e.stocks) {
		if st.held {
			kept += st.size
		}
	}
	if kept > maxKept {
		st.records, st.size = nil, 0
		s.Rewind(sh.part, next)
	}
	if !st.paused {
		s.Hold(sh.part, true)
		st.paused = true
	}
	e.holds.Add(1)
}

// passed notes that no record of a partition waits any more.
func (e *Engine) passed(s *kafka.Session, p kafka.Partition) {
	st := e.stocks[p]
	st.wait, st.apart = 0, false
	e.resume(s, p, st)
}
