package compat

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// match pairs messages of the same name at the same level.
func (c *comparer) match(b, h container, levels *[]*level) {
	l := &level{b: b, h: h}
	*levels = append(*levels, l)
	for bm := range all(b.Messages()) {
		if bm.IsMapEntry() {
			continue
		}
		hm := h.Messages().ByName(bm.Name())
		if hm == nil || hm.IsMapEntry() {
			l.missing = append(l.missing, bm)
			continue
		}
		c.same(bm, hm)
		c.match(bm, hm, levels)
	}
	for be := range all(b.Enums()) {
		if he := h.Enums().ByName(be.Name()); he != nil && be.FullName() != he.FullName() {
			c.names[be.FullName()] = he.FullName()
		}
	}
}

// same records that two messages stand for each other.
func (c *comparer) same(b, h protoreflect.MessageDescriptor) {
	c.names[b.FullName()] = h.FullName()
	c.taken[h.FullName()] = b.FullName()
	c.pair(b, h)
}

// unmatched looks for what became of messages that are not where they were.
func (c *comparer) unmatched(l *level) {
	l.missing = slices.DeleteFunc(l.missing, func(b protoreflect.MessageDescriptor) bool {
		if h := c.head.messages[b.FullName()]; h != nil {
			c.inHead("M04", h, detail(b.ParentFile().Path(), h.ParentFile().Path()))
			c.same(b, h)
			return true
		}
		if h := c.counterpart(b, l.h.ParentFile().Messages(), true); h != nil {
			c.inHead("M08", h, detail(string(b.FullName()), string(h.FullName())))
			c.same(b, h)
			return true
		}
		if h := c.counterpart(b, l.h.Messages(), false); h != nil {
			id := "M01"
			if c.root(b) {
				id = "M02"
			}
			c.inHead(id, h, detail(string(b.Name()), string(h.Name())))
			c.same(b, h)
			return true
		}
		return false
	})
}

// counterpart finds a new message of the same shape: anywhere below the list and
// of the same short name, or in the list itself under another name.
func (c *comparer) counterpart(b protoreflect.MessageDescriptor, in protoreflect.MessageDescriptors, anywhere bool) (found protoreflect.MessageDescriptor) {
	look := func(h protoreflect.MessageDescriptor) bool {
		_, taken := c.taken[h.FullName()]
		_, known := c.base.messages[h.FullName()]
		if taken || known || h.IsMapEntry() || anywhere != (h.Name() == b.Name()) || shape(b) != shape(h) {
			return true
		}
		if found == nil || h.Index() == b.Index() {
			found = h
		}
		return true
	}
	if anywhere {
		each(in, look)
		return found
	}
	for h := range all(in) {
		look(h)
	}
	return found
}

// shape is a message as its fields are encoded, without the names of types.
func shape(m protoreflect.MessageDescriptor) string {
	var lines []string
	for f := range all(m.Fields()) {
		lines = append(lines, fmt.Sprint(f.Number(), f.Name(), f.Kind(), f.Cardinality(), f.IsMap()))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func (c *comparer) root(b protoreflect.MessageDescriptor) bool {
	return slices.Contains(c.base.roots(), b)
}

// missing reports deleted messages.
func (c *comparer) missing(l *level) {
	for _, b := range l.missing {
		switch _, top := b.Parent().(protoreflect.FileDescriptor); {
		case c.usedByLostField(b):
			c.inBase("R07", b)
		case top:
			c.inBase("M03", b)
		default:
			c.inBase("M09", b)
		}
	}
}

func (c *comparer) usedByLostField(m protoreflect.MessageDescriptor) bool {
	used := false
	each(m.ParentFile().Messages(), func(in protoreflect.MessageDescriptor) bool {
		h := c.head.messages[c.mapped(in.FullName())]
		for f := range all(in.Fields()) {
			used = used || f.Message() == m && h != nil && h.Fields().ByNumber(f.Number()) == nil
		}
		return !used
	})
	return used
}

// added reports new messages of registered files (D1).
func (c *comparer) added(l *level) {
	if c.api || !c.base.registered[l.b.ParentFile().Path()] {
		return
	}
	for h := range all(l.h.Messages()) {
		if _, taken := c.taken[h.FullName()]; taken || h.IsMapEntry() {
			continue
		}
		shifts := false
		for i := h.Index() + 1; i < l.h.Messages().Len(); i++ {
			_, stood := c.taken[l.h.Messages().Get(i).FullName()]
			shifts = shifts || stood
		}
		switch _, top := h.Parent().(protoreflect.FileDescriptor); {
		case shifts:
			c.inHead("M06", h)
		case c.usedByNewField(h):
			c.inHead("F04", h)
		case top:
			c.inHead("M05", h)
		default:
			c.inHead("M10", h)
		}
	}
}

func (c *comparer) usedByNewField(m protoreflect.MessageDescriptor) bool {
	used := false
	each(m.ParentFile().Messages(), func(in protoreflect.MessageDescriptor) bool {
		b := c.base.messages[c.taken[in.FullName()]]
		for f := range all(in.Fields()) {
			of := f.Message()
			if f.IsMap() {
				of = f.MapValue().Message()
			}
			used = used || of == m && (b == nil || b.Fields().ByNumber(f.Number()) == nil)
		}
		return !used
	})
	return used
}

// order reports messages that changed places (D8): clients and records hold the
// message index as a constant.
func (c *comparer) order(l *level) {
	if c.api || !c.base.registered[l.b.ParentFile().Path()] {
		return
	}
	last := -1
	for b := range all(l.b.Messages()) {
		h := c.head.messages[c.mapped(b.FullName())]
		if h == nil || h.Parent() != l.h || b.IsMapEntry() {
			continue
		}
		if h.Index() < last {
			c.inHead("M07", h, detail(number(b.Index()), number(h.Index())))
			return
		}
		last = h.Index()
	}
}

// message compares two messages that stand for each other.
func (c *comparer) message(b, h protoreflect.MessageDescriptor) {
	c.jsonFormat(b, h)
	c.reservations(b, h)
	c.extensionRanges(b, h)
	c.fields(b, h)
	c.oneofs(b, h)
	c.messageRules(b, h)
	c.eventOptions(b, h)
	c.grows(b, h, h)
}

// grows records a deprecation as a change that raises an event's version.
func (c *comparer) grows(b, h, in protoreflect.Descriptor) {
	type deprecable interface{ GetDeprecated() bool }
	was, ok1 := b.Options().(deprecable)
	is, ok2 := h.Options().(deprecable)
	if ok1 && ok2 && !was.GetDeprecated() && is.GetDeprecated() {
		c.grown[in.FullName()] = true
	}
}

// An interval of numbers, both ends included.
type interval struct{ from, to int }

// less removes what others cover.
func less(from []interval, others ...interval) []interval {
	for _, o := range others {
		var rest []interval
		for _, i := range from {
			if i.to < o.from || i.from > o.to {
				rest = append(rest, i)
				continue
			}
			if i.from < o.from {
				rest = append(rest, interval{i.from, o.from - 1})
			}
			if i.to > o.to {
				rest = append(rest, interval{o.to + 1, i.to})
			}
		}
		from = rest
	}
	return from
}

func (i interval) String() string {
	if i.from == i.to {
		return number(i.from)
	}
	return number(i.from) + "-" + number(i.to)
}

func intervals(ranges protoreflect.FieldRanges) []interval {
	var list []interval
	for i := range ranges.Len() {
		list = append(list, interval{int(ranges.Get(i)[0]), int(ranges.Get(i)[1]) - 1})
	}
	return list
}

// reservations must stay; one that a new field takes is reported at the field.
func (c *comparer) reservations(b, h protoreflect.MessageDescriptor) {
	kept := intervals(h.ReservedRanges())
	for f := range all(h.Fields()) {
		kept = append(kept, interval{int(f.Number()), int(f.Number())})
	}
	for _, was := range intervals(b.ReservedRanges()) {
		lost := less([]interval{was}, kept...)
		switch {
		case len(lost) == 0:
		case lost[0] == was:
			c.inHead("V01", h, detail(was.String()))
		default:
			c.inHead("V03", h, detail(was.String()))
		}
	}
	for i := range b.ReservedNames().Len() {
		name := b.ReservedNames().Get(i)
		if !h.ReservedNames().Has(name) && h.Fields().ByName(name) == nil {
			c.inHead("V02", h, detail(string(name)))
		}
	}
}

func (c *comparer) extensionRanges(b, h protoreflect.MessageDescriptor) {
	kept := intervals(h.ExtensionRanges())
	for _, was := range intervals(b.ExtensionRanges()) {
		lost := less([]interval{was}, kept...)
		switch {
		case len(lost) == 0:
		case lost[0] == was:
			c.inHead("D03", h, detail(was.String()))
		default:
			c.inHead("D04", h, detail(was.String()))
		}
	}
}

func number[N ~int | ~int32](n N) string { return fmt.Sprint(int(n)) }

// byNumber returns fields in the order of their numbers.
func byNumber(m protoreflect.MessageDescriptor) []protoreflect.FieldDescriptor {
	list := slices.Collect(all(m.Fields()))
	slices.SortFunc(list, func(a, b protoreflect.FieldDescriptor) int { return cmp.Compare(a.Number(), b.Number()) })
	return list
}
