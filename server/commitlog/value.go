package commitlog

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/parley-chat/parley/server/store"
)

// A stored batch is version, checksum, base, time, count, length of the producer's id, and
// if there is one the id and its number; then the body. The checksum is CRC-32C of the body
// followed by what stands between checksum and body: the body's part is computed before the
// position is known.
//
// A batch that came from a log with positions that do not exist has gapVersion, and behind the length of
// the producer's id how many of them are right before its base.
const (
	batchVersion = 1
	gapVersion   = 2
	sumAt        = 1
	baseAt       = sumAt + 4
	timeAt       = baseAt + 8
	countAt      = timeAt + 8
	producerAt   = countAt + 4
	batchHeader  = producerAt + 1
	gapSize      = 8
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func corrupt(what string) error { return fmt.Errorf("%w: %s", store.ErrCorrupt, what) }

// draft is a batch that has no position yet.
type draft struct {
	value   []byte // header and body
	header  int
	ends    []uint32
	at      int64 // unix ms
	bodySum uint32
}

func newDraft(a *Append, at int64) (*draft, error) {
	if err := a.Check(); err != nil {
		return nil, err
	}
	d := &draft{header: batchHeader}
	if id := a.Producer.ID; id != "" {
		d.header += len(id) + 8
	}
	return d, d.encode(a, at)
}

// encode writes the body, again if the time has changed.
func (d *draft) encode(a *Append, at int64) (err error) {
	if d.value, d.ends, err = appendBody(make([]byte, d.header), a.Messages, at); err != nil {
		return err
	}
	d.at, d.bodySum = at, crc32.Checksum(d.value[d.header:], castagnoli)
	return nil
}

// place gives the draft a position, which makes it a batch.
func (d *draft) place(base int64, producer Producer) *Batch {
	v := d.value
	v[0] = batchVersion
	binary.BigEndian.PutUint64(v[baseAt:], uint64(base))
	binary.BigEndian.PutUint64(v[timeAt:], uint64(d.at))
	binary.BigEndian.PutUint32(v[countAt:], uint32(len(d.ends)))
	v[producerAt] = byte(len(producer.ID))
	if producer.ID != "" {
		copy(v[batchHeader:], producer.ID)
		binary.BigEndian.PutUint64(v[d.header-8:], uint64(producer.Number))
	}
	binary.BigEndian.PutUint32(v[sumAt:], crc32.Update(d.bodySum, castagnoli, v[baseAt:d.header]))
	return &Batch{Base: base, Time: d.at, Producer: producer, body: v[d.header:], ends: d.ends}
}

// parseBatch reads a stored batch by the position of its last message. The batch keeps the
// value.
func parseBatch(v []byte, last int64) (*Batch, error) {
	if len(v) < batchHeader {
		return nil, corrupt("batch is too short")
	}
	header := batchHeader
	switch v[0] {
	case batchVersion:
	case gapVersion:
		header += gapSize
	default:
		return nil, corrupt(fmt.Sprintf("batch has version %d", v[0]))
	}
	fixed := header
	if n := int(v[producerAt]); n > 0 {
		header += n + 8
	}
	if len(v) < header {
		return nil, corrupt("batch is too short")
	}
	sum := crc32.Update(crc32.Checksum(v[header:], castagnoli), castagnoli, v[baseAt:header])
	if sum != binary.BigEndian.Uint32(v[sumAt:]) {
		return nil, corrupt("checksum of batch does not match")
	}
	b := &Batch{Base: baseOf(v), Time: timeOf(v), Gap: gapOf(v), body: v[header:]}
	if header > fixed {
		b.Producer.ID = string(v[fixed : header-8])
		b.Producer.Number = int64(binary.BigEndian.Uint64(v[header-8:]))
	}
	var err error
	if b.ends, err = split(b.body, int(binary.BigEndian.Uint32(v[countAt:]))); err != nil {
		return nil, fmt.Errorf("%w: %w", store.ErrCorrupt, err)
	}
	if b.End() != last+1 || b.Gap < 0 || b.Base < b.Gap || len(b.ends) == 0 {
		return nil, corrupt(fmt.Sprintf("batch of %d messages from %d on is at %d", b.Count(), b.Base, last))
	}
	return b, nil
}

// gapOf, baseOf and timeOf read the header of a batch that is at least batchHeader long.
func baseOf(v []byte) int64 { return int64(binary.BigEndian.Uint64(v[baseAt:])) }
func timeOf(v []byte) int64 { return int64(binary.BigEndian.Uint64(v[timeAt:])) }

func gapOf(v []byte) int64 {
	if v[0] != gapVersion || len(v) < batchHeader+gapSize {
		return 0
	}
	return int64(binary.BigEndian.Uint64(v[batchHeader:]))
}

// head says where a partition began and ended when it was trimmed last: what is not there
// any more.
type head struct {
	start, end int64
	time       int64 // of the last batch
}

const (
	headVersion = 1
	headSize    = 1 + 3*8 + 4
)

func appendHead(b []byte, h head) []byte {
	begin := len(b)
	b = append(b, headVersion)
	for _, n := range [...]int64{h.start, h.end, h.time} {
		b = binary.BigEndian.AppendUint64(b, uint64(n))
	}
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b[begin:], castagnoli))
}

func parseHead(v []byte) (h head, err error) {
	if len(v) != headSize || v[0] != headVersion ||
		crc32.Checksum(v[:headSize-4], castagnoli) != binary.BigEndian.Uint32(v[headSize-4:]) {
		return h, corrupt("head of partition cannot be read")
	}
	for i, n := range [...]*int64{&h.start, &h.end, &h.time} {
		*n = int64(binary.BigEndian.Uint64(v[1+8*i:]))
	}
	return h, nil
}
