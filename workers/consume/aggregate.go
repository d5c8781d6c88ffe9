package consume

import (
	"context"
	"errors"
	"fmt"

	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
)

// AggregateHandler returns the changes that records of one aggregate make in the store. The
// records have one key and one partition and are in order; there is at least one, and at
// most kafka.MaxPoll. It reads what it needs and writes nothing itself: Apply commits its
// effect in one transaction, before the records' offsets are committed.
//
// The same records come again after a crash, a rebalance, or a transaction with an unknown
// outcome, and then maybe divided in another way. So the effect contains the progress of the
// aggregate (the version of its last event, say), and the handler leaves out records that
// are not beyond it. A condition of a write states what was read. If a condition fails, the
// handler is called again and reads again. Then an effect happens once, in order, even if
// other processes work on the aggregate at the same time.
//
// An error is about the record at Effect.Finished; those before it are finished, and their
// effect is committed. The class of the error decides (see the package), with two
// differences: nothing is skipped, so downstream is as authoritative, and the later records
// of a key that has a dead letter are parked behind it.
type AggregateHandler func(ctx context.Context, records []*kafka.Record) (Effect, error)

// Effect is what records of one aggregate change: all of it is committed, or nothing.
type Effect struct {
	// Finished is how many records it is the effect of, from the first one on. Fewer than all
	// without an error are allowed, at least one: the rest comes in the next call.
	Finished int
	// Writes are one plan: at most store.MaxPlanWrites and store.MaxPlanBytes. None are
	// allowed: the records change nothing, or are in the store already.
	Writes []store.Write
}

// maxContended is how often a handler is called for the same records because something else
// has changed what it read.
const maxContended = 4

// Apply calls a handler until it has finished all records or fails, and commits each effect.
// It returns how many records are finished; an error is about the first one that is left.
func Apply(
	ctx context.Context, st store.Store, h AggregateHandler, records []*kafka.Record,
) (finished int, err error) {
	for contended := 0; finished < len(records); {
		left := records[finished:]
		effect, failure := h(ctx, left)
		if effect.Finished < 0 || effect.Finished > len(left) || effect.Finished == 0 && failure == nil {
			return finished, Fail(Unknown, fmt.Sprintf("the handler says that %d of %d records are finished",
				effect.Finished, len(left)), failure)
		}
		if err := commit(ctx, st, effect); err != nil {
			var lost *store.ConditionError
			if contended++; errors.As(err, &lost) && contended < maxContended {
				continue
			}
			return finished, err
		}
		finished, contended = finished+effect.Finished, 0
		if failure != nil {
			return finished, failure
		}
	}
	return finished, nil
}

// commit commits the effect of finished records. Where they are in the store already, by a
// plan whose answer was lost, that plan may not be on the disk yet.
func commit(ctx context.Context, st store.Store, e Effect) error {
	switch {
	case e.Finished == 0:
		return nil
	case len(e.Writes) == 0:
		return st.Durable(ctx)
	}
	return st.Transact(ctx, store.Plan{Writes: e.Writes})
}

// Batch returns the handler as one that commits its effects to a store.
func (h AggregateHandler) Batch(st store.Store) BatchHandler {
	return func(ctx context.Context, records []*kafka.Record) (int, error) {
		return Apply(ctx, st, h, records)
	}
}

// One returns the handler as one of single records that commits its effects to a store, for
// dead letters that are redriven.
func (h AggregateHandler) One(st store.Store) Handler { return h.Batch(st).One() }
