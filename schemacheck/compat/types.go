package compat

import (
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/parley-chat/parley/schemacheck/compat/rule"
	"github.com/parley-chat/parley/schemacheck/compat/schema"
)

// typeOf compares cardinality and type and asks for the comparison of the types
// that are used. False means that nothing else of the field can be compared.
func (c *comparer) typeOf(b, h protoreflect.FieldDescriptor) bool {
	if b.IsMap() || h.IsMap() {
		return c.mapOf(b, h)
	}
	if b.IsList() != h.IsList() {
		c.inHead(cardinalityRule(b, h), h, detail(schema.TypeName(b), schema.TypeName(h)))
		return false
	}
	ok := true
	if required := protoreflect.Required; b.Cardinality() != h.Cardinality() {
		switch {
		case h.Cardinality() != required:
			c.inHead(rule.FieldNoLongerRequired, h)
		case h.ParentFile().Syntax() == protoreflect.Editions:
			c.inHead(rule.PresenceFeatureToRequired, h)
		default:
			c.inHead(rule.FieldBecameRequired, h)
		}
	}
	if id, changes := c.typeRule(b, h); id != "" {
		c.inHead(id, h, append(changes, detail(schema.TypeName(b), schema.TypeName(h)))...)
		return false
	}
	c.uses(b, h)
	return ok
}

// uses compares the type that both fields have.
func (c *comparer) uses(b, h protoreflect.FieldDescriptor) {
	if b.Message() != nil && h.Message() != nil {
		c.enqueue(b.Message(), h.Message())
	}
	if b.Enum() != nil && h.Enum() != nil {
		c.enum(b.Enum(), h.Enum())
	}
}

func (c *comparer) mapOf(b, h protoreflect.FieldDescriptor) bool {
	names := detail(schema.TypeName(b), schema.TypeName(h))
	switch {
	case !h.IsMap():
		c.inHead(rule.MapToOtherField, h, names)
		return false
	case !b.IsMap():
		c.inHead(rule.OtherFieldToMap, h, names)
		return false
	}
	if id, newBreaks, oldBreaks := mapKeyRule(b.MapKey().Kind(), h.MapKey().Kind()); id != "" {
		c.inHead(id, h, names, reads(newBreaks, oldBreaks))
		return false
	}
	if !c.sameType(b.MapValue(), h.MapValue()) {
		c.inHead(rule.MapValueTypeChanged, h, names)
		return false
	}
	c.uses(b.MapValue(), h.MapValue())
	return true
}

// sameType says that nothing is to be reported about the type itself.
func (c *comparer) sameType(b, h protoreflect.FieldDescriptor) bool {
	if b.IsMap() || h.IsMap() {
		return b.IsMap() && h.IsMap() && b.MapKey().Kind() == h.MapKey().Kind() && c.sameType(b.MapValue(), h.MapValue())
	}
	id, _ := c.typeRule(b, h)
	return id == "" && b.IsList() == h.IsList()
}

// typeRule returns the rule for the types of two fields, "" if they are the same.
func (c *comparer) typeRule(b, h protoreflect.FieldDescriptor) (rule.ID, []change) {
	switch {
	case b.Message() != nil && h.Message() != nil:
		return c.messageTypeRule(b, h), nil
	case b.Enum() != nil && h.Enum() != nil:
		return c.enumTypeRule(b.Enum(), h.Enum()), nil
	}
	id, newBreaks, oldBreaks := kindRule(b, h)
	return id, []change{reads(newBreaks, oldBreaks)}
}

func (c *comparer) messageTypeRule(b, h protoreflect.FieldDescriptor) rule.ID {
	bm, hm := b.Message(), h.Message()
	switch {
	case b.Kind() != h.Kind() && (b.ParentFile().Syntax() == protoreflect.Editions ||
		h.ParentFile().Syntax() == protoreflect.Editions):
		return rule.MessageEncodingChanged
	case b.Kind() != h.Kind():
		return rule.GroupMessageExchanged
	case c.mapped(bm.FullName()) == hm.FullName():
		return ""
	case bm.Name() == hm.Name() && bm.ParentFile().Package() != hm.ParentFile().Package() &&
		schema.Shape(bm) == schema.Shape(hm):
		return rule.FieldTypePackageChanged
	}
	return rule.FieldMessageReplaced
}

func (c *comparer) enumTypeRule(b, h protoreflect.EnumDescriptor) rule.ID {
	switch {
	case c.mapped(b.FullName()) == h.FullName():
		return ""
	case b.Name() == h.Name() && b.ParentFile().Package() != h.ParentFile().Package() &&
		schema.EnumShape(b) == schema.EnumShape(h):
		return rule.FieldTypePackageChanged
	}
	return rule.FieldEnumReplaced
}

// presence compares how unset is distinguished from zero. Where rules refuse one of both, the
// change decides whether readers refuse events.
func (c *comparer) presence(b, h protoreflect.FieldDescriptor) {
	if b.IsList() || b.IsMap() || b.HasPresence() == h.HasPresence() {
		return
	}
	directions := reads(b.HasPresence(), h.HasPresence())
	if c.trial.ZeroRefused(b) || c.trial.ZeroRefused(h) {
		c.inHead(rule.ValidatedPresenceChanged, h, directions)
		return
	}
	switch {
	case b.ParentFile().Syntax() == protoreflect.Editions && h.ParentFile().Syntax() == protoreflect.Editions:
		c.inHead(rule.PresenceFeatureChanged, h, directions)
	case h.HasPresence():
		c.inHead(rule.PresenceToExplicit, h)
	default:
		c.inHead(rule.PresenceToImplicit, h)
	}
}

// accessor compares what generated code offers beside the fields.
func (c *comparer) accessor(b, h protoreflect.MessageDescriptor) {
	without := func(m protoreflect.MessageDescriptor) bool {
		o, _ := m.Options().(*descriptorpb.MessageOptions)
		return o.GetNoStandardDescriptorAccessor()
	}
	if !without(b) && without(h) {
		c.inHead(rule.DescriptorAccessorRemoved, h)
	}
}

// generated compares what decides on the types of generated C++ and Java code.
func (c *comparer) generated(b, h protoreflect.FieldDescriptor) {
	if was, is := schema.CppString(b), schema.CppString(h); was != is {
		c.inHead(rule.CPPStringTypeChanged, h, detail(was, is))
	}
	if was, is := schema.JavaUTF8(b), schema.JavaUTF8(h); was != is {
		c.inHead(rule.JavaUTF8ValidationChanged, h, detail(was, is))
	}
}

func (c *comparer) jstype(b, h protoreflect.FieldDescriptor) {
	of := func(f protoreflect.FieldDescriptor) descriptorpb.FieldOptions_JSType {
		o, _ := f.Options().(*descriptorpb.FieldOptions)
		return o.GetJstype()
	}
	if of(b) != of(h) {
		c.inHead(rule.JSTypeChanged, h, detail(of(b).String(), of(h).String()))
	}
}
