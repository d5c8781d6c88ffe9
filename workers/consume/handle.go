package consume

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/parley-chat/parley/server/kafka"
)

// Handler works on a record.
type Handler func(ctx context.Context, r *kafka.Record) error

// BatchHandler works on records of one key and one partition, in order; there is at
// least one, and at most kafka.MaxPoll. It returns how many it has finished, from the
// first one on. Without an error that is all of them.
//
// An error that is downstream or authoritative is about all that are left: they are
// retried and skipped together, or they wait. Any other is about the first of those
// that are left, which then comes again, alone: nothing is held against a record but
// what happened while it was alone. So a handler that cannot tell may return 0, and one
// that panics blames nobody; the rest of such a batch comes record by record.
type BatchHandler func(ctx context.Context, records []*kafka.Record) (finished int, err error)

// One is the handler of single records that a BatchHandler is, too.
func (h BatchHandler) One() Handler {
	return func(ctx context.Context, r *kafka.Record) error {
		_, err := h(ctx, []*kafka.Record{r})
		return err
	}
}

// Waits between the retries of a downstream failure.
var downstreamWaits = []time.Duration{100 * time.Millisecond, 500 * time.Millisecond, 2 * time.Second}

// maxAttempts is how often a record with an unknown failure is tried (K-127).
const maxAttempts = 3

// workBatch handles the records of a unit together, and those one by one of which one
// has failed.
func (e *Engine) workBatch(ctx context.Context, u *unit, stop *atomic.Bool) {
	records := make([]*kafka.Record, len(u.at))
	for i, at := range u.at {
		records[i] = u.sh.batch.Records[at]
	}
	apart := false
	for i := 0; i < len(records); {
		if ctx.Err() != nil || stop.Load() {
			return
		}
		if apart || i == len(records)-1 {
			if !e.single(ctx, u, u.at[i], stop) {
				return
			}
			i++
			continue
		}
		n, err := e.batch(ctx, records[i:])
		for range n {
			u.sh.done[u.at[i]] = true
			i++
		}
		switch {
		case err == nil || i == len(records):
			continue
		case ctx.Err() != nil:
			return
		case classOf(err) == Authoritative:
			e.waits(records[i], err)
			return
		}
		handled, err := e.record(ctx, records[i])
		switch {
		case err == nil:
			u.sh.done[u.at[i]] = true
			i++
			apart = handled // it was another one
		case classOf(err) == Fatal:
			u.fatal = err
			stop.Store(true)
			return
		default:
			e.waits(records[i], err)
			return
		}
	}
}

// batch handles records together, and returns how many are finished: handled, or
// skipped. The error is about those that are left.
func (e *Engine) batch(ctx context.Context, records []*kafka.Record) (finished int, err error) {
	for n := 0; ; n++ {
		done, err := e.callBatch(ctx, records[finished:])
		finished += done
		e.handled.Add(int64(done))
		if classOf(err) != Downstream || err == nil || finished == len(records) {
			return finished, err
		}
		if n == len(downstreamWaits) {
			break
		}
		if !sleep(ctx, downstreamWaits[n]) {
			return finished, err
		}
	}
	e.skipped.Add(int64(len(records) - finished))
	return len(records), nil
}

// callBatch calls the handler with several records, and tells of a panic.
func (e *Engine) callBatch(ctx context.Context, records []*kafka.Record) (finished int, err error) {
	e.calls.Add(1)
	err = guard(func() (err error) {
		finished, err = e.cfg.Batch(ctx, records)
		return err
	})
	if err == nil {
		return len(records), nil
	}
	e.told(records[0], err)
	return min(max(finished, 0), len(records)), err
}

// record handles one record. It is finished if there is no error: handled, or a dead
// letter, or skipped.
func (e *Engine) record(ctx context.Context, r *kafka.Record) (handled bool, err error) {
	err = e.call(ctx, r)
	for n := 0; classOf(err) == Downstream && n < len(downstreamWaits) && sleep(ctx, downstreamWaits[n]); n++ {
		err = e.call(ctx, r)
	}
	if err == nil {
		e.handled.Add(1)
		return true, nil
	}
	class := classOf(err)
	if ctx.Err() != nil {
		return false, err // the process is ending: the record will come again
	}
	switch class {
	case Permanent:
		return false, e.bury(ctx, r, 1, Reason(err))
	case Downstream:
		e.skipped.Add(1)
		return false, nil
	case Unknown, Fatal:
		attempts, failed := e.count(ctx, r)
		switch {
		case failed == nil && attempts >= maxAttempts:
			return false, e.bury(ctx, r, attempts, Reason(err))
		case failed != nil && class == Unknown:
			return false, Fail(Authoritative, "count attempts", failed)
		}
	}
	return false, err
}

// sleep waits; false says that ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// call calls the handler with one record, and tells of a panic.
func (e *Engine) call(ctx context.Context, r *kafka.Record) error {
	e.calls.Add(1)
	h := e.cfg.Handle
	if h == nil {
		h = e.cfg.Batch.One()
	}
	err := Call(ctx, h, r)
	e.told(r, err)
	return err
}

func (e *Engine) told(r *kafka.Record, err error) {
	var p *panicked
	if errors.As(err, &p) {
		e.cfg.Logger.Error("consume: handler panicked", "group", e.cfg.Group, "topic", r.Topic, "partition", r.Partition, "offset", r.Offset, "panic", p.value, "stack", string(p.stack))
	}
}
