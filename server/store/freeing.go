package store

import (
	"context"
	"slices"
)

// Freeing returns a store that writes to s also while the storage is full, as if every write
// had Frees. It is for the few small rows without which a process cannot start, and so cannot
// remove anything either. It is safe for concurrent use.
func Freeing(s Store) Store { return freeing{s} }

type freeing struct{ Store }

// Transact implements Store.
func (f freeing) Transact(ctx context.Context, p Plan) error {
	p.Writes = allFree(p.Writes)
	return f.Store.Transact(ctx, p)
}

// BatchWrite implements Store.
func (f freeing) BatchWrite(ctx context.Context, writes []Write) error {
	return f.Store.BatchWrite(ctx, allFree(writes))
}

func allFree(writes []Write) []Write {
	writes = slices.Clone(writes)
	for i := range writes {
		writes[i].Frees = true
	}
	return writes
}
