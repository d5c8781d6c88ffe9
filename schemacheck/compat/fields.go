package compat

import (
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/parley-chat/parley/schemacheck/compat/rule"
	"github.com/parley-chat/parley/schemacheck/compat/schema"
)

// fields matches the fields of two messages by number, then by name.
func (c *comparer) fields(b, h protoreflect.MessageDescriptor) {
	swapped := map[protoreflect.FieldNumber]bool{}
	was, is := c.fieldsOf(b), c.fieldsOf(h)
	for _, bf := range schema.ByNumber(b) {
		hf := is.ByNumber(bf.Number())
		moved := is.ByName(bf.Name())
		switch {
		case hf == nil && moved != nil && was.ByNumber(moved.Number()) == nil:
			c.renumbered(bf, moved)
		case hf == nil && moved == nil:
			c.removed(bf, h)
		case hf == nil:
			// Its name went to another old number, which is reported there; the number is lost here.
			c.unreserved(bf, h, true)
		case hf.Name() == bf.Name():
			c.field(bf, hf)
		case swapped[bf.Number()]:
		default:
			c.otherName(bf, hf, moved, swapped)
		}
	}
	for _, hf := range schema.ByNumber(h) {
		if was.ByNumber(hf.Number()) == nil && was.ByName(hf.Name()) == nil {
			c.addedField(hf, b)
		}
	}
}

// renumbered: the name is still there, at a number that base does not use.
func (c *comparer) renumbered(b, moved protoreflect.FieldDescriptor) {
	id := rule.FieldNumberChanged
	if moved.ContainingMessage().ReservedRanges().Has(b.Number()) {
		id = rule.FieldNumberChangedReserved
	}
	c.inHead(id, moved, detail(number(b.Number()), number(moved.Number())))
}

// otherName: the number is still there, under another name.
func (c *comparer) otherName(b, h, moved protoreflect.FieldDescriptor, swapped map[protoreflect.FieldNumber]bool) {
	old := c.fieldsOf(b.ContainingMessage()).ByName(h.Name()) // the field of base that had the name
	names := detail(string(b.Name()), string(h.Name()))
	switch sameType := c.sameType(b, h); {
	case sameType && moved != nil && old != nil && moved.Number() == old.Number():
		swapped[old.Number()] = true
		c.inHead(rule.FieldNamesSwapped, h, names)
	case moved != nil:
		c.renumbered(b, moved)
	case !sameType:
		c.inHead(rule.FieldNumberReusedOtherType, h,
			detail(string(b.Name())+" "+schema.TypeName(b), string(h.Name())+" "+schema.TypeName(h)))
	case h.ContainingMessage().ReservedNames().Has(b.Name()):
		c.inHead(rule.FieldNumberReusedSameType, h, names)
	case b.JSONName() == h.JSONName():
		c.inHead(rule.FieldRenamedSameJSONName, h, names)
		c.field(b, h)
	default:
		c.inHead(rule.FieldRenamed, h, names)
		c.field(b, h)
	}
}

func (c *comparer) removed(b protoreflect.FieldDescriptor, h protoreflect.MessageDescriptor) {
	if x := c.head.Extensions[h.FullName()][b.Number()]; x != nil {
		c.inHead(rule.FieldToExtension, x)
		return
	}
	if b.Cardinality() == protoreflect.Required {
		c.inBase(rule.FieldRemovedRequired, b)
	}
	if o := schema.Oneof(b); o != nil && h.Oneofs().ByName(o.Name()) != nil {
		c.inBase(rule.OneofCaseRemoved, b)
	}
	if c.trial.ZeroRefused(b) {
		c.inBase(rule.FieldRemovedZeroInvalid, b)
	}
	c.unreserved(b, h, h.ReservedNames().Has(b.Name()))
}

func (c *comparer) unreserved(b protoreflect.FieldDescriptor, h protoreflect.MessageDescriptor, name bool) {
	switch number := h.ReservedRanges().Has(b.Number()); {
	case !number && !name:
		c.inBase(rule.FieldRemovedNotReserved, b)
	case !number:
		c.inBase(rule.FieldRemovedNumberNotReserved, b)
	case !name:
		c.inBase(rule.FieldRemovedNameNotReserved, b)
	default:
		// No other field can take its place: such a removal is a step of the version too.
		c.evolved[h.FullName()] = true
		if c.api {
			c.inBase(rule.FieldRemovedReserved, b)
		}
	}
}

func (c *comparer) addedField(h protoreflect.FieldDescriptor, b protoreflect.MessageDescriptor) {
	c.raisesVersion(h)
	if h.Cardinality() == protoreflect.Required {
		if h.ParentFile().Syntax() == protoreflect.Editions {
			c.inHead(rule.FieldAddedLegacyRequired, h)
		} else {
			c.inHead(rule.FieldAddedRequired, h)
		}
	}
	if b.ReservedRanges().Has(h.Number()) {
		c.inHead(rule.FieldAddedOnReservedNumber, h, detail(number(h.Number())))
	}
	c.nameTaken(h, b)
	if o := schema.Oneof(h); o != nil {
		if was := b.Oneofs().ByName(o.Name()); was != nil && !c.api {
			if oneofRequired(was) {
				c.inHead(rule.RequiredOneofCaseAdded, h)
			} else {
				c.inHead(rule.OneofCaseAdded, h)
			}
		}
	}
	c.rulesOfAdded(h)
}

// raisesVersion records a new field as a change that raises an event's version.
func (c *comparer) raisesVersion(h protoreflect.FieldDescriptor) {
	c.evolved[h.ContainingMessage().FullName()] = true
	if !c.hasDefault(h) {
		c.needVersion[h.ContainingMessage().FullName()] = true
	}
}

// rulesOfAdded reports rules of a new field that refuse what was written without it.
func (c *comparer) rulesOfAdded(h protoreflect.FieldDescriptor) {
	switch rules := fieldRules(h); {
	case rules.GetRequired():
		c.ruleInHead(rule.FieldAddedValidationRequired, h)
	case c.trial.ZeroRefused(h):
		c.ruleInHead(rule.FieldAddedZeroInvalid, h)
	}
}

// nameTaken: readers of JSON know a field by its JSON name and by its name, so that
// neither may be one that stood for another field, or that was reserved for one.
func (c *comparer) nameTaken(h protoreflect.FieldDescriptor, b protoreflect.MessageDescriptor) {
	if name := schema.ReservedFor(h, b); name == h.Name() {
		c.inHead(rule.FieldAddedWithUsedName, h)
		return
	} else if name != "" {
		c.inHead(rule.FieldAddedWithUsedName, h, detail("in JSON as "+string(name)))
		return
	}
	if f, newBreaks, oldBreaks := c.fieldsOf(b).Clash(h); f != nil {
		c.inHead(rule.FieldAddedWithUsedName, h, detail("in JSON as "+string(f.Name())), reads(newBreaks, oldBreaks))
	}
}

// field compares two fields of the same number and, unless reported, name.
func (c *comparer) field(b, h protoreflect.FieldDescriptor) {
	c.deprecates(b, h, h.ContainingMessage())
	if !c.typeOf(b, h) {
		return
	}
	if schema.SameOneof(b, h) {
		c.presence(b, h)
	}
	c.defaultOf(b, h)
	c.jsonName(b, h)
	c.utf8(b, h)
	c.jstype(b, h)
	c.generated(b, h)
	c.fieldOptions(b, h)
	c.compareRules(b, h)
}

// jsonName: readers know a field by its JSON name and by its name; writers write
// the first.
func (c *comparer) jsonName(b, h protoreflect.FieldDescriptor) {
	if b.Name() != h.Name() || b.JSONName() == h.JSONName() || b.IsExtension() {
		return
	}
	known := func(reader, writer protoreflect.FieldDescriptor) bool {
		return writer.JSONName() == string(reader.Name())
	}
	newBreaks, oldBreaks := !known(h, b), !known(b, h)
	_, newMisreads, oldMisreads := c.fieldsOf(b.ContainingMessage()).Clash(h)
	c.inHead(rule.FieldJSONNameChanged, h, detail(b.JSONName(), h.JSONName()),
		reads(newBreaks || newMisreads, oldBreaks || oldMisreads))
}

func (c *comparer) defaultOf(b, h protoreflect.FieldDescriptor) {
	switch {
	case b.Message() != nil || b.IsList():
	case b.HasDefault() != h.HasDefault():
		c.inHead(rule.DefaultAddedOrRemoved, h)
	case b.HasDefault() && b.Enum() != nil && b.DefaultEnumValue().Name() != h.DefaultEnumValue().Name(),
		b.HasDefault() && b.Enum() == nil && !b.Default().Equal(h.Default()):
		c.inHead(rule.DefaultChanged, h)
	}
}
