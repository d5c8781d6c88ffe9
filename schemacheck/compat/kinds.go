package compat

import (
	"math"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/parley-chat/parley/schemacheck/compat/rule"
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

// kindRule returns the rule for two fields of which one at most is a message and one at
// most an enum, "" if the kinds are the same, and whether new readers misread old
// values and old readers new ones.
func kindRule(b, h protoreflect.FieldDescriptor) (id rule.ID, newBreaks, oldBreaks bool) {
	bk, hk := b.Kind(), h.Kind()
	bi, hi := integers[bk], integers[hk]
	if bk != hk && bi.bits > 0 && hi.bits > 0 {
		other := bi.encoding != hi.encoding
		return integerRule(bi, hi), other || !hi.holds(bi), other || !bi.holds(hi)
	}
	id = scalarRule(b, h)
	return id, id != "", id != ""
}

func scalarRule(b, h protoreflect.FieldDescriptor) rule.ID {
	bk, hk := b.Kind(), h.Kind()
	switch {
	case bk == hk:
		return ""
	case b.Message() != nil:
		return messageToScalar(b.Message(), h)
	case h.Message() != nil:
		return messageToScalar(h.Message(), b)
	case bk == protoreflect.EnumKind:
		return enumToScalar(rule.EnumToInteger, hk)
	case hk == protoreflect.EnumKind:
		return enumToScalar(rule.IntegerToEnum, bk)
	case bk == protoreflect.StringKind && hk == protoreflect.BytesKind:
		return rule.StringToBytes
	case bk == protoreflect.BytesKind && hk == protoreflect.StringKind:
		return rule.BytesToString
	case isFloat(bk) && isFloat(hk):
		return rule.FloatDoubleExchanged
	case bk == protoreflect.BoolKind && integers[hk].encoding == 'v', hk == protoreflect.BoolKind &&
		integers[bk].encoding == 'v':
		return rule.IntegerBoolExchanged
	}
	return rule.ScalarTypeChanged
}

// mapKeyRule returns the rule for the key types of two maps, "" if they are the same.
func mapKeyRule(b, h protoreflect.Kind) (id rule.ID, newBreaks, oldBreaks bool) {
	bi, hi := integers[b], integers[h]
	switch {
	case b == h:
		return "", false, false
	case bi.bits > 0 && bi.encoding == hi.encoding:
		return rule.MapKeyWidthChanged, !hi.holds(bi), !bi.holds(hi)
	}
	return rule.MapKeyTypeChanged, true, true
}

// cardinalityRule returns the rule for two fields of which one is a list.
func cardinalityRule(b, h protoreflect.FieldDescriptor) rule.ID {
	_, integer := integers[b.Kind()]
	isNumber := integer || b.Kind() == protoreflect.BoolKind || b.Kind() == protoreflect.FloatKind ||
		b.Kind() == protoreflect.DoubleKind
	switch {
	case h.IsList() && b.Message() != nil:
		return rule.MessageToRepeated
	case h.IsList() && isNumber && b.HasPresence():
		return rule.OptionalNumberToRepeated
	case h.IsList() && isNumber:
		return rule.NumberToRepeated
	case h.IsList():
		return rule.SingularToRepeated
	case isNumber:
		return rule.RepeatedNumberToSingular
	}
	return rule.RepeatedToSingular
}

func integerRule(b, h integer) rule.ID {
	switch {
	case b.encoding != h.encoding && b.encoding+h.encoding == 'v'+'z':
		return rule.ZigZagEncodingChanged
	case b.encoding != h.encoding:
		return rule.ScalarWireTypeChanged
	case b.encoding == '4':
		return rule.Fixed32SignChanged
	case b.encoding == '8':
		return rule.Fixed64SignChanged
	case b.encoding == 'z':
		return rule.ZigZagWidthChanged
	case b.unsigned != h.unsigned && max(b.bits, h.bits) == 32:
		return rule.Int32SignChanged
	case b.unsigned != h.unsigned:
		return rule.Int64SignChanged
	case b.bits < h.bits:
		return rule.IntegerWidened
	}
	return rule.IntegerNarrowed
}

func isFloat(k protoreflect.Kind) bool {
	return k == protoreflect.FloatKind || k == protoreflect.DoubleKind
}

func enumToScalar(withInteger rule.ID, k protoreflect.Kind) rule.ID {
	if integers[k].encoding == 'v' {
		return withInteger
	}
	return rule.EnumOtherScalarExchanged
}

func messageToScalar(m protoreflect.MessageDescriptor, scalar protoreflect.FieldDescriptor) rule.ID {
	value := m.Fields().ByName("value")
	switch {
	case m.ParentFile().Path() == "google/protobuf/wrappers.proto" && value.Kind() == scalar.Kind():
		return rule.ScalarWrapperExchanged
	case scalar.Kind() == protoreflect.BytesKind:
		return rule.MessageBytesExchanged
	case scalar.Kind() == protoreflect.StringKind:
		return rule.MessageStringExchanged
	}
	return rule.MessageNumberExchanged
}
