package compat

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// An event is what a custom option says about a message: an option whose value is
// a message with a field topic.
type event struct {
	option  protoreflect.FieldDescriptor
	value   protoreflect.Message
	version int64
}

// custom returns the custom options of an element by number, without those of
// protovalidate, which have rules of their own.
func (s *side) custom(d protoreflect.Descriptor) map[protoreflect.FieldNumber]protoreflect.FieldDescriptor {
	found := map[protoreflect.FieldNumber]protoreflect.FieldDescriptor{}
	for f := range s.options(d).Range {
		if f.IsExtension() && f.ParentFile().Package() != "buf.validate" {
			found[f.Number()] = f
		}
	}
	return found
}

func (s *side) event(m protoreflect.MessageDescriptor) (event, bool) {
	options := s.options(m)
	custom := s.custom(m)
	for _, n := range slices.Sorted(maps.Keys(custom)) {
		x := custom[n]
		if x.Message() == nil || x.IsList() || x.IsMap() || stringField(x.Message(), "topic") == nil {
			continue
		}
		e := event{option: x, value: options.Get(x).Message()}
		if v := x.Message().Fields().ByName("version"); v != nil && integers[v.Kind()].bits > 0 && !v.IsList() {
			e.version = asInt(e.value.Get(v))
		}
		return e, true
	}
	return event{}, false
}

func asInt(v protoreflect.Value) int64 {
	switch n := v.Interface().(type) {
	case int32:
		return int64(n)
	case uint32:
		return int64(n)
	case uint64:
		return int64(n)
	case int64:
		return n
	}
	return 0
}

func stringField(m protoreflect.MessageDescriptor, name protoreflect.Name) protoreflect.FieldDescriptor {
	f := m.Fields().ByName(name)
	if f == nil || f.Kind() != protoreflect.StringKind || f.IsList() {
		return nil
	}
	return f
}

// text returns a string field of the event option, "" if it has none.
func (e event) text(names ...protoreflect.Name) string {
	for _, name := range names {
		if f := stringField(e.option.Message(), name); f != nil {
			return e.value.Get(f).String()
		}
	}
	return ""
}

// eventOptions compares the custom options of a message that is an event on
// either side.
func (c *comparer) eventOptions(b, h protoreflect.MessageDescriptor) {
	was, is := c.base.events[b.FullName()], c.head.events[h.FullName()]
	switch {
	case was.option == nil && is.option == nil:
		return
	case was.option == nil:
		c.inHead("X05", h, detail(is.text("topic")))
		return
	case is.option == nil:
		c.inHead("X04", h, detail(string(was.option.FullName())))
		return
	}
	c.customOptions(b, h, was.option.Number())
	for f := range all(was.option.Message().Fields()) {
		c.optionField(h, was, is, f)
	}
	for f := range all(is.option.Message().Fields()) {
		if was.option.Message().Fields().ByName(f.Name()) == nil && is.value.Has(f) {
			c.inHead("X06", h, detail(string(f.Name())))
		}
	}
}

func (c *comparer) optionField(h protoreflect.MessageDescriptor, was, is event, f protoreflect.FieldDescriptor) {
	now := is.option.Message().Fields().ByName(f.Name())
	switch {
	case f.Name() == "version": // judged when all additions are known
	case now == nil && !was.value.Has(f):
	case now == nil:
		c.inHead("X06", h, detail(string(f.Name())))
	case optionText(was.value.Get(f), f) == optionText(is.value.Get(now), now):
	case f.Name() == "topic":
		c.inHead("X01", h, detail(was.text("topic"), is.text("topic")))
	case f.Name() == "event_type" || f.Name() == "type":
		c.inHead("X02", h, detail(was.text(f.Name()), is.text(f.Name())))
	default:
		c.inHead("X06", h, detail(string(f.Name())))
	}
}

// customOptions compares all custom options but one.
func (c *comparer) customOptions(b, h protoreflect.Descriptor, but protoreflect.FieldNumber) {
	was, is := c.base.custom(b), c.head.custom(h)
	bo, ho := c.base.options(b), c.head.options(h)
	numbers := slices.Sorted(maps.Keys(was))
	for n := range is {
		if was[n] == nil {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	for _, n := range numbers {
		switch {
		case n == but:
		case is[n] == nil:
			c.inHead("X04", h, detail(string(was[n].FullName())))
		case was[n] == nil:
			c.inHead("X06", h, detail(string(is[n].FullName())))
		case optionText(bo.Get(was[n]), was[n]) != optionText(ho.Get(is[n]), is[n]):
			c.inHead("X06", h, detail(string(is[n].FullName())))
		}
	}
}

// fieldOptions: options of an event's fields belong to the event.
func (c *comparer) fieldOptions(b, h protoreflect.FieldDescriptor) {
	if _, ok := c.base.events[b.ContainingMessage().FullName()]; ok {
		c.customOptions(b, h, 0)
	}
}

// optionText writes a value so that equal values give equal text, whatever
// descriptors they were read with.
func optionText(v protoreflect.Value, f protoreflect.FieldDescriptor) string {
	switch {
	case f.IsList():
		var parts []string
		for i := range v.List().Len() {
			parts = append(parts, optionScalar(v.List().Get(i), f))
		}
		return strings.Join(parts, ",")
	case f.IsMap():
		var parts []string
		for k, v := range v.Map().Range {
			parts = append(parts, fmt.Sprintf("%q:%s", k.String(), optionScalar(v, f.MapValue())))
		}
		slices.Sort(parts)
		return strings.Join(parts, ",")
	}
	return optionScalar(v, f)
}

func optionScalar(v protoreflect.Value, f protoreflect.FieldDescriptor) string {
	if f.Message() == nil {
		return fmt.Sprintf("%q", fmt.Sprint(v.Interface()))
	}
	var parts []string
	for sub, v := range v.Message().Range {
		parts = append(parts, fmt.Sprintf("%d{%s}", sub.Number(), optionText(v, sub)))
	}
	slices.Sort(parts)
	return strings.Join(parts, ";") + fmt.Sprintf("%x", v.Message().GetUnknown())
}

// versions judges the versions of events (D10): one more, with a change that
// raises it, or the same.
func (c *comparer) versions() {
	for _, b := range c.base.roots() {
		h := c.head.messages[c.mapped(b.FullName())]
		if h == nil {
			continue
		}
		was, is := c.base.events[b.FullName()], c.head.events[h.FullName()]
		if was.option == nil || is.option == nil || was.version == is.version {
			continue
		}
		raised := false
		for name := range c.head.reach(func(yield func(protoreflect.MessageDescriptor) bool) { yield(h) }) {
			raised = raised || c.grown[name]
		}
		if is.version != was.version+1 || !raised {
			c.api = c.judgedAsAPI(b)
			c.inHead("X03", h, detail(number(int(was.version)), number(int(is.version))))
		}
	}
}
