package compat

import (
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/parley-chat/parley/schemacheck/compat/rule"
	"github.com/parley-chat/parley/schemacheck/compat/schema"
)

// checkInvariants checks what the verdicts on changes rely on in one schema alone: enums have a zero for what is not
// set, a registered file has one event and nothing else, and events say where they go. It reports the id of a rule,
// the element, and what is wrong with it.
func checkInvariants(s *schema.FileSet, report func(id rule.ID, at protoreflect.Descriptor, what string)) {
	types := map[string]protoreflect.MessageDescriptor{} // events by type name
	for _, f := range s.Scope {
		enums := func(in schema.Container) {
			for e := range schema.All(in.Enums()) {
				if (s.IsEvent(f) || s.Used[e.FullName()]) && !hasZero(e) {
					report(rule.EnumZeroNotUnspecified, e, "")
				}
			}
		}
		enums(f)
		events := 0
		schema.EachMessage(f.Messages(), func(m protoreflect.MessageDescriptor) bool {
			enums(m)
			e, isEvent := s.Events[m.FullName()]
			switch {
			case isEvent:
				if events++; events > 1 {
					report(rule.SeveralEventsInFile, m, "")
				}
				for _, what := range incomplete(e, m) {
					report(rule.EventOptionIncomplete, m, what)
				}
				name := e.Text("event_type", "type")
				if first := types[name]; first != nil && name != "" {
					report(rule.EventTypeDuplicate, m, name+", as "+string(first.FullName()))
				}
				types[name] = m
			case declares(s, f) && !m.IsMapEntry():
				report(rule.OtherMessageInEventFile, m, "")
			}
			return true
		})
	}
}

func declares(s *schema.FileSet, f protoreflect.FileDescriptor) bool {
	return !schema.EachMessage(f.Messages(), func(m protoreflect.MessageDescriptor) bool {
		_, event := s.Events[m.FullName()]
		return !event
	})
}

func hasZero(e protoreflect.EnumDescriptor) bool {
	for v := range schema.All(e.Values()) {
		if v.Number() == 0 && strings.HasSuffix(string(v.Name()), "UNSPECIFIED") {
			return true
		}
	}
	return false
}

// incomplete returns what an event's option lacks. An option type that has no
// such field asks for nothing.
func incomplete(e schema.Event, m protoreflect.MessageDescriptor) []string {
	var list []string
	fields := e.Option.Message().Fields()
	if e.Text("topic") == "" {
		list = append(list, "no topic")
	}
	if (fields.ByName("event_type") != nil || fields.ByName("type") != nil) && e.Text("event_type", "type") == "" {
		list = append(list, "no type")
	}
	if fields.ByName("version") != nil && e.Version < 1 {
		list = append(list, "version below 1")
	}
	switch key := e.Text("key"); {
	case key == "" && fields.ByName("key") != nil:
		list = append(list, "no key")
	case key != "":
		if f := m.Fields().ByName(protoreflect.Name(key)); f == nil || f.Message() != nil || f.IsList() {
			list = append(list, "key is no field of one value")
		}
	}
	return list
}
