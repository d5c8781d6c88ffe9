package table

import (
	"errors"

	"google.golang.org/protobuf/encoding/protowire"
)

// An event says much twice: its chat is also its partition key, its sender its
// actor, its time the time of the message, and its row has its id and type. A send
// of 512 bytes must fit into 1 KB per item, the unit of write cost (design rule 7),
// so values that are known already are replaced by a reference in the row.
//
// The condensed form is the encoding itself, field by field, in which a
// length-delimited field whose value is known stands as its tag with the wire
// type of a group's start, which proto3 never has, and one byte: the number of the
// known value. Known are the ids of the row and every value that came before, on
// the top level and in field 1, which all events have as their metadata.

const (
	metadataField = 1
	minShared     = 4 // bytes; a shorter value is not worth a reference
	maxKnown      = 32
)

var errBody = errors.New("table: body of an event is damaged")

// known is the list of values that can be referred to.
type known struct {
	values [maxKnown]string
	n      int
}

func newKnown(ids [3]string) *known {
	k := &known{}
	for _, id := range ids {
		k.add(id)
	}
	return k
}

func (k *known) add(v string) {
	if k.n < maxKnown && len(v) >= minShared {
		k.values[k.n] = v
		k.n++
	}
}

func (k *known) find(v string) int {
	for i, w := range k.values[:k.n] {
		if v == w {
			return i
		}
	}
	return -1
}

// condense replaces known values. It reports false if the payload cannot be
// restored exactly: not a canonical encoding, or one with groups.
func condense(payload []byte, chatID, eventID, eventType string) ([]byte, bool) {
	k := newKnown([3]string{chatID, eventID, eventType})
	s := string(payload)
	body, ok := k.condense(make([]byte, 0, len(s)), s, true)
	if !ok {
		return nil, false
	}
	back, err := expand(string(body), chatID, eventID, eventType)
	return body, err == nil && string(back) == s
}

func (k *known) condense(out []byte, s string, top bool) ([]byte, bool) {
	for len(s) > 0 {
		num, typ, n := consumeTag(s)
		if n < 0 || typ == protowire.StartGroupType || typ == protowire.EndGroupType {
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
		if m < 0 {
			return nil, false
		}
		s = s[n+m:]
		if top && num == metadataField {
			inner, ok := k.condense(make([]byte, 0, len(v)), v, false)
			if !ok {
				return nil, false
			}
			out = protowire.AppendTag(out, num, protowire.BytesType)
			out = protowire.AppendBytes(out, inner)
			continue
		}
		if i := k.find(v); i >= 0 && len(v) >= minShared {
			out = protowire.AppendTag(out, num, protowire.StartGroupType)
			out = append(out, byte(i))
			continue
		}
		out = protowire.AppendTag(out, num, protowire.BytesType)
		out = protowire.AppendString(out, v)
		k.add(v)
	}
	return out, true
}

// expand restores a payload.
func expand(body, chatID, eventID, eventType string) ([]byte, error) {
	k := newKnown([3]string{chatID, eventID, eventType})
	return k.expand(make([]byte, 0, len(body)+256), body, true)
}

func (k *known) expand(out []byte, s string, top bool) ([]byte, error) {
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
				inner, err := k.expand(make([]byte, 0, len(v)+256), v, false)
				if err != nil {
					return nil, err
				}
				out = protowire.AppendBytes(out, inner)
				continue
			}
			out = protowire.AppendString(out, v)
			k.add(v)
		case protowire.StartGroupType:
			if len(s) <= n || int(s[n]) >= k.n {
				return nil, errBody
			}
			out = protowire.AppendTag(out, num, protowire.BytesType)
			out = protowire.AppendString(out, k.values[s[n]])
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

// The parsers below are protowire's for strings, which share memory where slices
// would have to be copied to be kept.

func consumeVarint(s string) (uint64, int) {
	var v uint64
	for i := 0; i < len(s) && i < 10; i++ {
		v |= uint64(s[i]&0x7f) << (7 * i)
		if s[i] < 0x80 {
			return v, i + 1
		}
	}
	return 0, -1
}

func consumeTag(s string) (protowire.Number, protowire.Type, int) {
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

func consumeBytes(s string) (string, int) {
	v, n := consumeVarint(s)
	if n < 0 || v > uint64(len(s)-n) {
		return "", -1
	}
	return s[n : n+int(v)], n + int(v)
}

// scalar returns the size of a field's value that is not length-delimited.
func scalar(s string, typ protowire.Type) int {
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
