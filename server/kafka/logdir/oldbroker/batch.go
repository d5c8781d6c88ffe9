package oldbroker

import (
	"encoding/binary"
	"hash/crc32"
	"math"
	"time"

	"github.com/parley-chat/parley/server/kafka/logdir"
)

// The head of a record batch, and where its fields are.
const (
	headSize      = 61
	prefixSize    = 12 // offset and length, which counts what follows it
	atLength      = 8
	atMagic       = 16
	atSum         = 17
	atAttributes  = 21 // the sum covers all from here on
	atLastDelta   = 23
	atFirstTime   = 27
	atMaxTime     = 35
	atProducer    = 43
	atEpoch       = 51 // of the producer
	atSequence    = 53
	atRecords     = 57
	transactional = 1 << 4
	control       = 1 << 5
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// head is what is read of one.
type head struct {
	attributes uint16
	producer   int64
	epoch      int16
}

// heads calls each with the heads of batches. A torn batch ends it: the broker cuts that one off.
func heads(b []byte, each func(head)) {
	for len(b) >= headSize {
		size := prefixSize + int64(binary.BigEndian.Uint32(b[atLength:]))
		if size < headSize || size > int64(len(b)) {
			return
		}
		each(head{binary.BigEndian.Uint16(b[atAttributes:]), int64(binary.BigEndian.Uint64(b[atProducer:])),
			int16(binary.BigEndian.Uint16(b[atEpoch:]))})
		b = b[size:]
	}
}

// txn is a transaction that has no end in a partition.
type txn struct {
	logdir.Partition
	producer int64
	epoch    int16
}

// openTxns finds the transactions without an end. It checks the last two segments, as the last release did: the
// broker makes a segment when it has a batch for it.
func openTxns(p logdir.Partition, dir string, segments []*logdir.Segment) (list []txn, err error) {
	open := map[int64]int16{}
	for _, s := range segments[max(0, len(segments)-2):] {
		b, err := read(segmentPath(dir, s))
		if err != nil {
			return nil, err
		}
		heads(b, func(h head) {
			switch {
			case h.attributes&control != 0:
				delete(open, h.producer)
			case h.attributes&transactional != 0:
				open[h.producer] = h.epoch
			}
		})
	}
	for producer, epoch := range open {
		list = append(list, txn{p, producer, epoch})
	}
	return list, nil
}

// filler makes the batches that stand for missing offsets: the marker of a transaction that no producer began, which
// clients skip. One batch spans 2³¹ offsets at most.
func filler(s logdir.Span) (out []byte) {
	for s.From < s.To {
		last := min(s.To-1-s.From, math.MaxInt32)
		out = append(out, marker(s.From, int32(last))...)
		s.From += last + 1
	}
	return out
}

func marker(offset int64, delta int32) []byte {
	// A control record: length, attributes, time and offset deltas, key (version 0,
	// type 0: abort), value (version 0, coordinator 0), no headers.
	body := []byte{0, 0}
	body = binary.AppendVarint(body, int64(delta))
	body = binary.AppendVarint(body, 4)
	body = append(body, 0, 0, 0, 0)
	body = binary.AppendVarint(body, 6)
	body = append(body, 0, 0, 0, 0, 0, 0, 0)
	record := append(binary.AppendVarint(nil, int64(len(body))), body...)

	b := make([]byte, headSize, headSize+len(record))
	binary.BigEndian.PutUint64(b, uint64(offset))
	binary.BigEndian.PutUint32(b[atLength:], uint32(headSize-prefixSize+len(record)))
	b[atMagic] = 2
	binary.BigEndian.PutUint16(b[atAttributes:], transactional|control)
	binary.BigEndian.PutUint32(b[atLastDelta:], uint32(delta))
	now := uint64(time.Now().UnixMilli())
	binary.BigEndian.PutUint64(b[atFirstTime:], now)
	binary.BigEndian.PutUint64(b[atMaxTime:], now)
	binary.BigEndian.PutUint64(b[atProducer:], math.MaxInt64) // no broker gives this id away
	binary.BigEndian.PutUint32(b[atSequence:], math.MaxUint32)
	binary.BigEndian.PutUint32(b[atRecords:], 1)
	b = append(b, record...)
	binary.BigEndian.PutUint32(b[atSum:], crc32.Checksum(b[atAttributes:], castagnoli))
	return b
}

// indexEntry is the size of an index's entry for a batch: version, the low byte of its sum, the epoch, a time
// that is made again when it is read, and whether the batch stands in a transaction.
const indexEntry = 15

func appendIndex(b []byte, h head) []byte {
	e := make([]byte, indexEntry)
	e[0] = 1
	if h.attributes&(transactional|control) == transactional {
		e[indexEntry-1] = 1
	}
	e[1] = byte(crc32.Checksum(e[2:], castagnoli))
	return append(b, e...)
}
