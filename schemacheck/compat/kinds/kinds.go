// Package kinds classifies changes of a field's type: which rule they fall under
// and which readers they break, by what each kind can hold and how it is encoded.
//
// It knows scalars and cardinality; messages and enums it tells from scalars only.
//
// Concurrency: functions are pure and may run together.
package kinds

import (
	"math"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// integer is an integer kind: how it is encoded and what it holds.
type integer struct {
	encoding byte // v varint, z zigzag, 4 or 8 bytes
	bits     int
	unsigned bool
}

var integers = map[protoreflect.Kind]integer{
	protoreflect.Int32Kind:    {'v', 32, false},
	protoreflect.Int64Kind:    {'v', 64, false},
	protoreflect.Uint32Kind:   {'v', 32, true},
	protoreflect.Uint64Kind:   {'v', 64, true},
	protoreflect.Sint32Kind:   {'z', 32, false},
	protoreflect.Sint64Kind:   {'z', 64, false},
	protoreflect.Sfixed32Kind: {'4', 32, false},
	protoreflect.Fixed32Kind:  {'4', 32, true},
	protoreflect.Sfixed64Kind: {'8', 64, false},
	protoreflect.Fixed64Kind:  {'8', 64, true},
}

// holds says whether each value of j is one of i.
func (i integer) holds(j integer) bool {
	limits := func(k integer) (lowest float64, highest float64) {
		if k.unsigned {
			return 0, math.Exp2(float64(k.bits))
		}
		return -math.Exp2(float64(k.bits - 1)), math.Exp2(float64(k.bits - 1))
	}
	lowest, highest := limits(i)
	low, high := limits(j)
	return lowest <= low && high <= highest
}

// Rule returns the rule for two fields of which one at most is a message and one at
// most an enum, "" if the kinds are the same, and whether new readers misread old
// values and old readers new ones.
func Rule(b, h protoreflect.FieldDescriptor) (id string, newBreaks, oldBreaks bool) {
	bk, hk := b.Kind(), h.Kind()
	bi, hi := integers[bk], integers[hk]
	if bk != hk && bi.bits > 0 && hi.bits > 0 {
		other := bi.encoding != hi.encoding
		return integerRule(bi, hi), other || !hi.holds(bi), other || !bi.holds(hi)
	}
	id = scalarRule(b, h)
	return id, id != "", id != ""
}

func scalarRule(b, h protoreflect.FieldDescriptor) string {
	bk, hk := b.Kind(), h.Kind()
	switch {
	case bk == hk:
		return ""
	case b.Message() != nil:
		return messageToScalar(b.Message(), h)
	case h.Message() != nil:
		return messageToScalar(h.Message(), b)
	case bk == protoreflect.EnumKind:
		return enumToScalar("T14", hk)
	case hk == protoreflect.EnumKind:
		return enumToScalar("T13", bk)
	case bk == protoreflect.StringKind && hk == protoreflect.BytesKind:
		return "T11"
	case bk == protoreflect.BytesKind && hk == protoreflect.StringKind:
		return "T12"
	case isFloat(bk) && isFloat(hk):
		return "T15"
	case bk == protoreflect.BoolKind && integers[hk].encoding == 'v', hk == protoreflect.BoolKind && integers[bk].encoding == 'v':
		return "T04"
	}
	return "T16"
}

// MapKeyRule returns the rule for the key types of two maps, "" if they are the same.
func MapKeyRule(b, h protoreflect.Kind) (id string, newBreaks, oldBreaks bool) {
	bi, hi := integers[b], integers[h]
	switch {
	case b == h:
		return "", false, false
	case bi.bits > 0 && bi.encoding == hi.encoding:
		return "L10", !hi.holds(bi), !bi.holds(hi)
	}
	return "L09", true, true
}

// CardinalityRule returns the rule for two fields of which one is a list.
func CardinalityRule(b, h protoreflect.FieldDescriptor) string {
	_, integer := integers[b.Kind()]
	isNumber := integer || b.Kind() == protoreflect.BoolKind || b.Kind() == protoreflect.FloatKind || b.Kind() == protoreflect.DoubleKind
	switch {
	case h.IsList() && b.Message() != nil:
		return "L06"
	case h.IsList() && isNumber && b.HasPresence():
		return "L02"
	case h.IsList() && isNumber:
		return "L01"
	case h.IsList():
		return "L04"
	case isNumber:
		return "L03"
	}
	return "L05"
}

func integerRule(b, h integer) string {
	switch {
	case b.encoding != h.encoding && b.encoding+h.encoding == 'v'+'z':
		return "T07"
	case b.encoding != h.encoding:
		return "T10"
	case b.encoding == '4':
		return "T08"
	case b.encoding == '8':
		return "T09"
	case b.encoding == 'z':
		return "T06"
	case b.unsigned != h.unsigned && max(b.bits, h.bits) == 32:
		return "T03"
	case b.unsigned != h.unsigned:
		return "T05"
	case b.bits < h.bits:
		return "T01"
	}
	return "T02"
}

func isFloat(k protoreflect.Kind) bool {
	return k == protoreflect.FloatKind || k == protoreflect.DoubleKind
}

func enumToScalar(withInteger string, k protoreflect.Kind) string {
	if integers[k].encoding == 'v' {
		return withInteger
	}
	return "T23"
}

func messageToScalar(m protoreflect.MessageDescriptor, scalar protoreflect.FieldDescriptor) string {
	value := m.Fields().ByName("value")
	switch {
	case m.ParentFile().Path() == "google/protobuf/wrappers.proto" && value.Kind() == scalar.Kind():
		return "T22"
	case scalar.Kind() == protoreflect.BytesKind:
		return "T17"
	case scalar.Kind() == protoreflect.StringKind:
		return "T20"
	}
	return "T21"
}
