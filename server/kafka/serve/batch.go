package serve

import (
	"encoding/binary"
	"hash/crc32"
	"math"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Sizes in a record batch of version 2.
const (
	batchHeader = 61 // bytes before the records
	batchPrefix = 12 // bytes that the field length does not count: the offset and itself
	crcEnd      = 21 // the checksum covers what is behind it
)

// castagnoli is the polynomial of a batch's checksum. crc32 makes the table once.
func castagnoli(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

// appendBatches appends records as batches: one, or more where offsets or times are too far apart for one. It
// does not compress them: clients are on the same machine, and compressing costs more than the copies of the
// bytes that it saves (BenchmarkBatch).
func appendBatches(b []byte, records []*kgo.Record) []byte {
	for len(records) > 0 {
		n := 1
		for n < len(records) && records[n].Offset-records[0].Offset <= math.MaxInt32 {
			n++
		}
		b = appendBatch(b, records[:n])
		records = records[n:]
	}
	return b
}

// appendBatch appends one batch.
func appendBatch(b []byte, records []*kgo.Record) []byte {
	start := len(b)
	first, last := records[0], records[len(records)-1]
	batch := newBatch(first.Offset, last.Offset)
	batch.FirstTimestamp = first.Timestamp.UnixMilli()
	batch.MaxTimestamp = batch.FirstTimestamp
	batch.NumRecords = int32(len(records))
	b = append(b, make([]byte, batchHeader)...) // written when the greatest time is known
	var r kmsg.Record
	for _, rec := range records {
		at := rec.Timestamp.UnixMilli()
		batch.MaxTimestamp = max(batch.MaxTimestamp, at)
		r.Key, r.Value, r.Headers = rec.Key, rec.Value, r.Headers[:0]
		for i := range rec.Headers {
			r.Headers = append(r.Headers, kmsg.Header{Key: rec.Headers[i].Key, Value: rec.Headers[i].Value})
		}
		r.TimestampDelta64 = at - batch.FirstTimestamp
		r.OffsetDelta = int32(rec.Offset - first.Offset)
		r.Length = int32(recordSize(&r))
		b = r.AppendTo(b)
	}
	return sealBatch(b, start, batch)
}

// appendGap appends what takes a reader over a gap to an offset: the end of a transaction, as Kafka writes it, which
// clients pass over. A client that keeps such records sees that it has reached the offset; of a batch without records
// it would see nothing.
func appendGap(b []byte, to int64) []byte {
	batch := newBatch(to-1, to-1)
	batch.FirstTimestamp, batch.MaxTimestamp = -1, -1
	batch.Attributes, batch.NumRecords = controlBatch, 1
	start := len(b)
	r := kmsg.Record{Key: []byte{0, 0, 0, 1}, Value: make([]byte, 6)} // version 0, a commit; version 0, no coordinator
	r.Length = int32(recordSize(&r))
	return sealBatch(r.AppendTo(append(b, make([]byte, batchHeader)...)), start, batch)
}

// controlBatch is the attribute of a batch whose record is not for applications.
const controlBatch = 1 << 5

func newBatch(first, last int64) *kmsg.RecordBatch {
	batch := new(kmsg.RecordBatch)
	batch.FirstOffset, batch.LastOffsetDelta = first, int32(last-first)
	batch.PartitionLeaderEpoch, batch.Magic = epoch, 2
	batch.ProducerID, batch.ProducerEpoch, batch.FirstSequence = -1, -1, -1
	return batch
}

// sealBatch writes the header of the batch that begins at start, whose records are there already.
func sealBatch(b []byte, start int, batch *kmsg.RecordBatch) []byte {
	batch.Length = int32(len(b) - start - batchPrefix)
	batch.AppendTo(b[start:start]) // in place: Records is empty, and the header has a fixed size
	sum := castagnoli(b[start+crcEnd:])
	binary.BigEndian.PutUint32(b[start+crcEnd-4:], sum)
	return b
}

// recordSize is the size of a record without its length.
func recordSize(r *kmsg.Record) int {
	n := 1 + varSize(r.TimestampDelta64) + varSize(int64(r.OffsetDelta)) + blobSize(r.Key) + blobSize(r.Value) +
		varSize(int64(len(r.Headers)))
	for i := range r.Headers {
		n += varSize(int64(len(r.Headers[i].Key))) + len(r.Headers[i].Key) + blobSize(r.Headers[i].Value)
	}
	return n
}

func blobSize(b []byte) int {
	if b == nil {
		return 1
	}
	return varSize(int64(len(b))) + len(b)
}

// varSize is the size of a number as a zigzag varint.
func varSize(v int64) int {
	n := 1
	for u := uint64(v)<<1 ^ uint64(v>>63); u >= 0x80; u >>= 7 {
		n++
	}
	return n
}
