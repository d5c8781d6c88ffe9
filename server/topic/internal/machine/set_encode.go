package machine

import (
	"encoding/binary"
	"errors"
)

// ErrSetEncoding is returned for bytes that are not an encoded set, or one of more runs
// than are allowed.
var ErrSetEncoding = errors.New("machine: not an encoded set")

// AppendBinary appends the set's encoding to b: the number of runs, then for each run
// its distance from the one before and its length, as varints; the length of a run
// without an end is 0. A run takes 2 to 20 bytes.
func (s *Set) AppendBinary(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(s.runs)))
	last := int64(0)
	for _, r := range s.runs {
		b = binary.AppendUvarint(b, uint64(r.From-last))
		if r.To == NoEnd {
			b = binary.AppendUvarint(b, 0)
		} else {
			b = binary.AppendUvarint(b, uint64(r.To-r.From))
		}
		last = r.To
	}
	return b
}

// DecodeSet reads a set of at most limit runs from the beginning of b and returns it with
// the rest of b. It takes memory for runs that are there only.
func DecodeSet(b []byte, limit int) (Set, []byte, error) {
	n, b, err := uvarint(b)
	if err != nil {
		return Set{}, nil, err
	}
	if n > uint64(limit) || n > uint64(len(b)/2) {
		return Set{}, nil, ErrSetEncoding
	}
	if n == 0 {
		return Set{}, b, nil
	}
	runs := make([]Run, 0, n)
	last := int64(0)
	for i := range n {
		var gap, length uint64
		if gap, b, err = uvarint(b); err != nil {
			return Set{}, nil, err
		}
		if length, b, err = uvarint(b); err != nil {
			return Set{}, nil, err
		}
		if last == NoEnd || gap >= uint64(NoEnd-last) || (i > 0 && gap == 0) {
			return Set{}, nil, ErrSetEncoding
		}
		r := Run{From: last + int64(gap), To: NoEnd}
		if length > 0 {
			if length >= uint64(NoEnd-r.From) {
				return Set{}, nil, ErrSetEncoding
			}
			r.To = r.From + int64(length)
		}
		runs = append(runs, r)
		last = r.To
	}
	return Set{runs}, b, nil
}

func uvarint(b []byte) (uint64, []byte, error) {
	v, n := binary.Uvarint(b)
	if n <= 0 {
		return 0, nil, ErrSetEncoding
	}
	return v, b[n:], nil
}
