package record

import (
	"encoding/binary"
	"math"
)

// Reference stands for the record of an event of a chat, which the row of the event has: a
// row never changes, so the record is the same whenever it is made.
type Reference struct {
	Chat    string // id, the key of the record
	Version int64  // of the chat, from 1 on
	Schema  int32  // id of the schema in the record's frame
	Time    int64  // of the record, unix ms
}

// References are events of one batch.
type References struct {
	// PublishedIn is the generation of the store in which they were published.
	PublishedIn string
	List        []Reference
}

// The parts that an entry has in common with the one before it. The first one is compared
// with the zero Reference.
const (
	sameChat    = 1 << iota
	nextVersion // of the same chat or not
	sameSchema
	sameTime
	known = 1<<iota - 1
)

// Append encodes references: the generation; then of each entry a byte that says what it has
// in common with the one before, and the rest: chat, version, schema, difference of times.
// It returns where each entry ends, counted from the start of the encoding.
func (r *References) Append(b []byte) (body []byte, ends []uint32) {
	begin := len(b)
	b = appendText(b, r.PublishedIn)
	ends = make([]uint32, len(r.List))
	var last Reference
	for i, e := range r.List {
		at := len(b)
		b = append(b, 0)
		var common byte
		if e.Chat == last.Chat {
			common |= sameChat
		} else {
			b = appendText(b, e.Chat)
		}
		if e.Version == last.Version+1 {
			common |= nextVersion
		} else {
			b = binary.AppendUvarint(b, uint64(e.Version))
		}
		if e.Schema == last.Schema {
			common |= sameSchema
		} else {
			b = binary.AppendUvarint(b, uint64(e.Schema))
		}
		if e.Time == last.Time {
			common |= sameTime
		} else {
			b = binary.AppendVarint(b, e.Time-last.Time)
		}
		b[at] = common
		ends[i], last = uint32(len(b)-begin), e
	}
	return b, ends
}

// Size is at least the number of bytes that Append adds.
func (r *References) Size() int {
	n := binary.MaxVarintLen64 + len(r.PublishedIn)
	for i := range r.List {
		n += 1 + len(r.List[i].Chat) + 3*binary.MaxVarintLen64 + binary.MaxVarintLen32
	}
	return n
}

// Valid reports whether a reference can be read back.
func (r *Reference) Valid() bool { return r.Chat != "" && r.Version >= 1 && r.Schema >= 0 }

// ParseReferences reads an encoding of so many references, which share nothing with b, and
// where each entry ends. Error: ErrFormat.
func ParseReferences(b []byte, count int) (r References, ends []uint32, err error) {
	in := input{b: b}
	r.PublishedIn = string(in.bytes())
	if count > len(in.b) { // each takes one byte
		return References{}, nil, ErrFormat
	}
	r.List, ends = make([]Reference, 0, count), make([]uint32, 0, count)
	var e Reference
	for len(r.List) < count {
		common := in.uvarint(known)
		if common&sameChat == 0 {
			e.Chat = string(in.bytes())
		}
		if common&nextVersion != 0 {
			e.Version++
		} else {
			e.Version = int64(in.uvarint(math.MaxInt64))
		}
		if common&sameSchema == 0 {
			e.Schema = int32(in.uvarint(math.MaxInt32))
		}
		if common&sameTime == 0 {
			e.Time += in.varint()
		}
		if in.bad || !e.Valid() {
			return References{}, nil, ErrFormat
		}
		r.List, ends = append(r.List, e), append(ends, uint32(len(b)-len(in.b)))
	}
	if len(in.b) > 0 {
		return References{}, nil, ErrFormat
	}
	return r, ends, nil
}
