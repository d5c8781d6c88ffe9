package commitlog

import (
	"encoding/binary"
	"fmt"

	"github.com/parley-chat/parley/server/store"
)

// A record's key is topic, partition, kind, and what tells those of a kind apart; numbers
// are big-endian, so that a topic, a partition and a kind are ranges.
const (
	kindHead     = 0 // nothing → head
	kindBatch    = 1 // position of the batch's last message → batch
	kindProducer = 2 // length of the id, id, slot → published
)

const keyPrefix = 8 + 2 + 1

func appendPrefix(b []byte, p Partition, kind byte) []byte {
	b = binary.BigEndian.AppendUint64(b, p.Topic)
	b = binary.BigEndian.AppendUint16(b, uint16(p.Number))
	return append(b, kind)
}

// batchKey is the key of the batch whose last message has a position. The last one, and not
// the first: the batch that holds a position is the next from that position on, and batches
// that lie wholly below a position have lesser keys.
func batchKey(p Partition, last int64) []byte {
	return binary.BigEndian.AppendUint64(appendPrefix(make([]byte, 0, keyPrefix+8), p, kindBatch), uint64(last))
}

func headKey(p Partition) []byte { return appendPrefix(make([]byte, 0, keyPrefix), p, kindHead) }

func producerPrefix(p Partition, id string) []byte {
	return append(append(appendPrefix(nil, p, kindProducer), byte(len(id))), id...)
}

func topicKey(topic uint64) []byte { return binary.BigEndian.AppendUint64(nil, topic) }

// lastOf is the position in the key of a batch.
func lastOf(key []byte) int64 { return int64(binary.BigEndian.Uint64(key[keyPrefix:])) }

// parseKey splits the key of a record.
func parseKey(key []byte) (p Partition, kind byte, rest []byte, err error) {
	if len(key) < keyPrefix {
		return p, 0, nil, errKey
	}
	p.Topic = binary.BigEndian.Uint64(key)
	p.Number = int32(binary.BigEndian.Uint16(key[8:]))
	kind, rest = key[keyPrefix-1], key[keyPrefix:]
	valid := p.Number < MaxPartitions && p.Topic <= maxTopic
	switch kind {
	case kindHead:
		valid = valid && len(rest) == 0
	case kindBatch:
		valid = valid && len(rest) == 8 && lastOf(key) >= 0
	case kindProducer:
		valid = valid && len(rest) > 2 && len(rest) == int(rest[0])+2 && rest[len(rest)-1] < ProducerWindow
	default:
		valid = false
	}
	if !valid {
		return p, kind, rest, errKey
	}
	return p, kind, rest, nil
}

var errKey = fmt.Errorf("%w: not a key of a log", store.ErrCorrupt)
