package slot

import (
	"context"
	"errors"
	"fmt"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// ErrNotHeld is the error of a process that does not hold a lease any more.
var ErrNotHeld = errors.New("slot: the lease is no longer held")

// Confirm returns ErrNotHeld if a process does not hold the lease of a slot any more.
func Confirm(ctx context.Context, st store.Store, holder string, s Slot) error {
	it, err := st.Get(ctx, table.LeaseKey(Kind, s.Number), store.Strong)
	if err != nil {
		return fmt.Errorf("read lease: %w", err)
	}
	if table.LeaseFrom(it).Holder != holder {
		return ErrNotHeld
	}
	return nil
}

// Report records on the lease of a slot by which revision of the topics its relay publishes.
// A new holder starts without a report.
func Report(ctx context.Context, st store.Store, holder string, s Slot, revision int64) error {
	err := st.Transact(ctx, store.Plan{Writes: []store.Write{{
		Op: store.OpUpdate, Key: table.LeaseKey(Kind, s.Number),
		Cond: store.Exists().Eq(table.AttrHolder, store.String(holder)), Name: "report",
		Update: store.Update{Set: []store.Attr{{Name: table.AttrReported, Value: store.Int(revision)}}},
	}}})
	var failed *store.ConditionError
	if errors.As(err, &failed) {
		return ErrNotHeld
	}
	return err
}

// Unreported lists, as sentences for operators, the slots that are not run by a process or
// whose relays have not reported a revision of the topics yet. If slot 0 is not run, the
// number of slots is unknown, and so is whether all have reported.
func Unreported(ctx context.Context, st store.Store, revision int64) ([]string, error) {
	first, err := st.Get(ctx, table.LeaseKey(Kind, 0), store.Strong)
	if err != nil {
		return nil, fmt.Errorf("read leases: %w", err)
	}
	n := table.LeaseFrom(first).TotalSlots
	if n < 1 {
		return []string{"no worker runs the relay of slot 0"}, nil
	}
	keys := make([]store.Key, n)
	for i := range keys {
		keys[i] = table.LeaseKey(Kind, i)
	}
	items, err := st.BatchGet(ctx, keys, store.Strong)
	if err != nil {
		return nil, fmt.Errorf("read leases: %w", err)
	}
	var list []string
	for i, it := range items {
		switch l := table.LeaseFrom(it); {
		case l.Holder == "":
			list = append(list, fmt.Sprintf("no worker runs the relay of slot %d", i))
		case it.Get(table.AttrReported).Int64() < revision:
			list = append(list, fmt.Sprintf("the relay of slot %d (%s) has not reported yet", i, l.Holder))
		}
	}
	return list, nil
}
