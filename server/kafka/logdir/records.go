package logdir

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Record is a record as the files have it, whatever became of its transaction.
type Record struct {
	Partition
	Offset int64
	At     int64 // unix ms
	Value  []byte
	// Headers by their keys.
	Headers map[string]string
}

// codecBits are the attributes of a batch that name its compression.
const codecBits = 7

// Records reads the records of a partition from its files, oldest first, and skips what
// is damaged. Each gets a Record that is good until it returns. A partition without
// files has none.
func Records(dir string, p Partition, each func(*Record)) error {
	d := directory(filepath.Join(dir, partitionsDir), p)
	segs, err := segments(d)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read log: %w", err)
	}
	unpack := kgo.DefaultDecompressor()
	for _, s := range segs {
		b, err := os.ReadFile(s.path(d, segmentSuffix))
		if err != nil {
			return fmt.Errorf("read log: %w", err)
		}
		for len(b) > 0 {
			h, whole := parse(b)
			if !whole {
				skip := next(b, func(offset int64, _ int) bool { return offset >= s.base })
				b = b[skip:]
				continue
			}
			if err := records(p, b[:h.size], unpack, each); err != nil {
				return fmt.Errorf("read %s at offset %d: %w", p, h.from, err)
			}
			b = b[h.size:]
		}
	}
	return nil
}

// records takes a whole batch apart.
func records(p Partition, b []byte, unpack kgo.Decompressor, each func(*Record)) error {
	batch := kmsg.NewRecordBatch()
	if err := batch.UnsafeReadFrom(b); err != nil {
		return err
	}
	if uint16(batch.Attributes)&control != 0 {
		return nil
	}
	raw, err := unpack.Decompress(batch.Records, kgo.CompressionCodecType(batch.Attributes&codecBits))
	if err != nil {
		return err
	}
	for range batch.NumRecords {
		length, n := binary.Varint(raw)
		if n <= 0 || length < 0 || length > int64(len(raw)-n) {
			return errors.New("a record is cut off")
		}
		size := n + int(length)
		var r kmsg.Record
		if err := r.ReadFrom(raw[:size]); err != nil {
			return err
		}
		raw = raw[size:]
		out := Record{
			Partition: p, Offset: batch.FirstOffset + int64(r.OffsetDelta), At: batch.FirstTimestamp + r.TimestampDelta64,
			Value: r.Value, Headers: make(map[string]string, len(r.Headers)),
		}
		for _, h := range r.Headers {
			out.Headers[h.Key] = string(h.Value)
		}
		each(&out)
	}
	return nil
}
