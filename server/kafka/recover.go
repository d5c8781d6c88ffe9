package kafka

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// openTxn is a transaction that the last process left without an end in a
// partition.
type openTxn struct {
	topic     string
	partition int32
	producer  int64
	epoch     int16
}

// The head of a record batch, and where its fields are.
const (
	batchHead      = 61
	batchLength    = 8  // of what follows the length itself
	batchAttrs     = 21 // bit 4: in a transaction; bit 5: a marker
	batchProducer  = 43
	batchEpoch     = 51
	batchPrefix    = 12
	transactional  = 1 << 4
	control        = 1 << 5
	segmentSuffix  = ".dat"
	recoverTimeout = 10 * time.Second
)

// openTxns finds the transactions without an end in the log of a process that did
// not close it. Only the last two segments of a partition can hold the last batch
// of one, because the broker makes a segment when it has a batch for it.
func openTxns(dir string) (list []openTxn, err error) {
	root := filepath.Join(dir, "partitions")
	entries, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		name, number, ok := cutLast(e.Name(), "-")
		id, err := strconv.ParseInt(number, 10, 32)
		if !ok || err != nil {
			continue
		}
		topic, err := url.PathUnescape(name)
		if err != nil {
			continue
		}
		segments, err := lastSegments(filepath.Join(root, e.Name()), 2)
		if err != nil {
			return nil, err
		}
		open := map[int64]int16{}
		for _, path := range segments {
			if err := scanSegment(path, open); err != nil {
				return nil, err
			}
		}
		for producer, epoch := range open {
			list = append(list, openTxn{topic, int32(id), producer, epoch})
		}
	}
	return list, nil
}

func cutLast(s, sep string) (before, after string, ok bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return "", "", false
}

// lastSegments returns the paths of the last n segments, oldest first.
func lastSegments(dir string, n int) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	type segment struct {
		base int64
		path string
	}
	var list []segment
	for _, e := range entries {
		number, ok := strings.CutSuffix(e.Name(), segmentSuffix)
		if base, err := strconv.ParseInt(number, 10, 64); ok && err == nil {
			list = append(list, segment{base, filepath.Join(dir, e.Name())})
		}
	}
	slices.SortFunc(list, func(a, b segment) int { return cmp.Compare(a.base, b.base) })
	paths := make([]string, 0, n)
	for _, s := range list[max(0, len(list)-n):] {
		paths = append(paths, s.path)
	}
	return paths, nil
}

// scanSegment walks the heads of a segment's batches and keeps in open which
// producers have a transaction without an end. A torn batch ends the walk: the
// broker cuts it off.
func scanSegment(path string, open map[int64]int16) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	var head [batchHead]byte
	for at := int64(0); at+batchHead <= info.Size(); {
		if _, err := f.ReadAt(head[:], at); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		next := at + batchPrefix + int64(binary.BigEndian.Uint32(head[batchLength:]))
		if next < at+batchHead || next > info.Size() {
			return nil
		}
		attrs := binary.BigEndian.Uint16(head[batchAttrs:])
		producer := int64(binary.BigEndian.Uint64(head[batchProducer:]))
		switch {
		case attrs&control != 0:
			delete(open, producer)
		case attrs&transactional != 0:
			open[producer] = int16(binary.BigEndian.Uint16(head[batchEpoch:]))
		}
		at = next
	}
	return nil
}

// abort writes the markers that end transactions. The broker takes a transaction
// that it finds open at its start for aborted, but writes no marker: a reader of
// committed records, who drops what a producer wrote until its marker comes, would
// drop the producer's later transactions too. Nothing may be published before.
func (b *Broker) abort(list []openTxn) error {
	if len(list) == 0 {
		return nil
	}
	c, err := kgo.NewClient(kgo.SeedBrokers(b.addr), kgo.ClientID("parley-recovery"), kgo.DisableClientMetrics())
	if err != nil {
		return fmt.Errorf("kafka client: %w", err)
	}
	defer c.Close()
	req := kmsg.NewPtrWriteTxnMarkersRequest()
	for _, t := range list {
		topic := kmsg.NewWriteTxnMarkersRequestMarkerTopic()
		topic.Topic, topic.Partitions = t.topic, []int32{t.partition}
		m := kmsg.NewWriteTxnMarkersRequestMarker()
		m.ProducerID, m.ProducerEpoch, m.Topics = t.producer, t.epoch, []kmsg.WriteTxnMarkersRequestMarkerTopic{topic}
		req.Markers = append(req.Markers, m)
	}
	ctx, cancel := context.WithTimeout(context.Background(), recoverTimeout)
	defer cancel()
	res, err := c.SeedBrokers()[0].Request(ctx, req)
	if err != nil {
		return fmt.Errorf("end transactions: %w", err)
	}
	for _, m := range res.(*kmsg.WriteTxnMarkersResponse).Markers {
		for _, t := range m.Topics {
			for _, p := range t.Partitions {
				err := errorFor(p.ErrorCode)
				if err != nil && !errors.Is(err, kerr.UnknownTopicOrPartition) { // files of a topic deleted in the crash
					return fmt.Errorf("end a transaction in %s/%d: %w", t.Topic, p.Partition, err)
				}
			}
		}
	}
	return nil
}
