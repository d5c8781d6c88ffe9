package compat

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/parley-chat/parley/schemacheck/compat/rule"
	"github.com/parley-chat/parley/schemacheck/compat/schema"
)

// matchTypes pairs messages of the same name at the same level.
func (c *comparer) matchTypes(b, h schema.Container) {
	l := &level{b: b, h: h}
	c.levels = append(c.levels, l)
	for bm := range schema.All(b.Messages()) {
		if bm.IsMapEntry() {
			continue
		}
		hm := h.Messages().ByName(bm.Name())
		if hm == nil || hm.IsMapEntry() {
			l.missing = append(l.missing, bm)
			continue
		}
		c.matchMessages(bm, hm)
		c.matchTypes(bm, hm)
	}
	for be := range schema.All(b.Enums()) {
		if he := h.Enums().ByName(be.Name()); he != nil && be.FullName() != he.FullName() {
			c.headNames[be.FullName()] = he.FullName()
		}
	}
}

// matchMessages records that two messages stand for each other.
func (c *comparer) matchMessages(b, h protoreflect.MessageDescriptor) {
	c.headNames[b.FullName()] = h.FullName()
	c.matched[h.FullName()] = b.FullName()
	c.enqueue(b, h)
}

// unmatched searches for messages that are not where they were.
func (c *comparer) unmatched(l *level) {
	l.missing = slices.DeleteFunc(l.missing, func(b protoreflect.MessageDescriptor) bool {
		if h := c.head.Messages[b.FullName()]; h != nil {
			c.inHead(rule.MessageFileChanged, h, detail(b.ParentFile().Path(), h.ParentFile().Path()))
			c.matchMessages(b, h)
			return true
		}
		if h := c.counterpart(b, l.h.ParentFile().Messages(), true); h != nil {
			c.inHead(rule.NestedMessageMoved, h, detail(string(b.FullName()), string(h.FullName())))
			c.matchMessages(b, h)
			return true
		}
		if h := c.counterpart(b, l.h.Messages(), false); h != nil {
			id := rule.MessageRenamed
			if c.root(b) {
				id = rule.EventRenamed
			}
			c.inHead(id, h, detail(string(b.Name()), string(h.Name())))
			c.matchMessages(b, h)
			return true
		}
		return false
	})
}

// counterpart finds a new message of the same shape: anywhere below the list and
// of the same short name, or in the list itself under another name.
func (c *comparer) counterpart(
	b protoreflect.MessageDescriptor, in protoreflect.MessageDescriptors, anywhere bool,
) (found protoreflect.MessageDescriptor) {
	consider := func(h protoreflect.MessageDescriptor) bool { //nolint:unparam // EachMessage asks for it
		_, taken := c.matched[h.FullName()]
		_, inBase := c.base.Messages[h.FullName()]
		if taken || inBase || h.IsMapEntry() || anywhere != (h.Name() == b.Name()) || schema.Shape(b) != schema.Shape(h) {
			return true
		}
		if found == nil || h.Index() == b.Index() {
			found = h
		}
		return true
	}
	if anywhere {
		schema.EachMessage(in, consider)
		return found
	}
	for h := range schema.All(in) {
		consider(h)
	}
	return found
}

func (c *comparer) root(b protoreflect.MessageDescriptor) bool {
	return slices.Contains(c.base.Roots, b)
}

// missing reports deleted messages.
func (c *comparer) missing(l *level) {
	for _, b := range l.missing {
		switch _, top := b.Parent().(protoreflect.FileDescriptor); {
		case c.usedByLostField(b):
			c.inBase(rule.FieldRemovedWithMessage, b)
		case top:
			c.inBase(rule.MessageRemoved, b)
		default:
			c.inBase(rule.NestedMessageRemoved, b)
		}
	}
}

func (c *comparer) usedByLostField(m protoreflect.MessageDescriptor) bool {
	used := false
	schema.EachMessage(m.ParentFile().Messages(), func(in protoreflect.MessageDescriptor) bool {
		h := c.head.Messages[c.mapped(in.FullName())]
		for f := range schema.All(in.Fields()) {
			used = used || f.Message() == m && h != nil && c.fieldsOf(h).ByNumber(f.Number()) == nil
		}
		return !used
	})
	return used
}

// added reports new messages of registered files: a registry lets such a file gain none.
func (c *comparer) added(l *level) {
	if c.api || !c.base.Registered[l.b.ParentFile().Path()] {
		return
	}
	for h := range schema.All(l.h.Messages()) {
		if _, taken := c.matched[h.FullName()]; taken || h.IsMapEntry() {
			continue
		}
		shifts := false
		for i := h.Index() + 1; i < l.h.Messages().Len(); i++ {
			_, stood := c.matched[l.h.Messages().Get(i).FullName()]
			shifts = shifts || stood
		}
		switch _, top := h.Parent().(protoreflect.FileDescriptor); {
		case shifts:
			c.inHead(rule.MessageAddedBeforeOthers, h)
		case c.usedByNewField(h):
			c.inHead(rule.FieldAddedWithMessageInFile, h)
		case top:
			c.inHead(rule.MessageAddedToRegisteredFile, h)
		default:
			c.inHead(rule.NestedMessageAdded, h)
		}
	}
}

func (c *comparer) usedByNewField(m protoreflect.MessageDescriptor) bool {
	used := false
	schema.EachMessage(m.ParentFile().Messages(), func(in protoreflect.MessageDescriptor) bool {
		b := c.base.Messages[c.matched[in.FullName()]]
		for f := range schema.All(in.Fields()) {
			of := f.Message()
			if f.IsMap() {
				of = f.MapValue().Message()
			}
			used = used || of == m && (b == nil || c.fieldsOf(b).ByNumber(f.Number()) == nil)
		}
		return !used
	})
	return used
}

// order reports messages that changed places: clients and records hold the message
// index as a constant.
func (c *comparer) order(l *level) {
	if c.api || !c.base.Registered[l.b.ParentFile().Path()] {
		return
	}
	last := -1
	for b := range schema.All(l.b.Messages()) {
		h := c.head.Messages[c.mapped(b.FullName())]
		if h == nil || h.Parent() != l.h || b.IsMapEntry() {
			continue
		}
		if h.Index() < last {
			c.inHead(rule.MessagesReordered, h, detail(number(b.Index()), number(h.Index())))
			return
		}
		last = h.Index()
	}
}

// message compares two messages that stand for each other.
func (c *comparer) message(b, h protoreflect.MessageDescriptor) {
	c.jsonFormat(b, h)
	c.accessor(b, h)
	c.reservations(b, h)
	c.extensionRanges(b, h)
	c.fields(b, h)
	c.extensions(b, h)
	c.oneofs(b, h)
	c.messageRules(b, h)
	c.eventOptions(b, h)
	c.deprecates(b, h, h)
}

// deprecates records a deprecation as a change that raises an event's version.
func (c *comparer) deprecates(b, h, in protoreflect.Descriptor) {
	type deprecable interface{ GetDeprecated() bool }
	was, ok1 := b.Options().(deprecable)
	is, ok2 := h.Options().(deprecable)
	if ok1 && ok2 && !was.GetDeprecated() && is.GetDeprecated() {
		c.evolved[in.FullName()], c.needVersion[in.FullName()] = true, true
	}
}

// reservations must stay; one that a new field takes is reported at the field.
func (c *comparer) reservations(b, h protoreflect.MessageDescriptor) {
	kept := append(schema.Reserved(h), schema.Numbers(h.Fields())...)
	for _, was := range schema.Reserved(b) {
		lost := schema.Subtract([]schema.Interval{was}, kept...)
		switch {
		case len(lost) == 0:
		case lost[0] == was:
			c.inHead(rule.ReservedNumberRemoved, h, detail(was.String()))
		default:
			c.inHead(rule.ReservedRangeNarrowed, h, detail(was.String()))
		}
	}
	for i := range b.ReservedNames().Len() {
		name := b.ReservedNames().Get(i)
		if !h.ReservedNames().Has(name) && c.fieldsOf(h).ByName(name) == nil {
			c.inHead(rule.ReservedNameRemoved, h, detail(string(name)))
		}
	}
}

func (c *comparer) extensionRanges(b, h protoreflect.MessageDescriptor) {
	kept := schema.Extendable(h)
	for _, was := range schema.Extendable(b) {
		lost := schema.Subtract([]schema.Interval{was}, kept...)
		switch {
		case len(lost) == 0:
		case lost[0] == was:
			c.inHead(rule.ExtensionRangeRemoved, h, detail(was.String()))
		default:
			c.inHead(rule.ExtensionRangeNarrowed, h, detail(was.String()))
		}
	}
}

func number[N ~int | ~int32](n N) string { return fmt.Sprint(int(n)) }
