package compat

import (
	"math"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
)

// typeOf compares cardinality and type and asks for the comparison of the types
// that are used. False means that nothing else of the field can be compared.
func (c *comparer) typeOf(b, h protoreflect.FieldDescriptor) bool {
	if b.IsMap() || h.IsMap() {
		return c.mapOf(b, h)
	}
	if b.IsList() != h.IsList() {
		c.inHead(cardinalityRule(b, h), h, detail(typeName(b), typeName(h)))
		return false
	}
	ok := true
	if required := protoreflect.Required; b.Cardinality() != h.Cardinality() {
		switch {
		case h.Cardinality() != required:
			c.inHead("L14", h)
		case h.ParentFile().Syntax() == protoreflect.Editions:
			c.inHead("P04", h)
		default:
			c.inHead("L13", h)
		}
	}
	if id, changes := c.typeRule(b, h); id != "" {
		c.inHead(id, h, append(changes, detail(typeName(b), typeName(h)))...)
		return false
	}
	c.uses(b, h)
	return ok
}

// uses compares the type that both fields have.
func (c *comparer) uses(b, h protoreflect.FieldDescriptor) {
	if b.Message() != nil && h.Message() != nil {
		c.pair(b.Message(), h.Message())
	}
	if b.Enum() != nil && h.Enum() != nil {
		c.enum(b.Enum(), h.Enum())
	}
}

func (c *comparer) mapOf(b, h protoreflect.FieldDescriptor) bool {
	names := detail(typeName(b), typeName(h))
	switch {
	case !h.IsMap():
		c.inHead("L07", h, names)
		return false
	case !b.IsMap():
		c.inHead("L08", h, names)
		return false
	}
	if bk, hk := b.MapKey().Kind(), h.MapKey().Kind(); bk != hk {
		if bi, hi := integers[bk], integers[hk]; bi.bits > 0 && bi.encoding == hi.encoding {
			c.inHead("L10", h, names, reads(!hi.holds(bi), !bi.holds(hi)))
		} else {
			c.inHead("L09", h, names)
		}
		return false
	}
	if !c.sameType(b.MapValue(), h.MapValue()) {
		c.inHead("L11", h, names)
		return false
	}
	c.utf8(b.MapKey(), h.MapKey())
	c.utf8(b.MapValue(), h.MapValue())
	c.uses(b.MapValue(), h.MapValue())
	return true
}

func cardinalityRule(b, h protoreflect.FieldDescriptor) string {
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

// sameType says that nothing is to be reported about the type itself.
func (c *comparer) sameType(b, h protoreflect.FieldDescriptor) bool {
	if b.IsMap() || h.IsMap() {
		return b.IsMap() && h.IsMap() && b.MapKey().Kind() == h.MapKey().Kind() && c.sameType(b.MapValue(), h.MapValue())
	}
	id, _ := c.typeRule(b, h)
	return id == "" && b.IsList() == h.IsList()
}

// An integer kind: how it is encoded and what it holds.
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

// typeRule returns the rule for the types of two fields, "" if they are the same.
func (c *comparer) typeRule(b, h protoreflect.FieldDescriptor) (string, []change) {
	bk, hk := b.Kind(), h.Kind()
	switch {
	case b.Message() != nil && h.Message() != nil:
		return c.messageTypeRule(b, h), nil
	case b.Message() != nil:
		return messageToScalar(b.Message(), h), nil
	case h.Message() != nil:
		return messageToScalar(h.Message(), b), nil
	case b.Enum() != nil && h.Enum() != nil:
		return c.enumTypeRule(b.Enum(), h.Enum()), nil
	case bk == hk:
		return "", nil
	case bk == protoreflect.EnumKind:
		return enumToScalar("T14", hk), nil
	case hk == protoreflect.EnumKind:
		return enumToScalar("T13", bk), nil
	case bk == protoreflect.StringKind && hk == protoreflect.BytesKind:
		return "T11", nil
	case bk == protoreflect.BytesKind && hk == protoreflect.StringKind:
		return "T12", nil
	case isFloat(bk) && isFloat(hk):
		return "T15", nil
	}
	bi, hi := integers[bk], integers[hk]
	switch {
	case bk == protoreflect.BoolKind && hi.encoding == 'v', hk == protoreflect.BoolKind && bi.encoding == 'v':
		return "T04", nil
	case bi.bits == 0 || hi.bits == 0:
		return "T16", nil
	}
	return integerRule(bi, hi), []change{reads(bi.encoding != hi.encoding || !hi.holds(bi), bi.encoding != hi.encoding || !bi.holds(hi))}
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

func (c *comparer) messageTypeRule(b, h protoreflect.FieldDescriptor) string {
	bm, hm := b.Message(), h.Message()
	switch {
	case b.Kind() != h.Kind() && (b.ParentFile().Syntax() == protoreflect.Editions || h.ParentFile().Syntax() == protoreflect.Editions):
		return "T26"
	case b.Kind() != h.Kind():
		return "T25"
	case c.mapped(bm.FullName()) == hm.FullName():
		return ""
	case bm.Name() == hm.Name() && bm.ParentFile().Package() != hm.ParentFile().Package() && shape(bm) == shape(hm):
		return "T19"
	}
	return "T18"
}

func (c *comparer) enumTypeRule(b, h protoreflect.EnumDescriptor) string {
	switch {
	case c.mapped(b.FullName()) == h.FullName():
		return ""
	case b.Name() == h.Name() && b.ParentFile().Package() != h.ParentFile().Package() && enumShape(b) == enumShape(h):
		return "T19"
	}
	return "T24"
}

// presence compares how unset is told from zero. With rules the change decides
// whether unset is refused.
func (c *comparer) presence(b, h protoreflect.FieldDescriptor) {
	if b.IsList() || b.IsMap() || b.HasPresence() == h.HasPresence() {
		return
	}
	directions := reads(b.HasPresence(), h.HasPresence())
	if hasRules(b) || hasRules(h) {
		c.inHead("Y15", h, directions)
		return
	}
	switch {
	case b.ParentFile().Syntax() == protoreflect.Editions && h.ParentFile().Syntax() == protoreflect.Editions:
		c.inHead("P03", h, directions)
	case h.HasPresence():
		c.inHead("P01", h)
	default:
		c.inHead("P02", h)
	}
}

func (c *comparer) jstype(b, h protoreflect.FieldDescriptor) {
	of := func(f protoreflect.FieldDescriptor) descriptorpb.FieldOptions_JSType {
		o, _ := f.Options().(*descriptorpb.FieldOptions)
		return o.GetJstype()
	}
	if of(b) != of(h) {
		c.inHead("T28", h, detail(of(b).String(), of(h).String()))
	}
}

// typeName is a field's type as it is written in a proto file.
func typeName(f protoreflect.FieldDescriptor) string {
	name := f.Kind().String()
	switch {
	case f.IsMap():
		return "map<" + typeName(f.MapKey()) + ", " + typeName(f.MapValue()) + ">"
	case f.Message() != nil:
		name = string(f.Message().FullName())
	case f.Enum() != nil:
		name = string(f.Enum().FullName())
	}
	if f.Kind() == protoreflect.GroupKind {
		name = "group " + name
	}
	if f.IsList() {
		name = "repeated " + name
	}
	return strings.TrimSpace(name)
}
