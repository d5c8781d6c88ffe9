package group

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"
)

// Rows. A key starts with its kind; a value starts with the version of its form, and later forms get later versions.
//
//	group:  key   1, name
//	        value 1, generation, time when it became empty or 0, credential, protocol type
//	offset: key   2, length of the group's name, that name, topic, partition as 4 bytes in big-endian order
//	        value 1, offset, leader epoch, metadata, time of the commit, retention or 0
//
// Numbers in values and lengths are varints, signed where the value can be below 0; texts have their lengths before
// them. Times and retentions are in milliseconds, times since 1970.
const (
	kindGroup, kindOffset byte = 1, 2
	version               byte = 1
)

// maxMilliseconds bounds times and retentions, so that the sum of two is a time.Duration: 146 years.
const maxMilliseconds = (1<<62 - 1) / int64(time.Millisecond)

var errDamaged = errors.New("its bytes are damaged")

// partitionKey is where a group commits an offset.
type partitionKey struct {
	topic     string
	partition int32
}

// offset is a committed offset.
type offset struct {
	at        int64
	epoch     int32 // of the leader, or -1
	metadata  string
	committed time.Duration // since 1970
	retention time.Duration // that the commit asked for, or 0
}

// header is what is stored of a group itself.
type header struct {
	generation int32
	empty      time.Duration // since 1970, when the last member left, or 0 if there are members
	owner      string        // the credential that made the group
	kind       string        // the type of protocol of its members
}

func groupKey(name string) []byte { return append([]byte{kindGroup}, name...) }

func offsetKey(group string, p partitionKey) []byte {
	b := binary.AppendUvarint([]byte{kindOffset}, uint64(len(group)))
	b = append(append(b, group...), p.topic...)
	return binary.BigEndian.AppendUint32(b, uint32(p.partition))
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func (h header) value() []byte {
	b := binary.AppendUvarint([]byte{version}, uint64(h.generation))
	b = binary.AppendUvarint(b, uint64(h.empty.Milliseconds()))
	return appendText(appendText(b, h.owner), h.kind)
}

func (o offset) value() []byte {
	b := binary.AppendVarint([]byte{version}, o.at)
	b = appendText(binary.AppendVarint(b, int64(o.epoch)), o.metadata)
	b = binary.AppendUvarint(b, uint64(o.committed.Milliseconds()))
	return binary.AppendUvarint(b, uint64(o.retention.Milliseconds()))
}

// decoder reads a key or a value. After an error it returns zeros.
type decoder struct {
	b   []byte
	err error
}

func (r *decoder) fail() {
	if r.err == nil {
		r.err = errDamaged
	}
	r.b = nil
}

func (r *decoder) version() {
	switch {
	case len(r.b) == 0:
		r.fail()
	case r.b[0] != version:
		r.err = fmt.Errorf("its form has the version %d, which a later release may know", r.b[0])
		r.b = nil
	default:
		r.b = r.b[1:]
	}
}

func (r *decoder) uvarint(limit uint64) uint64 {
	n, size := binary.Uvarint(r.b)
	if size <= 0 || n > limit {
		r.fail()
		return 0
	}
	r.b = r.b[size:]
	return n
}

func (r *decoder) varint(least, limit int64) int64 {
	n, size := binary.Varint(r.b)
	if size <= 0 || n < least || n > limit {
		r.fail()
		return 0
	}
	r.b = r.b[size:]
	return n
}

func (r *decoder) milliseconds() time.Duration {
	return time.Duration(r.uvarint(uint64(maxMilliseconds))) * time.Millisecond
}

func (r *decoder) text() string {
	n := r.uvarint(math.MaxInt32)
	if n > uint64(len(r.b)) {
		r.fail()
		return ""
	}
	s := string(r.b[:n])
	r.b = r.b[n:]
	return s
}

// end returns the error, which there also is if bytes are left.
func (r *decoder) end() error {
	if len(r.b) > 0 {
		r.fail()
	}
	return r.err
}

func readHeader(value []byte) (header, error) {
	r := &decoder{b: value}
	r.version()
	h := header{generation: int32(r.uvarint(math.MaxInt32)), empty: r.milliseconds()}
	h.owner, h.kind = r.text(), r.text()
	return h, r.end()
}

func readOffset(value []byte) (offset, error) {
	r := &decoder{b: value}
	r.version()
	o := offset{at: r.varint(math.MinInt64, math.MaxInt64), epoch: int32(r.varint(math.MinInt32, math.MaxInt32))}
	o.metadata = r.text()
	o.committed, o.retention = r.milliseconds(), r.milliseconds()
	return o, r.end()
}

// readOffsetKey reads a key behind its kind.
func readOffsetKey(key []byte) (group string, p partitionKey, err error) {
	r := &decoder{b: key}
	group = r.text()
	if len(r.b) < 5 { // a topic has a name
		r.fail()
		return "", partitionKey{}, r.err
	}
	at := len(r.b) - 4
	p = partitionKey{topic: string(r.b[:at]), partition: int32(binary.BigEndian.Uint32(r.b[at:]))}
	if p.partition < 0 {
		r.fail()
	}
	return group, p, r.err
}

// rows are what a store has.
type rows struct {
	groups  map[string]header
	offsets map[string]map[partitionKey]offset
}

// add reads a row. The error names it.
func (all *rows) add(r Row) error {
	err := errDamaged
	switch {
	case len(r.Key) == 0:
	case r.Key[0] == kindGroup:
		var h header
		if h, err = readHeader(r.Value); err == nil {
			all.groups[string(r.Key[1:])] = h
		}
	case r.Key[0] == kindOffset:
		var name string
		var p partitionKey
		var o offset
		if name, p, err = readOffsetKey(r.Key[1:]); err != nil {
			break
		}
		if o, err = readOffset(r.Value); err != nil {
			return fmt.Errorf("the offset of group %q in %s/%d (key %x): %w", name, p.topic, p.partition, r.Key, err)
		}
		if all.offsets[name] == nil {
			all.offsets[name] = map[partitionKey]offset{}
		}
		all.offsets[name][p] = o
		return nil
	}
	if err != nil {
		return fmt.Errorf("the row of consumer groups with the key %x (%.80q): %w", r.Key, r.Key, err)
	}
	return nil
}

// check returns an error if a group lacks its row, which is written with its first offset.
func (all *rows) check() error {
	for name := range all.offsets {
		if _, ok := all.groups[name]; !ok {
			return fmt.Errorf("group %q has offsets, but its row with the key %x is missing", name, groupKey(name))
		}
	}
	return nil
}

// NameOf returns the name of the group that a row with a key belongs to; "" if the key is none of a row.
func NameOf(key []byte) string {
	switch {
	case len(key) == 0:
	case key[0] == kindGroup:
		return string(key[1:])
	case key[0] == kindOffset:
		name, _, _ := readOffsetKey(key[1:])
		return name
	}
	return ""
}
