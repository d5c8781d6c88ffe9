package consume

import (
	"time"

	"github.com/parley-chat/parley/server/kafka"
)

// hold is a partition that waits: it is not fetched from.
type hold struct {
	offset int64 // of the record that waits
	until  time.Time
	wait   time.Duration
	active bool
	kept   kafka.Batch // from that record on; without records: they are fetched again
	size   int         // bytes of kept
}

// maxKept bounds the bytes kept of partitions that wait. What is more is fetched
// again, which costs the other partitions what was fetched of them ahead.
const maxKept = 8 << 20

// Waits of a held partition.
const (
	firstHold = 50 * time.Millisecond
	maxHold   = 5 * time.Second
)

// release lets held partitions go on whose time has come, and forgets those that
// are not ours any more.
func (e *Engine) release(s *kafka.Session) {
	now := e.cfg.Clock()
	e.mu.Lock()
	for p := range e.gone {
		e.forget(p)
		delete(e.trial, p)
		delete(e.ahead, p)
	}
	clear(e.gone)
	e.mu.Unlock()
	for p, h := range e.held {
		if h.active && !now.Before(h.until) {
			h.active = false
			if len(h.kept.Records) == 0 {
				s.Hold(p, false)
			}
		}
	}
}

// forget drops what is kept of a partition, and that it waits.
func (e *Engine) forget(p kafka.Partition) {
	if h := e.held[p]; h != nil {
		e.kept -= h.size
		delete(e.held, p)
	}
}

// join puts what was kept of partitions that go on before what a poll brought.
func (e *Engine) join(batch map[kafka.Partition]kafka.Batch) map[kafka.Partition]kafka.Batch {
	for p, h := range e.held {
		if len(h.kept.Records) == 0 {
			continue
		}
		if more, ok := batch[p]; ok { // fetched before the partition was held
			h.kept = kafka.Batch{Records: append(h.kept.Records, more.Records...), End: more.End}
			delete(batch, p)
		}
		if !h.active {
			batch[p] = h.kept
		}
	}
	return batch
}

// hold lets a partition wait at the record with an offset, which is in its batch.
func (e *Engine) hold(s *kafka.Session, sh *share, next int64) {
	h := e.held[sh.part]
	wait := firstHold
	if h != nil && h.offset == next { // not the first time for this record
		wait = min(2*h.wait, maxHold)
	}
	e.forget(sh.part)
	h = &hold{offset: next, wait: wait, until: e.cfg.Clock().Add(wait), active: true, kept: kafka.Batch{End: sh.batch.End}}
	for i, r := range sh.batch.Records {
		if r.Offset >= next {
			if h.kept.Records == nil {
				h.kept.Records = sh.batch.Records[i:]
			}
			h.size += len(r.Key) + len(r.Value)
		}
	}
	if e.kept+h.size > maxKept {
		h.kept.Records, h.size = nil, 0
		s.Rewind(sh.part, next)
	}
	e.kept += h.size
	e.held[sh.part] = h
	e.holds.Add(1)
	s.Hold(sh.part, true)
}
