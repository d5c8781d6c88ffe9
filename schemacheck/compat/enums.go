package compat

import (
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/parley-chat/parley/schemacheck/compat/rule"
	"github.com/parley-chat/parley/schemacheck/compat/schema"
)

// enumTypes matches the enums that a file or message declares.
func (c *comparer) enumTypes(l *level) {
	for b := range schema.All(l.b.Enums()) {
		if h := l.h.Enums().ByName(b.Name()); h != nil {
			c.enum(b, h)
			continue
		}
		if h := c.head.Enums[b.FullName()]; h != nil {
			c.inHead(rule.EnumFileChanged, h, detail(b.ParentFile().Path(), h.ParentFile().Path()))
			c.enum(b, h)
			continue
		}
		found := false
		for h := range schema.All(l.h.Enums()) {
			if l.b.Enums().ByName(h.Name()) == nil && !found && schema.EnumShape(b) == schema.EnumShape(h) {
				found = true
				c.headNames[b.FullName()] = h.FullName()
				c.inHead(rule.EnumRenamed, h, detail(string(b.Name()), string(h.Name())))
			}
		}
		if !found {
			c.inBase(rule.EnumRemoved, b)
		}
	}
}

// enum compares two enums that stand for each other, once.
func (c *comparer) enum(b, h protoreflect.EnumDescriptor) {
	if c.compared[b.FullName()] {
		return
	}
	c.compared[b.FullName()] = true
	current, api := c.current, c.api
	defer func() { c.current, c.api = current, api }()
	c.current, c.api = b.FullName(), c.judgedAsAPI(b)

	c.enumValues(b, h)
	c.newValues(b, h)
	if first, now := b.Values().Get(0), h.Values().Get(0); first.Number() != now.Number() &&
		h.Values().ByNumber(first.Number()) != nil {
		c.inHead(rule.EnumFirstValueChanged, now, detail(string(first.Name()), string(now.Name())))
	}
	if b.IsClosed() != h.IsClosed() && !syntaxChanged(b, h) {
		if h.IsClosed() {
			c.inHead(rule.EnumOpennessChanged, h, detail("OPEN", "CLOSED"))
		} else {
			c.inHead(rule.EnumOpennessChanged, h, detail("CLOSED", "OPEN"), severity(Warn), reads(false, true))
		}
	}
	c.jsonFormat(b, h)
	c.enumReservations(b, h)
	c.deprecates(b, h, h)
}

// enumValues reports what became of each value of base.
func (c *comparer) enumValues(b, h protoreflect.EnumDescriptor) {
	swapped := map[protoreflect.Name]bool{}
	for v := range schema.All(b.Values()) {
		named, numbered := h.Values().ByName(v.Name()), h.Values().ByNumber(v.Number())
		switch {
		case named != nil && named.Number() == v.Number():
			c.deprecates(v, named, h)
			c.alias(v, b, h)
		case named != nil:
			was := b.Values().ByNumber(named.Number()) // the value that had the new number
			if was != nil && numbered != nil && numbered.Name() == was.Name() {
				if !swapped[v.Name()] {
					swapped[was.Name()] = true
					c.inHead(rule.EnumValueNumbersSwapped, named, detail(string(v.Name()), string(was.Name())))
				}
				continue
			}
			c.inHead(rule.EnumValueNumberChanged, named, detail(number(v.Number()), number(named.Number())))
		case numbered != nil && b.Values().ByName(numbered.Name()) == nil:
			c.inHead(rule.EnumValueRenamed, numbered, detail(string(v.Name()), string(numbered.Name())))
		case h.ReservedNames().Has(v.Name()) && (h.ReservedRanges().Has(v.Number()) || numbered != nil):
			c.inBase(rule.EnumValueRemovedReserved, v)
		default:
			c.inBase(rule.EnumValueRemovedNotReserved, v)
		}
	}
}

// alias: JSON writers write the first name of a number.
func (c *comparer) alias(v protoreflect.EnumValueDescriptor, b, h protoreflect.EnumDescriptor) {
	if b.Values().ByNumber(v.Number()) != v {
		return
	}
	if first := h.Values().ByNumber(v.Number()); first.Name() != v.Name() && b.Values().ByName(first.Name()) == nil {
		c.inHead(rule.EnumAliasAddedFirst, first, detail(string(v.Name()), string(first.Name())))
	}
}

func (c *comparer) newValues(b, h protoreflect.EnumDescriptor) {
	for v := range schema.All(h.Values()) {
		if b.Values().ByName(v.Name()) != nil || b.Values().ByNumber(v.Number()) != nil {
			continue
		}
		c.evolved[h.FullName()] = true
		reused := ""
		if b.ReservedRanges().Has(v.Number()) {
			reused = number(v.Number())
		}
		if b.ReservedNames().Has(v.Name()) {
			reused = strings.TrimSpace(reused + " " + string(v.Name()))
		}
		if reused != "" {
			c.inHead(rule.EnumValueAddedOnReserved, v, detail(reused))
		}
		if b.IsClosed() && h.IsClosed() {
			c.inHead(rule.EnumValueAddedClosed, v)
		}
	}
}

func (c *comparer) enumReservations(b, h protoreflect.EnumDescriptor) {
	kept := append(schema.ReservedValues(h), schema.Numbers(h.Values())...)
	for _, was := range schema.ReservedValues(b) {
		if len(schema.Subtract([]schema.Interval{was}, kept...)) > 0 {
			c.inHead(rule.EnumReservationNarrowed, h, detail(was.String()))
		}
	}
	for i := range b.ReservedNames().Len() {
		if name := b.ReservedNames().Get(i); !h.ReservedNames().Has(name) && h.Values().ByName(name) == nil {
			c.inHead(rule.EnumReservationNarrowed, h, detail(string(name)))
		}
	}
}
