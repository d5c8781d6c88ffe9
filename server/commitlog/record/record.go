// Package record encodes what the batches of the event log hold: records as Kafka has them,
// and references to events of chats, from which records are made when they are read.
//
// It owns the bytes of a record and of a list of references. It owns neither batches nor
// positions, which are package commitlog's, nor what a reference becomes, which is package
// eventlog's.
//
// Concurrency: functions are pure; values belong to the caller.
package record

import (
	"encoding/binary"
	"errors"
	"math"
	"math/bits"
)

// ErrFormat says that bytes are no encoding of this package.
var ErrFormat = errors.New("record: not an encoding of records")

// Record is a record of Kafka. A key or a value that is nil is null, which differs from an
// empty one.
type Record struct {
	Key     []byte
	Value   []byte
	Headers []Header // in order; names may repeat
	Time    int64    // of its creation, unix ms
}

// Header is a header of a record. A nil value is null.
type Header struct {
	Key   string // any bytes
	Value []byte
}

// maxHeaders is the number of headers of a record.
const maxHeaders = 10_000

// Append encodes a record: time, key, value, number of headers, and of each its name and
// value. Numbers are varints. A key or a value has its length plus one before it; 0 is null.
func (r *Record) Append(b []byte) []byte {
	b = binary.AppendVarint(b, r.Time)
	b = appendNullable(b, r.Key)
	b = appendNullable(b, r.Value)
	b = binary.AppendUvarint(b, uint64(len(r.Headers)))
	for i := range r.Headers {
		b = appendText(b, r.Headers[i].Key)
		b = appendNullable(b, r.Headers[i].Value)
	}
	return b
}

// Size is the number of bytes that Append adds.
func (r *Record) Size() int {
	n := sizeUvarint(uint64(r.Time)<<1^uint64(r.Time>>63)) + sizeNullable(r.Key) + sizeNullable(r.Value) +
		sizeUvarint(uint64(len(r.Headers)))
	for i := range r.Headers {
		key := len(r.Headers[i].Key)
		n += sizeUvarint(uint64(key)) + key + sizeNullable(r.Headers[i].Value)
	}
	return n
}

func sizeUvarint(v uint64) int { return (bits.Len64(v|1) + 6) / 7 }

func sizeNullable(v []byte) int {
	if v == nil {
		return 1
	}
	return sizeUvarint(uint64(len(v))+1) + len(v)
}

// Valid reports whether a record can be read back.
func (r *Record) Valid() bool { return len(r.Headers) <= maxHeaders }

// Parse reads the first record of b, which the record shares, and returns what follows it.
// Error: ErrFormat.
func Parse(b []byte) (r Record, rest []byte, err error) {
	in := input{b: b}
	r.Time = in.varint()
	r.Key, r.Value = in.nullable(), in.nullable()
	n := in.uvarint(maxHeaders)
	if n > uint64(len(in.b)) { // each takes two bytes
		return Record{}, nil, ErrFormat
	}
	if n > 0 {
		r.Headers = make([]Header, n)
	}
	for i := range r.Headers {
		r.Headers[i] = Header{Key: string(in.bytes()), Value: in.nullable()}
	}
	if in.bad {
		return Record{}, nil, ErrFormat
	}
	return r, in.b, nil
}

// Split finds the ends of so many records that fill b. Error: ErrFormat.
func Split(b []byte, count int) ([]uint32, error) {
	in := input{b: b}
	ends := make([]uint32, 0, min(count, len(b)/4))
	for len(ends) < count {
		in.varint()
		in.nullable()
		in.nullable()
		for n := in.uvarint(maxHeaders); n > 0 && !in.bad; n-- {
			in.bytes()
			in.nullable()
		}
		if in.bad {
			return nil, ErrFormat
		}
		ends = append(ends, uint32(len(b)-len(in.b)))
	}
	if len(in.b) > 0 {
		return nil, ErrFormat
	}
	return ends, nil
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendNullable(b, v []byte) []byte {
	if v == nil {
		return append(b, 0)
	}
	return append(binary.AppendUvarint(b, uint64(len(v))+1), v...)
}

// input is read from its start. Once it is bad, all that it returns is zero.
type input struct {
	b   []byte
	bad bool
}

func (in *input) fail() { in.b, in.bad = nil, true }

func (in *input) varint() int64 {
	v, n := binary.Varint(in.b)
	if n <= 0 {
		in.fail()
		return 0
	}
	in.b = in.b[n:]
	return v
}

// uvarint reads a number up to a limit.
func (in *input) uvarint(limit uint64) uint64 {
	v, n := binary.Uvarint(in.b)
	if n <= 0 || v > limit {
		in.fail()
		return 0
	}
	in.b = in.b[n:]
	return v
}

// take returns the next n bytes, which cannot grow into those behind them.
func (in *input) take(n uint64) []byte {
	if n > uint64(len(in.b)) {
		in.fail()
		return nil
	}
	v := in.b[:n:n]
	in.b = in.b[n:]
	return v
}

func (in *input) bytes() []byte { return in.take(in.uvarint(math.MaxInt32)) }

func (in *input) nullable() []byte {
	n := in.uvarint(math.MaxInt32)
	if n == 0 {
		return nil
	}
	return in.take(n - 1)
}
