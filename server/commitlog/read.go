package commitlog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/parley-chat/parley/server/store"
)

// Read implements Reader. The last batch may exceed maxBytes.
func (l *Local) Read(ctx context.Context, id Partition, from int64, maxBytes int) ([]*Batch, error) {
	start, last, end, err := l.view(ctx, id)
	switch {
	case err != nil:
		return nil, err
	case from < start:
		return nil, fmt.Errorf("%w: %d, partition %s begins with %d", ErrTrimmed, from, id, start)
	case from > end:
		return nil, fmt.Errorf("%w: %d, partition %s ends with %d", ErrBeyondEnd, from, id, end)
	case from >= last:
		return nil, nil
	}
	r := reading{next: from, left: maxBytes}
	err = l.records.Seek(ctx, batchKey(id, from), batchKey(id, end), false, r.add)
	if len(r.batches) > 0 {
		return r.batches, nil // the next call reports errors behind them
	}
	if err != nil && !errors.Is(err, store.ErrCorrupt) {
		return nil, err
	}
	// There is something at from: it is corrupt, or was trimmed meanwhile.
	bad := err
	if start, _, end, err = l.view(ctx, id); err == nil && start > from {
		err = fmt.Errorf("%w: %d, partition %s begins with %d", ErrTrimmed, from, id, start)
	}
	switch {
	case err != nil:
		return nil, err
	case r.bad != nil:
		return nil, &CorruptError{Partition: id, From: from, To: r.to, Cause: r.bad}
	case bad != nil:
		return nil, l.damage(ctx, id, from, end, bad)
	}
	return nil, &CorruptError{Partition: id, From: from, To: end, Cause: corrupt("batches are missing")}
}

// reading collects batches.
type reading struct {
	next    int64 // position that must come next
	left    int   // bytes
	batches []*Batch
	bad     error
	to      int64 // position behind what is bad
}

func (r *reading) add(key []byte, value func() ([]byte, error)) bool {
	b, err := readBatch(key, value)
	switch {
	case err != nil:
		r.bad, r.to = err, lastOf(key)+1
	case b.Base-b.Gap > r.next:
		r.bad, r.to = corrupt("a batch is missing"), b.Base-b.Gap
	case b.Base < r.next && len(r.batches) > 0:
		r.bad, r.to = corrupt("batches overlap"), b.End()
	}
	if r.bad != nil {
		return false
	}
	r.batches = append(r.batches, b)
	r.next = b.End()
	r.left -= len(b.body)
	return r.left > 0
}

func readBatch(key []byte, value func() ([]byte, error)) (*Batch, error) {
	v, err := value()
	if err != nil {
		return nil, err
	}
	return parseAt(key, slices.Clone(v))
}

// damage names the positions from one on whose record cannot even be found, because a part
// of a file is damaged. The end of it is searched in steps that double, then halve.
func (l *Local) damage(ctx context.Context, id Partition, from, end int64, cause error) error {
	var err error
	to := from
	good := func(at int64) bool {
		b, e := l.batchAt(ctx, id, at, end)
		if e != nil && !errors.Is(e, store.ErrCorrupt) {
			err = e
		}
		if b != nil {
			to = max(from+1, b.Base)
		}
		return err != nil || b != nil
	}
	lo, step := from, int64(1) // nothing can be read at lo
	for lo+step < end && !good(lo+step) {
		lo, step = lo+step, 2*step
	}
	hi := min(lo+step, end)
	if to == from {
		to = end
	}
	for hi-lo > 1 && err == nil {
		if mid := lo + (hi-lo)/2; good(mid) {
			hi = min(mid, to)
		} else {
			lo = mid
		}
	}
	if err != nil {
		return err
	}
	return &CorruptError{Partition: id, From: from, To: to, Cause: cause}
}

// batchAt reads the batch that holds a position, or the next one.
func (l *Local) batchAt(ctx context.Context, id Partition, at, end int64) (b *Batch, err error) {
	var bad error
	err = l.records.Seek(ctx, batchKey(id, at), batchKey(id, end), false,
		func(key []byte, value func() ([]byte, error)) bool {
			b, bad = readBatch(key, value)
			return false
		})
	if err == nil {
		err = bad
	}
	return b, err
}

// PositionAt implements Reader. It checks as many batches as halvings lead to one. A
// corrupt batch counts as old as the batch that follows it.
func (l *Local) PositionAt(ctx context.Context, id Partition, t time.Time) (int64, error) {
	lo, last, end, err := l.view(ctx, id)
	if err != nil {
		return 0, err
	}
	hi := last
	at := t.UnixMilli()
	if t.Nanosecond()%int(time.Millisecond) != 0 {
		at++ // times are in ms: the next is the first that is not before t
	}
	for lo < hi {
		mid := lo + (hi-lo)/2
		s, err := l.stampFrom(ctx, id, mid, hi)
		switch {
		case err != nil:
			return 0, fmt.Errorf("partition %s, from position %d on: %w", id, mid, err)
		case s.last < 0 && s.corrupt:
			hi = mid
		case s.last < 0: // trimmed meanwhile
			hi = lo
		case s.time < at:
			lo = s.last + 1
		default:
			hi = max(lo, min(s.base-s.gap, mid))
		}
	}
	if lo >= last {
		return end, nil
	}
	s, err := l.stampFrom(ctx, id, lo, last)
	if err == nil && !s.corrupt && s.last >= 0 && lo < s.base && s.base-s.gap <= lo { // lo does not exist
		lo = s.base
	}
	return lo, err
}

// stamp is where a batch is, and when.
type stamp struct {
	base, last int64 // last: -1 if there is no batch
	time       int64
	gap        int64
	before     int64 // bytes of the batches before it
	bytes      int64
	corrupt    bool // there is something before it that cannot be read
}

// stampFrom checks the first batch that can be read, from a position on, below another.
func (l *Local) stampFrom(ctx context.Context, id Partition, from, below int64) (stamp, error) {
	s := stamp{last: -1}
	for from < below {
		var other error
		err := l.records.Seek(ctx, batchKey(id, from), batchKey(id, below), false,
			func(key []byte, value func() ([]byte, error)) bool {
				v, err := value()
				if err != nil && !errors.Is(err, store.ErrCorrupt) {
					other = err
					return false
				}
				if err != nil || len(v) < batchHeader {
					s.corrupt = true
					return true
				}
				s.base, s.last, s.time, s.gap = baseOf(v), lastOf(key), timeOf(v), gapOf(v)
				s.before, s.bytes = beforeOf(v), storedSize(v)
				return false
			})
		if other != nil {
			return s, other
		}
		if err == nil || s.last >= 0 {
			return s, nil
		}
		if !errors.Is(err, store.ErrCorrupt) {
			return s, err
		}
		var bad *CorruptError
		if err := l.damage(ctx, id, from, below, err); !errors.As(err, &bad) {
			return s, err
		}
		s.corrupt, from = true, bad.To
	}
	return s, nil
}
