package consume

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/parley-chat/parley/server/kafka"
)

// Isolation is the lock under which a process works on a suspect with nothing else in
// work. A crash ends the whole process, so all engines of a process must share one
// Isolation: otherwise the crash of one engine is blamed on the suspect of another. The
// zero value is ready for use.
type Isolation struct{ mu sync.RWMutex }

// claim claims the partitions whose first records have come. A portion whose partition
// cannot be claimed has to wait.
func (e *Engine) claim(ctx context.Context, portions []*portion) error {
	var list []*portion
	e.mu.Lock()
	for _, po := range portions {
		if po.partition.ownership == assigned {
			list = append(list, po)
		}
	}
	e.mu.Unlock()
	var failed error
	for chunk := range slices.Chunk(list, maxClaims) {
		claims := make([]crashClaim, len(chunk))
		for i, po := range chunk {
			claims[i] = crashClaim{Partition: po.partition.id, First: po.batch.Records[0].Offset, End: po.batch.End}
		}
		quarantines, err := e.crashes.Claim(ctx, claims)
		if err == nil { // not before: until now another owner could park keys
			err = e.parking.loadClaimed(ctx, chunk)
		}
		if err != nil {
			failed = err
			for _, po := range chunk {
				po.stopped = true
			}
			continue
		}
		e.mu.Lock()
		for i, po := range chunk {
			po.partition.ownership, po.partition.quarantine = owned, quarantines[i]
		}
		e.mu.Unlock()
	}
	return failed
}

// workIsolated handles the suspects at the start of a portion. Once full is set, nothing
// more is started: the rest of the portion waits for the next round.
func (e *Engine) workIsolated(ctx context.Context, po *portion, full *atomic.Bool) {
	p := po.partition
	if p.quarantine == nil || po.stopped {
		return
	}
	e.cfg.Isolation.mu.Lock()
	defer e.cfg.Isolation.mu.Unlock()
	recorded := false
	for ; po.next < len(po.done) && !po.stopped && ctx.Err() == nil; po.next++ {
		if full.Load() {
			po.stopped = true
			break
		}
		r := po.batch.Records[po.next]
		if !p.quarantine.Suspect(r.Offset) {
			p.quarantine = nil
			break
		}
		if po.done[po.next] {
			continue
		}
		err := e.crashes.RecordSuspect(ctx, p.id, r.Offset)
		if err != nil {
			err = Fail(Authoritative, "record the suspect", err)
		} else {
			recorded = true
			err = e.workSuspect(ctx, r, p.quarantine.Crashes(r.Offset))
		}
		switch {
		case err == nil:
			po.done[po.next] = true
		case ClassOf(err) == Fatal:
			po.stopped, po.fatal = true, err
		default:
			po.stopped = true
			e.logWaiting(r, err)
		}
	}
	if ctx.Err() != nil {
		po.stopped = true
	}
	if recorded {
		if err := e.crashes.ClearSuspect(context.WithoutCancel(ctx), p.id); err != nil {
			e.cfg.Logger.Warn("consume: a suspect stays recorded that is no longer alone", "group", e.cfg.Group, "error", err)
		}
	}
}

// workSuspect handles one suspect, or dead-letters it if it has crashed too often.
func (e *Engine) workSuspect(ctx context.Context, r *kafka.Record, crashes int) error {
	if _, stays, err := e.follow(ctx, []*kafka.Record{r}); stays || err != nil {
		return err
	}
	if crashes >= maxAttempts {
		return e.giveUp(ctx, r, crashes, Fail(Unknown, "the process ended while it worked on the record", nil))
	}
	_, err := e.record(ctx, r, downstreamWaits)
	return err
}
