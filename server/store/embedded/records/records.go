// Package records gives the embedded engine's ordered records, which lie beside the tables
// in the same Pebble and share its log, its syncs and its watch on free space.
//
// It owns their keys' place and nothing of what they mean. Concurrency: a Records may be
// used by many goroutines.
package records

import (
	"bytes"
	"context"

	"github.com/cockroachdb/pebble/v2"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded"
)

// Records implements store.Records.
type Records struct {
	of     *embedded.Store
	prefix []byte
	end    []byte
}

var (
	_ store.Records   = (*Records)(nil)
	_ store.Reclaimer = (*Records)(nil)
)

// Of returns the records of an open engine.
func Of(s *embedded.Store) *Records {
	from, to := embedded.RecordRange()
	return &Records{of: s, prefix: from, end: to}
}

// batchOverhead is about what a batch has beside keys and values, for each of them.
const batchOverhead = 32

// Commit implements store.Records.
func (r *Records) Commit(
	ctx context.Context, records []store.Record, rows ...store.Key,
) (wait func() error, err error) {
	size := batchOverhead
	for i := range rows {
		size += batchOverhead + len(rows[i].PK) + len(rows[i].SK)
	}
	frees := true
	for i := range records {
		size += batchOverhead + len(records[i].Key) + len(records[i].Value) + len(records[i].Until)
		frees = frees && (records[i].Until != nil || records[i].Frees)
	}
	b := r.of.NewBatch(size)
	for i := range records {
		if err := r.add(b, &records[i]); err != nil {
			_ = b.Close()
			return nil, err
		}
	}
	if wait, err = r.of.Commit(ctx, b, frees, rows); err != nil {
		_ = b.Close() // nothing was written, the error says why
	}
	return wait, err
}

func (r *Records) add(b *pebble.Batch, record *store.Record) error {
	if one := len(record.Key); len(record.Until) == one+1 && record.Until[one] == 0 &&
		bytes.Equal(record.Until[:one], record.Key) { // nothing is between them
		return b.Delete(r.key(record.Key), nil)
	}
	if record.Until != nil {
		return b.DeleteRange(r.key(record.Key), r.key(record.Until), nil)
	}
	op := b.SetDeferred(len(r.prefix)+len(record.Key), len(record.Value))
	copy(op.Key, r.prefix)
	copy(op.Key[len(r.prefix):], record.Key)
	copy(op.Value, record.Value)
	return op.Finish()
}

func (r *Records) key(k []byte) []byte {
	return append(append(make([]byte, 0, len(r.prefix)+len(k)), r.prefix...), k...)
}

// Seek implements store.Records.
func (r *Records) Seek(ctx context.Context, from, until []byte, descending bool,
	f func(key []byte, value func() ([]byte, error)) bool,
) error {
	lower, upper := r.key(from), r.end
	if until != nil {
		upper = r.key(until)
	}
	if bytes.Compare(lower, upper) >= 0 {
		return nil
	}
	return r.of.Iterate(ctx, lower, upper, func(it *pebble.Iterator) error {
		first, next := it.First, it.Next
		if descending {
			first, next = it.Last, it.Prev
		}
		for ok := first(); ok && f(it.Key()[len(r.prefix):], it.ValueAndErr); ok = next() {
			if err := ctx.Err(); err != nil {
				return err
			}
		}
		return it.Error()
	})
}

// Durable implements store.Records.
func (r *Records) Durable(ctx context.Context) error { return r.of.Durable(ctx) }

// Size implements store.Reclaimer.
func (r *Records) Size(from, until []byte) (int64, error) {
	return r.of.Size(r.key(from), r.key(until))
}

// Short implements store.Reclaimer.
func (r *Records) Short() bool { return r.of.Short() }

// Reclaim implements store.Reclaimer.
func (r *Records) Reclaim(ctx context.Context, from, until []byte) error {
	return r.of.Reclaim(ctx, r.key(from), r.key(until))
}
