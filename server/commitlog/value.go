package commitlog

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"

	"github.com/parley-chat/parley/server/commitlog/record"
	"github.com/parley-chat/parley/server/store"
)

// A stored batch is version, checksum, base, time, count, length of the producer's id, and
// if there is one the id and its number; then the body. The checksum is CRC-32C of the body
// followed by what stands between checksum and body, and but for messages by the version: the
// body's part is computed before the position is known.
//
// The version counts forms in twos: records have 3 and 4, references 5 and 6, messages 7 and 8. The
// even ones are of batches that came from a log with positions that do not exist: behind the length
// of the producer's id they have how many of them are right before the base. Then comes how many
// bytes the batches before the batch have, from some batch on that was the first of the partition:
// the bytes between two positions are known without reading what lies between. Messages that were
// stored before these were counted, or that come from another engine, have 1 and 2, without that
// number: it counts as 0.
const (
	firstVersion   = 1
	messageVersion = firstVersion + 2*byte(forms)
	lastVersion    = messageVersion + 1
	sumAt          = 1
	baseAt         = sumAt + 4
	timeAt         = baseAt + 8
	countAt        = timeAt + 8
	producerAt     = countAt + 4
	batchHeader    = producerAt + 1
	gapSize        = 8
	beforeSize     = 8
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func versionOf(f Form, gap int64) byte {
	v := firstVersion + 2*byte(f)
	if f == Messages {
		v = messageVersion
	}
	if gap > 0 {
		v++
	}
	return v
}

// formOf is the form of a version.
func formOf(version byte) Form {
	if version >= messageVersion {
		return Messages
	}
	return Form((version - firstVersion) / 2)
}

// hasGap reports whether a version is one of batches with a gap.
func hasGap(version byte) bool { return version%2 == 0 }

// counts reports whether a version is one of batches that say how many bytes are before them.
func counts(version byte) bool { return version >= versionOf(Records, 0) }

// checksum is that of a batch with a header; body is the checksum of its body. It includes the
// version, but for the oldest ones: a body of one form may be read as another.
func checksum(body uint32, header []byte) uint32 {
	sum := crc32.Update(body, castagnoli, header[baseAt:])
	if counts(header[0]) {
		sum = crc32.Update(sum, castagnoli, header[:1])
	}
	return sum
}

func corrupt(what string) error { return fmt.Errorf("%w: %s", store.ErrCorrupt, what) }

// draft is a batch that has no position yet.
type draft struct {
	value   []byte // header and body
	header  int
	ends    []uint32
	at      int64 // unix ms
	bodySum uint32
	form    Form
	gap     int64
	refs    *record.References
}

func newDraft(a *Append, at int64) (*draft, error) {
	if err := a.Check(); err != nil {
		return nil, err
	}
	d := &draft{header: batchHeader + beforeSize, form: a.form(), gap: a.Gap}
	if a.Gap > 0 {
		d.header += gapSize
	}
	if id := a.Producer.ID; id != "" {
		d.header += len(id) + 8
	}
	return d, d.encode(a, timeFor(a, at))
}

// timeFor is the time of a batch without those before it. One of the event log has the time of
// its latest record: together with those before it, a batch is as old as the latest record up to
// its end, so the search by time leads to the first record of a time whenever it was appended.
// Records without times have that of the append.
func timeFor(a *Append, at int64) int64 {
	latest := int64(0)
	for i := range a.Records {
		latest = max(latest, a.Records[i].Time)
	}
	for i := range a.References.List {
		latest = max(latest, a.References.List[i].Time)
	}
	if latest > 0 {
		return latest
	}
	return at
}

// encode writes the body, again if the time has changed, which only messages have in it.
func (d *draft) encode(a *Append, at int64) (err error) {
	d.at = at
	switch empty := make([]byte, d.header); {
	case d.form != Messages && d.value != nil:
		return nil
	case d.form == Records:
		d.value, d.ends, err = appendRecords(empty, a.Records)
	case d.form == References:
		d.value, d.ends, d.refs, err = appendReferences(empty, &a.References)
	default:
		d.value, d.ends, err = appendBody(empty, a.Messages, at)
	}
	if err != nil {
		return err
	}
	d.bodySum = crc32.Checksum(d.value[d.header:], castagnoli)
	return nil
}

// widen adds positions to the draft's gap.
func (d *draft) widen(n int64) {
	if n == 0 {
		return
	}
	if d.gap == 0 {
		d.value = slices.Insert(d.value, d.header, make([]byte, gapSize)...)
		d.header += gapSize
	}
	d.gap += n
}

// timed is what times the messages may have.
func (d *draft) timed() timed {
	if d.form != Messages {
		return timed{}
	}
	return timesOf(d.value[d.header:], d.ends)
}

// assignPosition gives the draft a position, which makes it a batch. before is the number of bytes of the
// batches before it.
func (d *draft) assignPosition(base, before int64, producer Producer) *Batch {
	v := d.value
	v[0] = versionOf(d.form, d.gap)
	beforeAt := batchHeader
	if d.gap > 0 {
		binary.BigEndian.PutUint64(v[batchHeader:], uint64(d.gap))
		beforeAt += gapSize
	}
	binary.BigEndian.PutUint64(v[beforeAt:], uint64(before))
	binary.BigEndian.PutUint64(v[baseAt:], uint64(base))
	binary.BigEndian.PutUint64(v[timeAt:], uint64(d.at))
	binary.BigEndian.PutUint32(v[countAt:], uint32(len(d.ends)))
	v[producerAt] = byte(len(producer.ID))
	if producer.ID != "" {
		copy(v[d.header-8-len(producer.ID):], producer.ID)
		binary.BigEndian.PutUint64(v[d.header-8:], uint64(producer.Number))
	}
	binary.BigEndian.PutUint32(v[sumAt:], checksum(d.bodySum, v[:d.header]))
	return &Batch{Form: d.form, Base: base, Time: d.at, Producer: producer, Gap: d.gap, body: v[d.header:], ends: d.ends,
		refs: d.refs, before: before, timed: d.timed()}
}

// parseAt reads the batch with a key, whose form its topic must have. The batch keeps the
// value.
func parseAt(key, v []byte) (*Batch, error) {
	b, err := parseBatch(v, lastOf(key))
	if err == nil && (b.Form != Messages) != (binary.BigEndian.Uint64(key) >= FirstEventTopic) {
		return nil, corrupt(fmt.Sprintf("batch has form %d, which its topic does not have", b.Form))
	}
	return b, err
}

// parseBatch reads a stored batch by the position of its last message. The batch keeps the
// value.
func parseBatch(v []byte, last int64) (*Batch, error) {
	if len(v) < batchHeader {
		return nil, corrupt("batch is too short")
	}
	header := batchHeader
	if v[0] < firstVersion || v[0] > lastVersion {
		return nil, corrupt(fmt.Sprintf("batch has version %d", v[0]))
	}
	if hasGap(v[0]) {
		header += gapSize
	}
	if counts(v[0]) {
		header += beforeSize
	}
	fixed := header
	if n := int(v[producerAt]); n > 0 {
		header += n + 8
	}
	if len(v) < header {
		return nil, corrupt("batch is too short")
	}
	if checksum(crc32.Checksum(v[header:], castagnoli), v[:header]) != binary.BigEndian.Uint32(v[sumAt:]) {
		return nil, corrupt("checksum of batch does not match")
	}
	b := &Batch{Form: formOf(v[0]), Base: baseOf(v), Time: timeOf(v), Gap: gapOf(v), body: v[header:]}
	if header > fixed {
		b.Producer.ID = string(v[fixed : header-8])
		b.Producer.Number = int64(binary.BigEndian.Uint64(v[header-8:]))
	}
	if b.before = beforeOf(v); b.before < 0 || b.Form != Messages && b.Producer.ID != "" {
		return nil, corrupt("header of batch cannot be read")
	}
	if err := b.split(int(binary.BigEndian.Uint32(v[countAt:]))); err != nil {
		return nil, fmt.Errorf("%w: %w", store.ErrCorrupt, err)
	}
	if b.End() != last+1 || b.Gap < 0 || b.Base < b.Gap || len(b.ends) == 0 {
		return nil, corrupt(fmt.Sprintf("batch of %d messages from %d on is at %d", b.Count(), b.Base, last))
	}
	return b, nil
}

// split finds what the body holds.
func (b *Batch) split(count int) (err error) {
	switch b.Form {
	case Records:
		b.ends, err = record.Split(b.body, count)
	case References:
		var refs record.References
		refs, b.ends, err = record.ParseReferences(b.body, count)
		b.refs = &refs
	default:
		b.ends, err = split(b.body, count)
		if err == nil {
			b.timed = timesOf(b.body, b.ends)
		}
	}
	return err
}

// gapOf, baseOf and timeOf read the header of a batch that is at least batchHeader long.
func baseOf(v []byte) int64 { return int64(binary.BigEndian.Uint64(v[baseAt:])) }
func timeOf(v []byte) int64 { return int64(binary.BigEndian.Uint64(v[timeAt:])) }

// beforeOf is how many bytes the batches before one have; 0 of one that does not say it.
func beforeOf(v []byte) int64 {
	at := batchHeader
	if hasGap(v[0]) {
		at += gapSize
	}
	if !counts(v[0]) || len(v) < at+beforeSize {
		return 0
	}
	return int64(binary.BigEndian.Uint64(v[at:]))
}

// storedSize is how many bytes a batch with a value counts as.
func storedSize(v []byte) int64 { return int64(keyPrefix + 8 + len(v)) }

func gapOf(v []byte) int64 {
	if !hasGap(v[0]) || len(v) < batchHeader+gapSize {
		return 0
	}
	return int64(binary.BigEndian.Uint64(v[batchHeader:]))
}

// head says where a partition began and ended when it was trimmed last: what is not there
// any more. That of a partition that came from elsewhere says that, too.
type head struct {
	start, end int64
	time       int64 // of the last batch
	// bytes is that of all batches, also of those that were trimmed since there was none. It is
	// not stored: the last batch says it.
	bytes int64
	// void are positions that were at the end, and do not exist, second excluded: no batch behind
	// them said so when the head was written. It stays in memory when there are batches behind it.
	void [2]int64
}

// trailing is how many positions at the end do not exist.
func (h *head) trailing() int64 {
	if h.void[1] != h.end {
		return 0
	}
	return h.void[1] - h.void[0]
}

// The second version has behind the time how many positions before the end do not exist.
const (
	headVersion = 1
	headSize    = 1 + 3*8 + 4
	voidVersion = 2
	voidSize    = headSize + 8
)

func (h *head) value() []byte {
	void := h.trailing()
	b := append(make([]byte, 0, voidSize), headVersion)
	for _, n := range [...]int64{h.start, h.end, h.time} {
		b = binary.BigEndian.AppendUint64(b, uint64(n))
	}
	if void > 0 {
		b[0] = voidVersion
		b = binary.BigEndian.AppendUint64(b, uint64(void))
	}
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func parseHead(v []byte) (h head, err error) {
	sized := len(v) == headSize && v[0] == headVersion || len(v) == voidSize && v[0] == voidVersion
	if !sized || crc32.Checksum(v[:len(v)-4], castagnoli) != binary.BigEndian.Uint32(v[len(v)-4:]) {
		return h, corrupt("head of partition cannot be read")
	}
	for i, n := range [...]*int64{&h.start, &h.end, &h.time} {
		*n = int64(binary.BigEndian.Uint64(v[1+8*i:]))
	}
	if len(v) == voidSize {
		h.void = [2]int64{h.end - int64(binary.BigEndian.Uint64(v[headSize-4:])), h.end}
		if h.void[0] < h.start || h.void[0] >= h.end {
			return h, corrupt("head of partition has an impossible end")
		}
	}
	return h, nil
}
