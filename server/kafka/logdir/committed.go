package logdir

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sort"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// txns finds out which batches belong to transactions that were not committed, as the broker
// does when it opens the files.
type txns struct {
	open    map[int64]int64  // producer → offset of the first batch since its last marker
	aborted map[int64][]Span // producer → what it has written in vain, ascending
}

// add follows a batch, whose bytes are b. A marker that cannot be read is one of an abort.
func (t *txns) add(h batch, b []byte) {
	if t.open == nil {
		t.open, t.aborted = map[int64]int64{}, map[int64][]Span{}
	}
	from, open := t.open[h.producer]
	switch {
	case h.control:
		if open && !commits(b) {
			t.aborted[h.producer] = append(t.aborted[h.producer], Span{from, h.to})
		}
		delete(t.open, h.producer)
	case h.inTxn && !open:
		t.open[h.producer] = h.from
	}
}

// commits reports whether a control batch has the marker of a commit.
func commits(b []byte) bool {
	var r kmsg.Record
	return r.ReadFrom(b[headSize:]) == nil && len(r.Key) >= 4 && binary.BigEndian.Uint16(r.Key[2:]) != 0
}

// close aborts what has no end.
func (t *txns) close(end int64) {
	for producer, from := range t.open {
		t.aborted[producer] = append(t.aborted[producer], Span{from, end})
	}
	t.open = nil
}

func (t *txns) has(h batch) bool {
	if !h.inTxn {
		return false
	}
	list := t.aborted[h.producer]
	i := sort.Search(len(list), func(i int) bool { return h.from < list[i].To })
	return i < len(list) && list[i].From <= h.from
}

// Bounds are the first offset of a partition and the one behind its last, as its files and its
// [Mark] have them: the broker showed the same after its repair. Both are 0 for a partition
// that has had nothing.
func (r *Report) Bounds(p Partition) (start, end int64) {
	part := r.partitions[p]
	if part == nil {
		return 0, 0
	}
	if end = max(part.end, part.mark.End); len(part.segs) == 0 {
		return end, end
	}
	return max(part.start, part.first), end
}

// ID is the id that the broker has given a topic; zero if its list does not have the topic.
func (r *Report) ID(topic string) (id [16]byte) { return r.ids[topic] }

// Entry is a record that was committed.
type Entry struct {
	Offset  int64
	Time    int64  // unix ms
	Key     []byte // nil: null
	Value   []byte // nil: null
	Headers []Header
}

// Header is one of a record.
type Header = kmsg.Header

// BatchError says that a batch whose checksum matches cannot be taken apart.
type BatchError struct {
	Partition
	From, To int64 // its offsets, the second excluded
	Cause    error
}

// Error names the offsets.
func (e *BatchError) Error() string {
	return fmt.Sprintf("%s: offsets %d to %d cannot be decoded: %s", e.Partition, e.From, e.To-1, e.Cause)
}

// Unwrap returns the cause.
func (e *BatchError) Unwrap() error { return e.Cause }

// Reading is what is called during a reading. An error ends the reading, and is returned.
type Reading struct {
	// Batch is called with the records of each batch, at least one, in order. They share the memory
	// of their segment.
	Batch func(list []Entry) error
	// Bad is called for each batch that cannot be decoded.
	Bad func(*BatchError) error
	// Segment is called behind each segment, read or passed over, with the size of its file. May be nil.
	Segment func(bytes int64)
}

// Committed reads what readers of committed records see of a partition from an offset on: no
// markers, no records of transactions that were aborted or have no end, and nothing that is
// damaged. One segment is in memory at a time. Errors, but for those of the calls, are of files
// that have changed since the check.
func (r *Report) Committed(p Partition, from int64, to Reading) error {
	part := r.partitions[p]
	if part == nil {
		return nil
	}
	from = max(from, part.first)
	for i, s := range part.segs {
		info, err := os.Stat(s.path(part.dir, segmentSuffix))
		if errors.Is(err, os.ErrNotExist) && len(s.Pieces) > 0 && s.Pieces[0].To == 0 {
			continue // it is missing, and only stands for what it had
		}
		if err != nil {
			return fmt.Errorf("read log: %w", err)
		}
		if i+1 == len(part.segs) || part.segs[i+1].Base > from {
			if err := part.committed(s, from, to); err != nil {
				return err
			}
		}
		if to.Segment != nil {
			to.Segment(info.Size())
		}
	}
	return nil
}

// committed reads a segment.
func (p *partition) committed(s *Segment, from int64, to Reading) error {
	b, err := os.ReadFile(s.path(p.dir, segmentSuffix))
	if err != nil {
		return fmt.Errorf("read log: %w", err)
	}
	unpack := kgo.DefaultDecompressor()
	for _, piece := range s.Pieces {
		if piece.To == 0 {
			continue
		}
		if piece.To > len(b) {
			return fmt.Errorf("%s: %s has changed since it was checked", p.name, s.path(p.dir, segmentSuffix))
		}
		for rest := b[piece.From:piece.To]; len(rest) > 0; {
			h, whole := parse(rest)
			if !whole {
				return fmt.Errorf("%s: %s has changed since it was checked", p.name, s.path(p.dir, segmentSuffix))
			}
			own := rest[:h.size]
			rest = rest[h.size:]
			if h.to <= from || h.control || p.txns.has(h) {
				continue
			}
			if err := p.give(h, own, unpack, from, to); err != nil {
				return err
			}
		}
	}
	return nil
}

// give decodes a batch, and gives what it has from an offset on.
func (p *partition) give(h batch, b []byte, unpack kgo.Decompressor, from int64, to Reading) error {
	list, err := decode(b, unpack)
	if err != nil {
		return to.Bad(&BatchError{p.name, h.from, h.to, err})
	}
	for len(list) > 0 && list[0].Offset < from {
		list = list[1:]
	}
	if len(list) == 0 {
		return nil
	}
	return to.Batch(list)
}

// codecBits are the attributes of a batch that name its compression.
const codecBits = 7

// appendTime is the attribute of a batch whose records have the time at which it was stored.
const appendTime = 1 << 3

var errOrder = errors.New("its records have no ascending offsets of their own")

// decode takes a whole batch apart: all of its records or none.
func decode(b []byte, unpack kgo.Decompressor) ([]Entry, error) {
	batch := kmsg.NewRecordBatch()
	if err := batch.UnsafeReadFrom(b); err != nil {
		return nil, err
	}
	raw, err := unpack.Decompress(batch.Records, kgo.CompressionCodecType(batch.Attributes&codecBits))
	if err != nil {
		return nil, err
	}
	list := make([]Entry, 0, max(0, min(int(batch.NumRecords), len(raw))))
	last := int64(-1)
	for range batch.NumRecords {
		size, err := recordSize(raw)
		if err != nil {
			return nil, err
		}
		var r kmsg.Record
		if err := r.ReadFrom(raw[:size]); err != nil {
			return nil, err
		}
		raw = raw[size:]
		delta := int64(r.OffsetDelta)
		if delta <= last || delta > int64(batch.LastOffsetDelta) {
			return nil, errOrder
		}
		last = delta
		e := Entry{Offset: batch.FirstOffset + delta, Time: batch.FirstTimestamp + r.TimestampDelta64, Key: r.Key,
			Value: r.Value, Headers: r.Headers}
		if uint16(batch.Attributes)&appendTime != 0 {
			e.Time = batch.MaxTimestamp
		}
		list = append(list, e)
	}
	return list, nil
}

// recordSize is the size of the first record of b with its length.
func recordSize(b []byte) (int, error) {
	length, n := binary.Varint(b)
	if n <= 0 || length < 0 || length > int64(len(b)-n) {
		return 0, errors.New("a record is cut off")
	}
	return n + int(length), nil
}
