package compat

import (
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/parley-chat/parley/schemacheck/compat/rule"
	"github.com/parley-chat/parley/schemacheck/compat/schema"
)

// eventOptions compares the custom options of a message that is an event on
// either side.
func (c *comparer) eventOptions(b, h protoreflect.MessageDescriptor) {
	was, is := c.base.Events[b.FullName()], c.head.Events[h.FullName()]
	switch {
	case was.Option == nil && is.Option == nil:
		return
	case was.Option == nil:
		c.inHead(rule.EventOptionAdded, h, atOption(h, is), detail(is.Text("topic")))
		return
	case is.Option == nil:
		c.inHead(rule.CustomOptionRemoved, h, detail(string(was.Option.FullName())))
		return
	}
	c.customOptions(b, h, was.Option.Number())
	for f := range schema.All(was.Option.Message().Fields()) {
		c.optionField(h, was, is, f)
	}
	for f := range schema.All(is.Option.Message().Fields()) {
		if was.Option.Message().Fields().ByName(f.Name()) == nil && is.Value.Has(f) {
			c.inHead(rule.CustomOptionChanged, h, atOption(h, is), detail(string(f.Name())))
		}
	}
}

// atOption points a finding at the event option of a message.
func atOption(m protoreflect.MessageDescriptor, e schema.Event) change {
	const messageOptions = 7 // in DescriptorProto
	path := slices.Clone(m.ParentFile().SourceLocations().ByDescriptor(m).Path)
	at := m.ParentFile().SourceLocations().ByPath(append(path, messageOptions, int32(e.Option.Number())))
	return func(f *Finding) {
		if at.Path != nil {
			f.Line, f.Column = at.StartLine+1, at.StartColumn+1
		}
	}
}

func (c *comparer) optionField(h protoreflect.MessageDescriptor, was, is schema.Event, f protoreflect.FieldDescriptor) {
	now := is.Option.Message().Fields().ByName(f.Name())
	switch {
	case f.Name() == "version": // judged when all additions are known
	case now == nil && !was.Value.Has(f):
	case now == nil:
		c.inHead(rule.CustomOptionChanged, h, atOption(h, is), detail(string(f.Name())))
	case schema.OptionText(was.Value.Get(f), f) == schema.OptionText(is.Value.Get(now), now):
	case f.Name() == "topic":
		c.inHead(rule.EventTopicChanged, h, atOption(h, is), detail(was.Text("topic"), is.Text("topic")))
	case f.Name() == "event_type" || f.Name() == "type":
		c.inHead(rule.EventTypeChanged, h, atOption(h, is), detail(was.Text(f.Name()), is.Text(f.Name())))
	default:
		c.inHead(rule.CustomOptionChanged, h, atOption(h, is), detail(string(f.Name())))
	}
}

// customOptions compares all custom options but one.
func (c *comparer) customOptions(b, h protoreflect.Descriptor, but protoreflect.FieldNumber) {
	was, is := c.base.Custom(b), c.head.Custom(h)
	bo, ho := c.base.Options(b), c.head.Options(h)
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
			c.inHead(rule.CustomOptionRemoved, h, detail(string(was[n].FullName())))
		case was[n] == nil:
			c.inHead(rule.CustomOptionChanged, h, detail(string(is[n].FullName())))
		case was[n].Kind() != is[n].Kind() || was[n].IsList() != is[n].IsList():
			// The values may have the same text.
			c.inHead(rule.CustomOptionChanged, h, detail(
				string(is[n].FullName())+" "+schema.TypeName(was[n]), schema.TypeName(is[n])))
		case schema.OptionText(bo.Get(was[n]), was[n]) != schema.OptionText(ho.Get(is[n]), is[n]):
			c.inHead(rule.CustomOptionChanged, h, detail(string(is[n].FullName())))
		}
	}
}

// fieldOptions: options of an event's fields belong to the event.
func (c *comparer) fieldOptions(b, h protoreflect.FieldDescriptor) {
	if _, ok := c.base.Events[b.ContainingMessage().FullName()]; ok {
		c.customOptions(b, h, 0)
	}
}

// hasDefault says whether a custom option documents what readers assume while the
// field is not set.
func (c *comparer) hasDefault(f protoreflect.FieldDescriptor) bool {
	for _, x := range c.head.Custom(f) {
		if strings.Contains(string(x.Name()), "default") {
			return true
		}
	}
	return false
}

// versions judges the versions of events: one more, with a change that raises it, or
// the same. Consumers see by the number whether they know all that an event may hold.
func (c *comparer) versions() {
	for _, b := range c.base.Roots {
		h := c.head.Messages[c.mapped(b.FullName())]
		if h == nil {
			continue
		}
		c.api = c.judgedAsAPI(b)
		was, is := c.base.Events[b.FullName()], c.head.Events[h.FullName()]
		switch {
		case was.Option == nil || is.Option == nil || was.Version == 0 && is.Version == 0:
		case was.Version == is.Version:
			if c.needVersion[h.FullName()] {
				c.inHead(rule.EventVersionNotRaised, h, atOption(h, is))
			}
		case is.Version != was.Version+1 || !c.hasEvolved(h):
			c.inHead(rule.EventVersionChanged, h, atOption(h, is), detail(number(int(was.Version)), number(int(is.Version))))
		}
	}
}

// hasEvolved says whether an event, or a type in it, has an addition or a deprecation.
func (c *comparer) hasEvolved(h protoreflect.MessageDescriptor) bool {
	for name := range c.head.Reach(func(yield func(protoreflect.MessageDescriptor) bool) { yield(h) }) {
		if c.evolved[name] {
			return true
		}
	}
	return false
}
