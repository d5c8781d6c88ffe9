package table

import (
	"errors"

	"google.golang.org/protobuf/encoding/protowire"
)

// An event repeats values: its chat is also its partition key, its sender its actor, its
// time the time of the message, and its row has its id and type. A send of 512 bytes must
// fit into 1 KB per item, because DynamoDB charges writes by the kilobyte. So a repeated
// value is replaced by a back-reference.
//
// The compressed body is the encoding itself, field by field. A length-delimited field
// whose value occurred before has its tag with the wire type of a group's start, which
// proto3 never uses, and one byte: the number of the earlier value. Earlier values are the
// ids of the row and every value so far, on the top level and in field 1, the metadata of
// all events.

const (
	metadataField = 1
	minShared     = 4 // bytes; a shorter value is not worth a reference
	maxEarlier    = 32
)

var errBody = errors.New("table: body of an event is damaged")

// text is what both directions read: payloads are bytes, bodies strings.
type text interface{ ~string | ~[]byte }

// earlier is the list of values that can be referred to: the row's ids, then others.
type earlier[T text] struct {
	ids    [3]string
	values [maxEarlier]T
	n      int
}

func (k *earlier[T]) add(v T) {
	if k.n < maxEarlier && len(v) >= minShared {
		k.values[k.n] = v
		k.n++
	}
}

func (k *earlier[T]) find(v T) int {
	if len(v) < minShared {
		return -1
	}
	for i, id := range k.ids {
		if string(v) == id {
			return i
		}
	}
	for i, w := range k.values[:k.n] {
		if string(v) == string(w) {
			return len(k.ids) + i
		}
	}
	return -1
}

// appendRef appends the value of a reference.
func (k *earlier[T]) appendRef(out []byte, ref int) ([]byte, bool) {
	switch {
	case ref < len(k.ids):
		return protowire.AppendString(out, k.ids[ref]), true
	case ref < len(k.ids)+k.n:
		return protowire.AppendString(out, string(k.values[ref-len(k.ids)])), true
	}
	return out, false
}

// compress appends the compressed body of a payload. It reports false if expand
// would not restore the payload exactly: because it has groups, or tags or lengths
// that are longer than necessary.
func compress(out, payload []byte, chatID, eventID, eventType string) ([]byte, bool) {
	k := earlier[[]byte]{ids: [3]string{chatID, eventID, eventType}}
	return compressFields(&k, out, payload, true)
}

func compressFields(k *earlier[[]byte], out, s []byte, top bool) ([]byte, bool) {
	for len(s) > 0 {
		num, typ, n := consumeTag(s)
		if n < 0 || n != protowire.SizeTag(num) || typ == protowire.StartGroupType || typ == protowire.EndGroupType {
			return nil, false
		}
		if typ != protowire.BytesType {
			m := scalar(s[n:], typ)
			if m < 0 {
				return nil, false
			}
			out = append(out, s[:n+m]...)
			s = s[n+m:]
			continue
		}
		v, m := consumeBytes(s[n:])
		if m < 0 || m != protowire.SizeBytes(len(v)) {
			return nil, false
		}
		s = s[n+m:]
		if top && num == metadataField {
			var buf [512]byte
			inner, ok := compressFields(k, buf[:0], v, false)
			if !ok {
				return nil, false
			}
			out = protowire.AppendTag(out, num, protowire.BytesType)
			out = protowire.AppendBytes(out, inner)
			continue
		}
		if i := k.find(v); i >= 0 {
			out = protowire.AppendTag(out, num, protowire.StartGroupType)
			out = append(out, byte(i))
			continue
		}
		out = protowire.AppendTag(out, num, protowire.BytesType)
		out = protowire.AppendBytes(out, v)
		k.add(v)
	}
	return out, true
}

// expand restores a payload.
func expand(body, chatID, eventID, eventType string) ([]byte, error) {
	k := earlier[string]{ids: [3]string{chatID, eventID, eventType}}
	return expandFields(&k, make([]byte, 0, len(body)+256), body, true)
}

func expandFields(k *earlier[string], out []byte, s string, top bool) ([]byte, error) {
	for len(s) > 0 {
		num, typ, n := consumeTag(s)
		if n < 0 {
			return nil, errBody
		}
		switch typ {
		case protowire.BytesType:
			v, m := consumeBytes(s[n:])
			if m < 0 {
				return nil, errBody
			}
			s = s[n+m:]
			out = protowire.AppendTag(out, num, protowire.BytesType)
			if top && num == metadataField {
				var buf [768]byte
				inner, err := expandFields(k, buf[:0], v, false)
				if err != nil {
					return nil, err
				}
				out = protowire.AppendBytes(out, inner)
				continue
			}
			out = protowire.AppendString(out, v)
			k.add(v)
		case protowire.StartGroupType:
			if len(s) <= n {
				return nil, errBody
			}
			out = protowire.AppendTag(out, num, protowire.BytesType)
			var ok bool
			if out, ok = k.appendRef(out, int(s[n])); !ok {
				return nil, errBody
			}
			s = s[n+1:]
		default:
			m := scalar(s[n:], typ)
			if m < 0 {
				return nil, errBody
			}
			out = append(out, s[:n+m]...)
			s = s[n+m:]
		}
	}
	return out, nil
}

// The parsers below are protowire's for strings as well, which share memory where
// slices would have to be copied to be kept.

func consumeVarint[T text](s T) (uint64, int) {
	var v uint64
	for i := 0; i < len(s) && i < 10; i++ {
		v |= uint64(s[i]&0x7f) << (7 * i)
		if s[i] < 0x80 {
			return v, i + 1
		}
	}
	return 0, -1
}

func consumeTag[T text](s T) (protowire.Number, protowire.Type, int) {
	v, n := consumeVarint(s)
	if n < 0 {
		return 0, 0, n
	}
	num, typ := protowire.DecodeTag(v)
	if num < protowire.MinValidNumber || num > protowire.MaxValidNumber {
		return 0, 0, -1
	}
	return num, typ, n
}

func consumeBytes[T text](s T) (T, int) {
	v, n := consumeVarint(s)
	if n < 0 || v > uint64(len(s)-n) {
		return s[:0], -1
	}
	return s[n : n+int(v)], n + int(v)
}

// scalar returns the size of a field's value that is not length-delimited.
func scalar[T text](s T, typ protowire.Type) int {
	n := -1
	switch typ {
	case protowire.VarintType:
		_, n = consumeVarint(s)
	case protowire.Fixed32Type:
		n = 4
	case protowire.Fixed64Type:
		n = 8
	}
	if n > len(s) {
		return -1
	}
	return n
}
