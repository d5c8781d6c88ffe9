package consume

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/kafka"
)

// Handler works on a record.
type Handler func(ctx context.Context, r *kafka.Record) error

// BatchHandler works on records of one key and one partition, in order; there is at
// least one, and at most kafka.MaxPoll. It returns how many it has finished, from the
// first one on. Without an error that is all of them.
//
// An error is about the first record that is left. If it is downstream, authoritative or
// ignored, the class decides. Otherwise that record comes again, alone: only what happens
// while a record is alone counts against it. So a handler that cannot tell may return 0,
// and a panic counts against no record; the rest of the batch then comes record by record.
type BatchHandler func(ctx context.Context, records []*kafka.Record) (finished int, err error)

// One returns the same handler as one of single records.
func (h BatchHandler) One() Handler {
	return func(ctx context.Context, r *kafka.Record) error {
		_, err := h(ctx, []*kafka.Record{r})
		return err
	}
}

// Waits between the retries of a downstream failure.
var downstreamWaits = []time.Duration{100 * time.Millisecond, 500 * time.Millisecond, 2 * time.Second}

// recordTimeout bounds the writing of an attempt and of a dead letter.
const recordTimeout = 45 * time.Second

// maxAttempts is how often a record with an unknown failure is tried: a passing cause has
// two more chances, and a lasting one holds the partition up three times.
const maxAttempts = 3

// workRecords handles the records of a key batch one by one.
func (e *Engine) workRecords(ctx context.Context, kb *keyBatch, stop *atomic.Bool) {
	for i := 0; i < len(kb.indexes) && ctx.Err() == nil && !stop.Load(); i++ {
		if _, ok := e.workOne(ctx, kb, i, stop); !ok {
			return // the key's later records wait with it
		}
	}
}

// workBatch handles the records of a key batch together, and one by one around a failure.
func (e *Engine) workBatch(ctx context.Context, kb *keyBatch, stop *atomic.Bool) {
	records := make([]*kafka.Record, len(kb.indexes))
	for i, at := range kb.indexes {
		records[i] = kb.portion.batch.Records[at]
	}
	oneByOne := kb.portion.oneByOne
	for i := 0; i < len(records) && ctx.Err() == nil && !stop.Load(); i++ {
		if e.followAll(ctx, kb, i) {
			return
		}
		if !oneByOne && i < len(records)-1 {
			n, err := e.tryBatch(ctx, kb, records[i:])
			for range n {
				kb.portion.done[kb.indexes[i]] = true
				i++
			}
			switch {
			case i == len(records) || ending(ctx):
				return
			case ctx.Err() != nil:
				kb.portion.cut.Store(true)
				return
			case e.waits(ClassOf(err)):
				e.logWaiting(records[i], err)
				return
			case ClassOf(err) == Downstream:
				e.skip(kb, i)
				continue
			case ClassOf(err) == Ignored:
				kb.portion.done[kb.indexes[i]] = true
				e.ignored.Add(1)
				continue
			}
			oneByOne = true
		}
		what, ok := e.workOne(ctx, kb, i, stop)
		if !ok {
			return
		}
		// While the record that failed is not found, the next one may be it.
		oneByOne = kb.portion.oneByOne || oneByOne && what == handled
	}
}

// workOne handles the i-th record of a key batch alone; ok says that it is finished.
func (e *Engine) workOne(ctx context.Context, kb *keyBatch, i int, stop *atomic.Bool) (what outcome, ok bool) {
	at := kb.indexes[i]
	r := kb.portion.batch.Records[at]
	what, err := e.record(ctx, r, kb.retryWaits())
	switch {
	case err == nil:
		kb.portion.done[at] = true
		kb.retriesExhausted = kb.retriesExhausted || what == skipped
		return what, true
	case ClassOf(err) == Fatal:
		kb.fatal = err
		stop.Store(true)
	default:
		e.logWaiting(r, err)
	}
	return 0, false
}

// retryWaits are the waits between retries. Once retries did not help, the later records
// of a key batch have none: the round would take longer than a member may be silent.
func (kb *keyBatch) retryWaits() []time.Duration {
	if kb.retriesExhausted {
		return nil
	}
	return downstreamWaits
}

// skip leaves a record out: the users it is for learn of it when they synchronise.
func (e *Engine) skip(kb *keyBatch, i int) {
	kb.retriesExhausted = true
	kb.portion.done[kb.indexes[i]] = true
	e.skipped.Add(1)
}

// tryBatch handles records together, with retries of downstream failures. It returns how
// many are finished; an error is about those that are left.
func (e *Engine) tryBatch(ctx context.Context, kb *keyBatch, records []*kafka.Record) (finished int, err error) {
	for waits := kb.retryWaits(); ; waits = waits[1:] {
		done, err := e.callBatch(ctx, records[finished:])
		finished += done
		e.handled.Add(int64(done))
		if finished == len(records) || ClassOf(err) != Downstream || len(waits) == 0 || wait.For(ctx, waits[0]) != nil {
			return finished, err
		}
	}
}

// outcome is what came of a record that is finished.
type outcome uint8

const (
	handled outcome = iota
	skipped
	deadLettered
	ignored
)

// record handles one record; it is finished if there is no error.
func (e *Engine) record(ctx context.Context, r *kafka.Record, waits []time.Duration) (outcome, error) {
	err := e.call(ctx, r)
	for ; ClassOf(err) == Downstream && len(waits) > 0 && wait.For(ctx, waits[0]) == nil; waits = waits[1:] {
		err = e.call(ctx, r)
	}
	if err == nil {
		e.handled.Add(1)
		return handled, nil
	}
	class := ClassOf(err)
	if ending(ctx) {
		return 0, err // the record will come again
	}
	// The failure is written down even if the round has no time left.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	switch class {
	case Permanent:
		return deadLettered, e.giveUp(ctx, r, 1, err)
	case Downstream:
		if e.waits(class) {
			return 0, err
		}
		e.skipped.Add(1)
		return skipped, nil
	case Ignored:
		e.ignored.Add(1)
		return ignored, nil
	case Unknown, Fatal:
		n, failed := e.crashes.CountAttempt(ctx, r)
		switch {
		case failed == nil && n >= maxAttempts:
			return deadLettered, e.giveUp(ctx, r, n, err)
		case failed != nil && class == Unknown:
			return 0, Fail(Authoritative, "count attempts", failed)
		}
	}
	return 0, err
}

// callBatch calls the handler with several records, and logs a panic.
func (e *Engine) callBatch(ctx context.Context, records []*kafka.Record) (finished int, err error) {
	e.calls.Add(1)
	err = guard(func() (err error) {
		finished, err = e.cfg.Batch(ctx, records)
		return err
	})
	if err == nil {
		return len(records), nil
	}
	e.logPanic(records[0], err)
	return min(max(finished, 0), len(records)), err
}

// call calls the handler with one record, and logs a panic.
func (e *Engine) call(ctx context.Context, r *kafka.Record) error {
	e.calls.Add(1)
	h := e.cfg.Handle
	if h == nil {
		h = e.cfg.Batch.One()
	}
	err := Call(ctx, h, r)
	e.logPanic(r, err)
	return err
}

func (e *Engine) logPanic(r *kafka.Record, err error) {
	var p *panicked
	if errors.As(err, &p) {
		e.cfg.Logger.Error("consume: handler panicked", "group", e.cfg.Group, "topic", r.Topic, "partition", r.Partition,
			"offset", r.Offset, "panic", p.value, "stack", string(p.stack))
	}
}
