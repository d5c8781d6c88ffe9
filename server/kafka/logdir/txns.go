package logdir

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
)

// Txn is a transaction that the last process left without an end in a partition.
type Txn struct {
	Partition
	Producer int64
	Epoch    int16
}

// atProducerEpoch is where a batch has the epoch of its producer.
const atProducerEpoch = 51

// OpenTxns finds the transactions without an end in the log of a process that did
// not close it. Only the last two segments of a partition can hold the last batch
// of one, because the broker makes a segment when it has a batch for it.
func OpenTxns(dir string) (list []Txn, err error) {
	root := filepath.Join(dir, partitionsDir)
	there, err := partitionsOf(root)
	if err != nil {
		return nil, err
	}
	for p := range there {
		d := directory(root, p)
		segs, err := segments(d)
		if err != nil {
			return nil, err
		}
		open := map[int64]int16{}
		for _, s := range segs[max(0, len(segs)-2):] {
			if err := scanTxns(s.path(d, segmentSuffix), open); err != nil {
				return nil, err
			}
		}
		for producer, epoch := range open {
			list = append(list, Txn{p, producer, epoch})
		}
	}
	return list, nil
}

// scanTxns walks the heads of a segment's batches and keeps in open which
// producers have a transaction without an end. A torn batch ends the walk: the
// broker cuts it off.
func scanTxns(path string, open map[int64]int16) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	var head [headSize]byte
	for at := int64(0); at+headSize <= info.Size(); {
		if _, err := f.ReadAt(head[:], at); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		next := at + prefixSize + int64(binary.BigEndian.Uint32(head[atLength:]))
		if next < at+headSize || next > info.Size() {
			return nil
		}
		attrs := binary.BigEndian.Uint16(head[atAttributes:])
		producer := int64(binary.BigEndian.Uint64(head[atProducer:]))
		switch {
		case attrs&control != 0:
			delete(open, producer)
		case attrs&transactional != 0:
			open[producer] = int16(binary.BigEndian.Uint16(head[atProducerEpoch:]))
		}
		at = next
	}
	return nil
}
