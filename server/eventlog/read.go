package eventlog

import (
	"context"
	"errors"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/commitlog/record"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
)

// Read returns durable records from an offset on, in order: at least one if there is one, then as
// many as have about maxBytes of keys, values and headers. Without any it returns none. The last
// records come from memory, as they were published; earlier ones are read from the store. Records
// that cannot be read any more are left out, as a gap, logged, and counted (Unreadable). The
// caller does not change the records. Errors: commitlog.ErrNoTopic, and those of the store.
func (l *Log) Read(ctx context.Context, p kafka.Partition, from int64, maxBytes int) ([]*kafka.Record, error) {
	part, err := l.partition(p)
	if err != nil {
		return nil, err
	}
	maxBytes = max(maxBytes, 1)
	list, next, end := part.fromTail(from, maxBytes)
	if len(list) > 0 || next >= end {
		return list, nil
	}
	r := reading{log: l, part: part, next: next, end: end, left: maxBytes}
	err = r.run(ctx)
	r.reportLost()
	if len(r.list) > 0 { // the next call meets the error
		return r.list, nil
	}
	return nil, err
}

// reading collects records from the store.
type reading struct {
	log  *Log
	part *partition
	next int64
	end  int64
	left int // bytes
	list []*kafka.Record

	refs    record.References // that are to become records together, of any batches
	offsets []int64           // of these

	lost  span // references right before next that cannot be read, to be reported
	cause error
}

// Of batches, a read asks for a part of the bytes that the caller wants: references are smaller than
// the records that they become.
const readParts = 16

// refBytes is about the size of an event's record, maxRefs how many of them are read together: each
// may have kafka.MaxEvent bytes.
const (
	refBytes = 700
	maxRefs  = store.MaxBatchGet
)

func (r *reading) run(ctx context.Context) error {
	step := r.left / readParts
	for r.next < r.end && r.left > 0 {
		batches, err := r.log.batches(ctx, r.part, &r.next, step)
		if err != nil {
			return err
		}
		if len(batches) == 0 { // nothing but gaps up to the end
			return nil
		}
		for _, b := range batches {
			if err := r.batch(ctx, b); err != nil {
				return err
			}
		}
		if err := r.make(ctx); err != nil {
			return err
		}
		if r.left > 0 { // all of them, also if nothing of them became a record
			r.next = batches[len(batches)-1].End()
		}
	}
	return nil
}

// batches reads batches from an offset on, at least one if there is one. It moves the offset behind
// what was trimmed or cannot be read.
func (l *Log) batches(
	ctx context.Context, part *partition, next *int64, maxBytes int,
) ([]*commitlog.Batch, error) {
	for {
		list, err := l.cfg.Log.Read(ctx, part.id, *next, maxBytes)
		var bad *commitlog.CorruptError
		switch {
		case errors.As(err, &bad):
			l.lose(part, span{*next, bad.To}, err)
			*next = bad.To
		case errors.Is(err, commitlog.ErrTrimmed): // meanwhile
			start, _, err := l.cfg.Log.Bounds(ctx, part.id)
			if err != nil {
				return nil, err
			}
			*next = start
		case errors.Is(err, commitlog.ErrBeyondEnd): // all up to the end cannot be read
			return nil, nil
		default:
			return list, err
		}
	}
}

// batch adds the records of a batch. References become records later, those of several batches
// together: a batch may have one.
func (r *reading) batch(ctx context.Context, b *commitlog.Batch) error {
	first := max(0, int(r.next-b.Base))
	if b.Form == commitlog.Records {
		if err := r.make(ctx); err != nil {
			return err
		}
		for i := first; i < b.Count() && r.left > 0; i++ {
			r.add(b.Base+int64(i), b.Record(i))
		}
		return nil
	}
	refs := b.References()
	for i := first; i < b.Count() && r.left > 0; i++ {
		if n := len(r.offsets); n >= min(maxRefs, r.left/refBytes+1) || n > 0 && r.refs.PublishedIn != refs.PublishedIn {
			if err := r.make(ctx); err != nil || r.left <= 0 {
				return err
			}
		}
		r.refs.PublishedIn = refs.PublishedIn
		r.refs.List, r.offsets = append(r.refs.List, refs.List[i]), append(r.offsets, b.Base+int64(i))
	}
	return nil
}

// make makes records of the references that wait for it, as far as there is room.
func (r *reading) make(ctx context.Context) error {
	if len(r.offsets) == 0 {
		return nil
	}
	made, lost, err := readable(ctx, r.log.cfg.Store, r.refs)
	if err != nil {
		return err
	}
	for i, offset := range r.offsets {
		switch {
		case r.left <= 0:
		case lost == nil || lost[i] == nil:
			r.add(offset, made[i])
		default:
			r.lose(offset, lost[i])
		}
	}
	r.refs.List, r.offsets = r.refs.List[:0], r.offsets[:0]
	return nil
}

// lose leaves out a reference. Those that follow each other are reported together.
func (r *reading) lose(offset int64, cause error) {
	if r.cause == nil || r.lost.to != offset {
		r.reportLost()
		r.lost.from, r.cause = offset, cause
	}
	r.lost.to = offset + 1
	r.next = r.lost.to
}

func (r *reading) reportLost() {
	if r.cause != nil {
		r.log.lose(r.part, r.lost, r.cause)
		r.cause = nil
	}
}

func (r *reading) add(offset int64, rec record.Record) {
	if offset >= r.end {
		return
	}
	k := &kafka.Record{Topic: r.part.name.Topic, Partition: r.part.name.ID, Key: rec.Key, Value: rec.Value,
		Timestamp: time.UnixMilli(rec.Time), Offset: offset}
	if len(rec.Headers) > 0 {
		k.Headers = make([]kafka.Header, len(rec.Headers))
	}
	for i, h := range rec.Headers {
		k.Headers[i] = kafka.Header(h)
	}
	r.list = append(r.list, k)
	r.left -= sizeOf(k)
	r.next = offset + 1
}

// OffsetAt returns the first record whose time is at or after t. Without one, offset is -1. Records
// of one partition may have times in any order.
func (l *Log) OffsetAt(ctx context.Context, p kafka.Partition, t time.Time) (offset int64, at time.Time, err error) {
	part, err := l.partition(p)
	if err != nil {
		return -1, at, err
	}
	// A batch is as old as the latest record up to its end, so no record of an earlier batch is of the
	// time. In the batch one is, unless it is as old as one before it.
	from, err := l.cfg.Log.PositionAt(ctx, part.id, t)
	if err != nil {
		return -1, at, err
	}
	least := t.UnixMilli()
	if t.Nanosecond()%int(time.Millisecond) != 0 {
		least++
	}
	offset, ms := int64(-1), int64(0)
	err = l.times(ctx, part, from, func(o, at int64) bool {
		if at >= least {
			offset, ms = o, at
		}
		return offset < 0
	})
	if err != nil || offset < 0 {
		return -1, time.Time{}, err
	}
	return offset, time.UnixMilli(ms), nil
}

// Newest returns the first of the records with the greatest time. Without records, offset is -1.
func (l *Log) Newest(ctx context.Context, p kafka.Partition) (offset int64, at time.Time, err error) {
	part, err := l.partition(p)
	if err != nil {
		return -1, at, err
	}
	_, end := part.bounds()
	// The last batch is as old as the latest record that there ever was.
	if last, err := l.cfg.Log.Read(ctx, part.id, max(0, end-1), 1); err == nil && len(last) > 0 {
		if offset, at, err = l.OffsetAt(ctx, p, time.UnixMilli(last[0].Time)); err != nil || offset >= 0 {
			return offset, at, err
		}
	}
	offset, ms := int64(-1), int64(0) // that record was trimmed, or cannot be read
	err = l.times(ctx, part, 0, func(o, at int64) bool {
		if offset < 0 || at > ms {
			offset, ms = o, at
		}
		return true
	})
	if err != nil || offset < 0 {
		return -1, time.Time{}, err
	}
	return offset, time.UnixMilli(ms), nil
}

// timesBytes is how many bytes of batches are read together to find a time.
const timesBytes = 64 << 10

// times calls f with the offsets and times of records from an offset on until f returns false.
func (l *Log) times(ctx context.Context, part *partition, from int64, f func(offset, at int64) bool) error {
	start, end := part.bounds()
	for next := max(from, start); next < end; {
		batches, err := l.batches(ctx, part, &next, timesBytes)
		if err != nil || len(batches) == 0 {
			return err
		}
		for _, b := range batches {
			for i := max(0, int(next-b.Base)); i < b.Count() && b.Base+int64(i) < end; i++ {
				if !f(b.Base+int64(i), timeOf(b, i)) {
					return nil
				}
			}
			next = b.End()
		}
	}
	return nil
}

func timeOf(b *commitlog.Batch, i int) int64 {
	if b.Form == commitlog.References {
		return b.References().List[i].Time
	}
	return b.Record(i).Time
}
