package command

import (
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/parley-chat/parley/schemacheck/compat"
	"github.com/parley-chat/parley/schemacheck/compat/rule"
	"github.com/parley-chat/parley/schemacheck/compat/schema"
	"github.com/parley-chat/parley/schemacheck/internal/schemafile"
	"github.com/parley-chat/parley/schemacheck/internal/tense"
)

// lintFiles returns what is wrong with the events of head that base does not have: names
// are not changed later. Without base all events are checked. Messages that are
// only taken for events, because nothing is declared or named, are left out, and so are
// those of named files that others import.
func lintFiles(base, head *schema.FileSet, says *schemafile.File) []compat.Finding {
	var list []compat.Finding
	for _, m := range head.Roots {
		event, declared := head.Events[m.FullName()]
		file := m.ParentFile().Path()
		if !declared && !(head.Named[file] && head.Registered[file]) || base != nil && base.Messages[m.FullName()] != nil {
			continue
		}
		name := string(m.Name())
		if declared {
			if kind := event.Text("event_type", "type", "name"); kind != "" {
				name = kind
			}
		}
		add := func(id rule.ID, detail string) {
			f := rule.FindingAt(id, m, false)
			f.Detail = detail
			list = append(list, f)
		}
		if !tense.Past(name, says.Lint.Past...) {
			add(rule.EventNameNotPastTense, name)
		}
		if word := tense.Last(name); (word == "updated" || word == "changed") && sparse(m, event) {
			add(rule.EventChangeNotNamed, name)
		}
		if !declared {
			continue
		}
		for _, field := range says.Lint.Required {
			if !set(event, field) {
				add(rule.EventOptionFieldMissing, field)
			}
		}
		for _, field := range says.Lint.Carries {
			if !carries(m, field) {
				add(rule.EventFieldMissing, field)
			}
		}
		if topic := event.Text("topic"); !says.Allows(topic) {
			add(rule.EventTopicUnknown, topic)
		}
	}
	return list
}

// set says whether the option has a field of that name with a value.
func set(e schema.Event, name string) bool {
	f := e.Option.Message().Fields().ByName(protoreflect.Name(name))
	return f != nil && e.Value.Has(f)
}

// carries says whether a message has a field, or a message in it behind a dot.
func carries(m protoreflect.MessageDescriptor, field string) bool {
	name, rest, inside := strings.Cut(field, ".")
	f := m.Fields().ByName(protoreflect.Name(name))
	if f == nil || !inside {
		return f != nil
	}
	return f.Message() != nil && carries(f.Message(), rest)
}

// enough is how many fields say what changed, at least.
const enough = 2

// sparse says whether a message has nothing but what identifies and describes it: its
// key, ids, times, and metadata.
func sparse(m protoreflect.MessageDescriptor, e schema.Event) bool {
	key := ""
	if e.Option != nil {
		key = e.Text("key")
	}
	n := 0
	for f := range schema.All(m.Fields()) {
		name := string(f.Name())
		of := ""
		if f.Message() != nil {
			of = string(f.Message().FullName())
		}
		if name == key || name == "id" || strings.HasSuffix(name, "_id") || strings.HasSuffix(name, "_at") ||
			strings.Contains(name, "metadata") ||
			of == "google.protobuf.Timestamp" {
			continue
		}
		n++
	}
	return n < enough
}
