package commitlog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"

	"github.com/parley-chat/parley/server/commitlog/producers"
	"github.com/parley-chat/parley/server/store"
)

// Records of a [Local] in which the logs of durable topics are carried from one engine to
// another. Those of the event log stay: its events are published again elsewhere.

// ErrNotCarried says that a record does not move to another engine.
var ErrNotCarried = errors.New("commitlog: a record of the event log does not move")

// CarriedEnd is the key behind those of all records that move.
func CarriedEnd() []byte { return topicKey(FirstEventTopic) }

// Published is a number of a producer that was stored.
type Published struct {
	Producer string
	Slot     byte // that remembers it
	producers.Published
}

// Carried is what a record says: where a partition begins, a batch, or a number of a producer.
type Carried struct {
	Partition Partition
	Start     int64  // unless it is one of the others
	Batch     *Batch // keeps the value of the record
	Published *Published
}

// ParseCarried reads a record. Errors: store.ErrCorrupt, ErrNotCarried.
func ParseCarried(key, value []byte) (c Carried, err error) {
	p, kind, rest, err := parseCarriedKey(key)
	if err != nil {
		return c, err
	}
	c.Partition = p
	switch kind {
	case kindHead:
		var h head
		h, err = parseHead(value)
		c.Start = h.start
	case kindBatch:
		c.Batch, err = parseAt(key, value)
	case kindProducer:
		c.Published = &Published{Producer: string(rest[1 : len(rest)-1]), Slot: rest[len(rest)-1]}
		c.Published.Published, err = parsePublished(value)
	}
	return c, err
}

func parseCarriedKey(key []byte) (p Partition, kind byte, rest []byte, err error) {
	if bytes.Compare(key, CarriedEnd()) >= 0 {
		return p, 0, nil, fmt.Errorf("%w: %x", ErrNotCarried, key)
	}
	return parseKey(key)
}

// CarriedTo says where the record with a key lies: the partition, and if it is a batch the position behind
// its last message, -1 if it comes before all batches, and the highest there is if it comes after them.
// Errors: store.ErrCorrupt, ErrNotCarried.
func CarriedTo(key []byte) (p Partition, position int64, err error) {
	p, kind, _, err := parseCarriedKey(key)
	switch {
	case err != nil:
		return p, 0, err
	case kind == kindHead:
		return p, -1, nil
	case kind == kindBatch:
		return p, lastOf(key) + 1, nil
	}
	return p, math.MaxInt64, nil
}

// CarriedStart is the record of where a partition begins, which was trimmed.
func CarriedStart(p Partition, start int64) store.Record {
	h := head{start: start, end: start}
	return store.Record{Key: headKey(p), Value: h.value()}
}

// CarriedBatch is the record of a batch. It does not say what is before it, which the log that it
// comes from may not know.
func CarriedBatch(p Partition, b *Batch) store.Record {
	v := make([]byte, batchHeader, batchHeader+gapSize+len(b.Producer.ID)+8+len(b.body))
	v[0] = firstVersion
	binary.BigEndian.PutUint64(v[baseAt:], uint64(b.Base))
	binary.BigEndian.PutUint64(v[timeAt:], uint64(b.Time))
	binary.BigEndian.PutUint32(v[countAt:], uint32(b.Count()))
	if b.Gap > 0 {
		v[0]++
		v = binary.BigEndian.AppendUint64(v, uint64(b.Gap))
	}
	if v[producerAt] = byte(len(b.Producer.ID)); b.Producer.ID != "" {
		v = binary.BigEndian.AppendUint64(append(v, b.Producer.ID...), uint64(b.Producer.Number))
	}
	header := v[baseAt:]
	binary.BigEndian.PutUint32(v[sumAt:], crc32.Update(crc32.Checksum(b.body, castagnoli), castagnoli, header))
	return store.Record{Key: batchKey(p, b.End()-1), Value: append(v, b.body...)}
}

// CarriedPublished is the record of a producer's number.
func CarriedPublished(p Partition, of Published) store.Record {
	return store.Record{Key: append(producerPrefix(p, of.Producer), of.Slot), Value: of.Append(nil)}
}

// Facts calls each with what a record says, in a form that does not depend on which messages are in one
// batch: engines may divide them differently. Errors: store.ErrCorrupt, ErrNotCarried.
func Facts(key, value []byte, each func(fact []byte)) error {
	c, err := ParseCarried(key, value)
	if err != nil {
		return err
	}
	switch {
	case c.Batch != nil:
		var fact []byte
		to := string(c.Batch.Address())
		for i := range c.Batch.Count() {
			fact = append(batchKey(c.Partition, c.Batch.Base+int64(i)), fmt.Sprintf("%d %s ", c.Batch.Time, to)...)
			each(append(fact, c.Batch.content(i)...))
		}
	case c.Published != nil:
		// Which slot remembers a number is the engine's.
		each(c.Published.Append(producerPrefix(c.Partition, c.Published.Producer)))
	case c.Start > 0:
		each(binary.BigEndian.AppendUint64(headKey(c.Partition), uint64(c.Start)))
	}
	return nil
}
