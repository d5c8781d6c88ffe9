package commitlog

import (
	"context"
	"fmt"
	"slices"

	"github.com/parley-chat/parley/server/store"
)

// Skip is what a partition of the event log has had elsewhere, and has no records of.
type Skip struct {
	Partition Partition
	// Start is the first position. It counts if the partition has had nothing yet.
	Start int64
	// End is the position behind the last one. Those up to it that have no record yet do not exist.
	End int64
}

// Skip moves partitions of the event log on, all of them or none, and returns when that is durable.
// It moves nothing back: a repetition changes nothing. Each partition is in the list once. Errors:
// ErrInvalid, ErrNoTopic, and those of the store.
func (l *Local) Skip(ctx context.Context, list []Skip) error {
	wait, err := l.skip(ctx, slices.SortedFunc(slices.Values(list), func(a, b Skip) int {
		return compare(a.Partition, b.Partition)
	}))
	if err != nil {
		return err
	}
	return wait(ctx)
}

func (l *Local) skip(ctx context.Context, list []Skip) (wait func(context.Context) error, err error) {
	l.deleting.RLock()
	defer l.deleting.RUnlock()
	appends := make([]Append, len(list))
	for i, s := range list {
		if appends[i].Partition = s.Partition; !s.Partition.OfEventLog() || s.Start < 0 || s.End < s.Start ||
			s.End > MaxGap || i > 0 && s.Partition == list[i-1].Partition {
			return nil, fmt.Errorf("%w: partition %s, skipped from %d to %d", ErrInvalid, s.Partition, s.Start, s.End)
		}
		if err := checkPartition(s.Partition); err != nil {
			return nil, err
		}
	}
	w := &writing{log: l}
	if err := w.lock(ctx, appends); err != nil {
		return nil, err
	}
	defer w.unlock()
	for i := range w.locked {
		if next := &w.next[i]; next.skip(list[i]) {
			w.records = append(w.records, store.Record{Key: headKey(list[i].Partition), Value: next.value(), Frees: true})
		}
	}
	written, err := w.write(ctx, nil, nil, nil)
	return w.waiter(written), err
}

// skip changes a head, and reports whether there was anything to change.
func (h *head) skip(s Skip) (changed bool) {
	if h.end == 0 && s.Start > 0 {
		h.start, h.end, changed = s.Start, s.Start, true
	}
	if s.End > h.end {
		h.void = [2]int64{h.end - h.trailing(), s.End}
		h.end, changed = s.End, true
	}
	return changed
}
