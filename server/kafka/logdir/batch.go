package logdir

import (
	"encoding/binary"
	"hash/crc32"
)

// The head of a record batch, and where its fields are.
const (
	headSize      = 61
	prefixSize    = 12 // offset and length, which counts what follows it
	atLength      = 8
	atEpoch       = 12 // of the partition's leader
	atMagic       = 16
	atSum         = 17
	atAttributes  = 21 // the sum covers all from here on
	atLastDelta   = 23
	atFirstTime   = 27
	atProducer    = 43
	transactional = 1 << 4
	control       = 1 << 5
	maxBatch      = 1 << 30
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// batch is the head of one that is whole.
type batch struct {
	size     int
	from, to int64 // offsets, the second excluded
	inTxn    bool
	control  bool // it has the marker of a transaction
	producer int64
	time     int64 // of the first record, unix ms
}

// parse reads the batch at the beginning of b, and reports whether it is whole.
func parse(b []byte) (batch, bool) {
	if len(b) < headSize || b[atMagic] != 2 {
		return batch{}, false
	}
	length := int64(binary.BigEndian.Uint32(b[atLength:]))
	from := int64(binary.BigEndian.Uint64(b))
	delta := int32(binary.BigEndian.Uint32(b[atLastDelta:]))
	size := prefixSize + length
	// Neither offset nor epoch is under the sum. There is one broker, so the epoch is 0.
	if from < 0 || delta < 0 || binary.BigEndian.Uint32(b[atEpoch:]) != 0 || length > maxBatch || size < headSize ||
		size > int64(len(b)) {
		return batch{}, false
	}
	if crc32.Checksum(b[atAttributes:size], castagnoli) != binary.BigEndian.Uint32(b[atSum:]) {
		return batch{}, false
	}
	attributes := binary.BigEndian.Uint16(b[atAttributes:])
	return batch{
		size: int(size), from: from, to: from + int64(delta) + 1,
		inTxn:    attributes&transactional != 0 && attributes&control == 0,
		control:  attributes&control != 0,
		producer: int64(binary.BigEndian.Uint64(b[atProducer:])),
		time:     int64(binary.BigEndian.Uint64(b[atFirstTime:])),
	}, true
}

// next finds the first whole batch after the beginning of b whose offset may follow;
// len(b) if there is none. Most places are ruled out without a checksum.
func next(b []byte, follows func(offset int64, skipped int) bool) int {
	for i := 1; i+headSize <= len(b); i++ {
		if b[i+atMagic] != 2 || !follows(int64(binary.BigEndian.Uint64(b[i:])), i) {
			continue
		}
		if _, ok := parse(b[i:]); ok {
			return i
		}
	}
	return len(b)
}
