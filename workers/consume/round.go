package consume

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
)

// portion is a partition's part of a round, and what came of it.
type portion struct {
	partition *partition
	batch     kafka.Batch
	done      []bool // by record
	next      int    // index of the first record that was not started in isolation
	stopped   bool   // nothing more is started
	oneByOne  bool   // records are handled one by one: together they took too long before
	cut       atomic.Bool
	fatal     error
}

// newPortion takes the first n records of a partition.
func newPortion(p *partition, n int) *portion {
	po := &portion{partition: p, batch: p.buffer.take(n), done: make([]bool, n), oneByOne: p.buffer.oneByOne}
	for i, r := range po.batch.Records {
		po.done[i] = p.finishedOutOfOrder[r.Offset]
	}
	return po
}

// leaveOut finishes the records of types that the handler does not take, without reading their
// values.
func (e *Engine) leaveOut(po *portion) {
	if len(e.cfg.Types) == 0 {
		return
	}
	for i, r := range po.batch.Records {
		at := slices.IndexFunc(r.Headers, func(h kafka.Header) bool { return h.Key == kafka.HeaderEventType })
		if po.done[i] || at < 0 {
			continue
		}
		if name := string(r.Headers[at].Value); event.Known(name) && !slices.Contains(e.cfg.Types, name) {
			po.done[i] = true
			e.ignored.Add(1)
		}
	}
}

// keyBatch is what one goroutine works on: records of one key of a portion, in order.
type keyBatch struct {
	portion          *portion
	indexes          []int // in the portion
	retriesExhausted bool  // retries did not help
	fatal            error
}

// work handles a round and commits what is finished.
func (e *Engine) work(ctx context.Context, s Session, portions []*portion) error {
	if len(portions) == 0 {
		return nil
	}
	round, cancel := context.WithTimeoutCause(ctx, 2*e.cfg.Round, errRound)
	defer cancel()
	var full atomic.Bool
	defer time.AfterFunc(e.cfg.Round, func() { full.Store(true) }).Stop()
	for _, po := range portions {
		e.leaveOut(po)
		e.measure(po) // now, or a handler that hangs would not show as lag
	}
	if err := e.claim(round, portions); err != nil {
		e.cfg.Logger.Warn("consume: partitions cannot be claimed", "group", e.cfg.Group, "error", err)
	}
	for _, po := range portions {
		e.workIsolated(round, po, &full)
	}
	e.workTogether(round, portions, &full)
	return e.finish(ctx, s, portions)
}

// errRound is why the context of a handler ends whose call takes too long.
var errRound = errors.New("consume: the time of the round is over")

// ending reports whether the process is about to end, rather than the round.
func ending(ctx context.Context) bool {
	return ctx.Err() != nil && !errors.Is(context.Cause(ctx), errRound)
}

// workTogether handles the records that may be in work beside others. Once stop is set,
// nothing more is started.
func (e *Engine) workTogether(ctx context.Context, portions []*portion, stop *atomic.Bool) {
	e.cfg.Isolation.mu.RLock()
	defer e.cfg.Isolation.mu.RUnlock()
	list := keyBatches(portions)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(e.cfg.Parallel, len(list)) {
		wg.Go(func() {
			for ctx.Err() == nil && !stop.Load() {
				i := int(next.Add(1)) - 1
				if i >= len(list) {
					return
				}
				if e.cfg.Batch != nil {
					e.workBatch(ctx, list[i], stop)
				} else {
					e.workRecords(ctx, list[i], stop)
				}
			}
		})
	}
	wg.Wait()
	for _, kb := range list {
		if kb.fatal != nil {
			kb.portion.fatal = kb.fatal
		}
	}
}

// keyBatches divides what is left of a round by keys. The longest come first, since they
// take the longest.
func keyBatches(portions []*portion) (list []*keyBatch) {
	for _, po := range portions {
		if po.stopped {
			continue
		}
		byKey := map[string]*keyBatch{}
		for i := po.next; i < len(po.done); i++ {
			if po.done[i] {
				continue
			}
			key := po.batch.Records[i].Key
			kb := byKey[string(key)]
			if kb == nil {
				kb = &keyBatch{portion: po}
				byKey[string(key)] = kb
				list = append(list, kb)
			}
			kb.indexes = append(kb.indexes, i)
		}
	}
	slices.SortStableFunc(list, func(a, b *keyBatch) int { return cmp.Compare(len(b.indexes), len(a.indexes)) })
	return list
}

// finish commits what a round has finished, and pauses the partitions that must wait.
func (e *Engine) finish(ctx context.Context, s Session, portions []*portion) error {
	commit := map[kafka.Partition]int64{}
	var fatal error
	for _, po := range portions {
		e.measure(po)
		next, wait := po.result()
		if next > po.batch.Records[0].Offset {
			commit[po.partition.id] = next
		}
		if wait {
			e.pause(s, po, next)
			po.partition.buffer.oneByOne = po.oneByOne || po.cut.Load()
		} else {
			po.partition.unpause(s)
		}
		if po.fatal != nil {
			fatal = po.fatal
		}
	}
	switch err := s.Commit(ctx, commit); {
	case errors.Is(err, kafka.ErrNotMember) && fatal == nil:
		return err
	case err != nil:
		// Records that are not committed come again after the next start, or the next
		// commit covers them: consumers drop duplicates.
		e.cfg.Logger.Warn("consume: commit", "group", e.cfg.Group, "error", err)
	case len(commit) > 0:
		e.commits.Add(1)
	}
	return fatal
}

func (e *Engine) logWaiting(r *kafka.Record, err error) {
	e.cfg.Logger.Warn("consume: a partition waits", "group", e.cfg.Group, "topic", r.Topic, "partition", r.Partition,
		"offset", r.Offset, "error", err)
}

// result returns the offset up to which all records are finished, and whether the record
// there must wait. It remembers what is finished beyond.
func (po *portion) result() (next int64, wait bool) {
	records, outOfOrder := po.batch.Records, po.partition.finishedOutOfOrder
	next = records[0].Offset
	for i, done := range po.done {
		switch {
		case wait && done:
			outOfOrder[records[i].Offset] = true
		case wait:
		case !done:
			next, wait = records[i].Offset, true
		default:
			next = records[i].Offset + 1
		}
	}
	for offset := range outOfOrder {
		if offset < next {
			delete(outOfOrder, offset)
		}
	}
	return next, wait
}
