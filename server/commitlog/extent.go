package commitlog

import (
	"context"
	"fmt"
)

// Extent is where a batch lies.
type Extent struct {
	Base, End int64 // positions
	Time      int64 // as of the batch
	// Before is the sum of the bytes of the batches before it, from some batch on that was the
	// first of the partition, Bytes its own, with its key. They are as stored, before compression.
	Before, Bytes int64
}

// ExtentFrom returns the extent of the first batch that has a position, or a later one, and can be
// read; ok is false if there is none.
func (l *Local) ExtentFrom(ctx context.Context, id Partition, from int64) (e Extent, ok bool, err error) {
	start, _, end, err := l.view(ctx, id)
	if err != nil {
		return e, false, err
	}
	s, err := l.stampFrom(ctx, id, max(from, start), end)
	if err != nil {
		return e, false, fmt.Errorf("partition %s, from position %d on: %w", id, from, err)
	}
	return Extent{Base: s.base, End: s.last + 1, Time: s.time, Before: s.before, Bytes: s.bytes}, s.last >= 0, nil
}

// Size implements Log. It reads one batch of each partition.
func (l *Local) Size(ctx context.Context, topic uint64, partitions int32) (n int64, err error) {
	for number := range partitions {
		b, err := l.Bytes(ctx, Partition{Topic: topic, Number: number})
		if err != nil {
			return 0, err
		}
		n += b
	}
	return n, nil
}

// Bytes returns how many bytes the batches of a partition have. It reads one batch. Batches at the
// start that cannot be read, or that do not say what is before them, are not counted.
func (l *Local) Bytes(ctx context.Context, id Partition) (int64, error) {
	e, ok, err := l.ExtentFrom(ctx, id, 0)
	if err != nil || !ok {
		return 0, err
	}
	p := l.partition(id)
	if err := l.lock(ctx, p); err != nil {
		return 0, err
	}
	defer p.mu.Unlock()
	return max(0, p.bytes-e.Before), nil
}

// PositionOf returns the end of the first batch with which the bytes of the partition, counted as
// in [Extent], come to a number; the end of the partition if they do not. It reads as many batches
// as halvings lead to one.
func (l *Local) PositionOf(ctx context.Context, id Partition, bytes int64) (int64, error) {
	lo, _, end, err := l.view(ctx, id)
	if err != nil {
		return 0, err
	}
	to := end
	for hi := end; lo < hi; {
		mid := lo + (hi-lo)/2
		s, err := l.stampFrom(ctx, id, mid, hi)
		switch {
		case err != nil:
			return 0, fmt.Errorf("partition %s, from position %d on: %w", id, mid, err)
		case s.last < 0: // corrupt, or trimmed meanwhile
			hi = mid
		case s.before+s.bytes < bytes:
			lo = s.last + 1
		default:
			hi, to = max(lo, min(s.base-s.gap, mid)), s.last+1
		}
	}
	return to, nil
}
