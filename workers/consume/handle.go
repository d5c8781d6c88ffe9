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
// An error is about the first of those that are left. Unless it is downstream,
// authoritative or ignored, that record then comes again, alone: nothing is held against a record
// but what happened while it was alone. So a handler that cannot tell may return 0, and
// one that panics blames nobody; the rest of such a batch comes record by record.
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

// recordTimeout bounds the writing of an attempt and of a dead letter.
const recordTimeout = 45 * time.Second

// maxAttempts is how often a record with an unknown failure is tried (K-127).
const maxAttempts = 3

// workBatch handles the records of a unit together, and those one by one of which one
// has failed.
func (e *Engine) workBatch(ctx context.Context, u *unit, stop *atomic.Bool) {
	records := make([]*kafka.Record, len(u.at))
	for i, at := range u.at {
		records[i] = u.sh.batch.Records[at]
	}
	apart := u.sh.apart
	for i := 0; i < len(records) && ctx.Err() == nil && !stop.Load(); i++ {
		if !apart && i < len(records)-1 {
			n, err := e.batch(ctx, u, records[i:])
			for range n {
				u.sh.done[u.at[i]] = true
				i++
			}
			switch {
			case i == len(records) || ending(ctx):
				return
			case ctx.Err() != nil:
				u.sh.cut.Store(true)
				return
			case classOf(err) == Authoritative:
				e.waits(records[i], err)
				return
			case classOf(err) == Downstream:
				e.skip(u, i)
				continue
			case classOf(err) == Ignored:
				u.sh.done[u.at[i]] = true
				e.ignored.Add(1)
				continue
			}
			apart = true
		}
		what, ok := e.single(ctx, u, i, stop)
		if !ok {
			return
		}
		apart = u.sh.apart || apart && what == handled // it was another one; or it was this one
	}
}

// batch handles records together, with retries if it is downstream that fails. It
// returns how many are finished; an error is about those that are left.
func (e *Engine) batch(ctx context.Context, u *unit, records []*kafka.Record) (finished int, err error) {
	for waits := u.waits(); ; waits = waits[1:] {
		done, err := e.callBatch(ctx, records[finished:])
		finished += done
		e.handled.Add(int64(done))
		if finished == len(records) || classOf(err) != Downstream || len(waits) == 0 || !sleep(ctx, waits[0]) {
			return finished, err
		}
	}
}

// waits are those between retries. Once they were of no use, they are not for the later
// records of a unit: a round would take longer than a member may be silent.
func (u *unit) waits() []time.Duration {
	if u.tired {
		return nil
	}
	return downstreamWaits
}

// skip leaves a record out: those whom it is for learn of it by synchronising.
func (e *Engine) skip(u *unit, i int) {
	u.tired = true
	u.sh.done[u.at[i]] = true
	e.skipped.Add(1)
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

// outcome is what became of a record that is finished.
type outcome uint8

const (
	handled outcome = iota
	skipped
	buried
	ignored
)

// record handles one record; it is finished if there is no error.
func (e *Engine) record(ctx context.Context, r *kafka.Record, waits []time.Duration) (outcome, error) {
	err := e.call(ctx, r)
	for ; classOf(err) == Downstream && len(waits) > 0 && sleep(ctx, waits[0]); waits = waits[1:] {
		err = e.call(ctx, r)
	}
	if err == nil {
		e.handled.Add(1)
		return handled, nil
	}
	class := classOf(err)
	if ending(ctx) {
		return 0, err // the record will come again
	}
	// What is known of the record is written down also when the round has no time left.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	switch class {
	case Permanent:
		return buried, e.bury(ctx, r, 1, Reason(err))
	case Downstream:
		e.skipped.Add(1)
		return skipped, nil
	case Ignored:
		e.ignored.Add(1)
		return ignored, nil
	case Unknown, Fatal:
		attempts, failed := e.count(ctx, r)
		switch {
		case failed == nil && attempts >= maxAttempts:
			return buried, e.bury(ctx, r, attempts, Reason(err))
		case failed != nil && class == Unknown:
			return 0, Fail(Authoritative, "count attempts", failed)
		}
	}
	return 0, err
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
