package slot

import (
	"context"
	"errors"
	"fmt"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// ErrNotHeld says that a lease is another's by now.
var ErrNotHeld = errors.New("slot: the lease is not held any more")

// Confirm returns ErrNotHeld if the lease of a slot is not the holder's any more.
func Confirm(ctx context.Context, st store.Store, holder string, s Slot) error {
	it, err := st.Get(ctx, table.LeaseKey(kind, s.Number), store.Strong)
	if err != nil {
		return fmt.Errorf("read lease: %w", err)
	}
	if table.LeaseFrom(it).Holder != holder {
		return ErrNotHeld
	}
	return nil
}

// Seen notes on the lease of a slot which revision of the topics its relay goes by. A new
// holder begins without such a note.
func Report(ctx context.Context, st store.Store, holder string, s Slot, revision int64) error {
	err := st.Transact(ctx, store.Plan{Writes: []store.Write{{
		Op: store.OpUpdate, Key: table.LeaseKey(kind, s.Number), Cond: store.Exists().Eq(table.AttrHolder, store.String(holder)), Name: "seen",
		Update: store.Update{Set: []store.Attr{{Name: table.AttrReported, Value: store.Int(revision)}}},
	}}})
	var failed *store.ConditionError
	if errors.As(err, &failed) {
		return ErrNotHeld
	}
	return err
}

// Waiting lists, in words, the slots whose relays do not go by a revision of the topics
// yet, or that nobody runs. At least one slot must be known, or nobody can say that all
// have seen it.
func Unreported(ctx context.Context, st store.Store, revision int64) ([]string, error) {
	first, err := st.Get(ctx, table.LeaseKey(kind, 0), store.Strong)
	if err != nil {
		return nil, fmt.Errorf("read leases: %w", err)
	}
	n := table.LeaseFrom(first).TotalSlots
	if n < 1 {
		return []string{"nobody runs the relay of slot 0"}, nil
	}
	keys := make([]store.Key, n)
	for i := range keys {
		keys[i] = table.LeaseKey(kind, i)
	}
	items, err := st.BatchGet(ctx, keys, store.Strong)
	if err != nil {
		return nil, fmt.Errorf("read leases: %w", err)
	}
	var waiting []string
	for i, it := range items {
		switch l := table.LeaseFrom(it); {
		case l.Holder == "":
			waiting = append(waiting, fmt.Sprintf("nobody runs the relay of slot %d", i))
		case it.Get(table.AttrReported).Int64() < revision:
			waiting = append(waiting, fmt.Sprintf("the relay of slot %d (%s) has not said so yet", i, l.Holder))
		}
	}
	return waiting, nil
}
