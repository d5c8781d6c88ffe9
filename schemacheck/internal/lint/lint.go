// Package lint looks at how events are named and declared: names say what has
// happened, changes say what is new, options are complete, topics are known.
//
// It owns these rules, whose ids begin with A. It compares nothing: what a change
// breaks is said in compat.
//
// Concurrency: functions are pure and may run together.
package lint

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/parley-chat/parley/schemacheck/compat"
	"github.com/parley-chat/parley/schemacheck/compat/schema"
	"github.com/parley-chat/parley/schemacheck/internal/schemafile"
	"github.com/parley-chat/parley/schemacheck/internal/tense"
)

var rules = []compat.Rule{
	{
		ID: "A01", Severity: compat.Warn, Title: "name of an event is not in the past tense",
		Why:     "An event is a fact: its name says what has happened, a command what shall happen.",
		Instead: "End the name with what happened, as OrderPlaced; lint.past in schemacheck.yaml takes words that are missing here.",
	},
	{
		ID: "A02", Severity: compat.Warn, Title: "event says that something changed and not what",
		Why:     "Consumers of a sparse Updated or Changed must ask elsewhere what is new, and then see a later state.",
		Instead: "Name the intent, as PriceRaised, or carry what changed.",
	},
	{
		ID: "A03", Severity: compat.Block, Title: "required field of the event option is not set",
		Why:     "lint.required in schemacheck.yaml says that every event sets it.",
		Instead: "Set the field.",
	},
	{
		ID: "A04", Severity: compat.Block, Title: "topic is not one of the known ones",
		Why:     "topics in schemacheck.yaml has all topics that events may declare; a typing error makes one that nobody reads.",
		Instead: "Correct the topic, or add it to the list.",
	},
}

// Rules returns the rules, ordered by id.
func Rules() []compat.Rule { return slices.Clone(rules) }

// RuleByID returns the rule of an id.
func RuleByID(id string) (compat.Rule, bool) {
	i := slices.IndexFunc(rules, func(r compat.Rule) bool { return r.ID == id })
	if i < 0 {
		return compat.Rule{}, false
	}
	return rules[i], true
}

// Check returns what is wrong with the events of head that base does not have: names
// are not changed later. Without base all events are looked at. Messages that are
// only taken for events, because nothing is declared or named, are left out, and so are
// those of named files that others import.
func Check(base, head *schema.Side, says *schemafile.File) []compat.Finding {
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
		add := func(id, detail string) {
			list = append(list, finding(id, m, detail))
		}
		if !tense.Past(name, says.Lint.Past...) {
			add("A01", name)
		}
		if word := tense.Last(name); (word == "updated" || word == "changed") && sparse(m, event) {
			add("A02", name)
		}
		if !declared {
			continue
		}
		for _, field := range says.Lint.Required {
			if !set(event, field) {
				add("A03", field)
			}
		}
		if topic := event.Text("topic"); !says.Allows(topic) {
			add("A04", topic)
		}
	}
	return list
}

func finding(id string, at protoreflect.Descriptor, detail string) compat.Finding {
	r, _ := RuleByID(id)
	f := compat.FindingAt(id, at, false)
	f.Severity, f.Why, f.Instead, f.Detail = r.Severity, r.Why, r.Instead, detail
	return f
}

// set says whether the option has a field of that name with a value.
func set(e schema.Event, name string) bool {
	f := e.Option.Message().Fields().ByName(protoreflect.Name(name))
	return f != nil && e.Value.Has(f)
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
		if name == key || name == "id" || strings.HasSuffix(name, "_id") || strings.HasSuffix(name, "_at") || strings.Contains(name, "metadata") ||
			of == "google.protobuf.Timestamp" {
			continue
		}
		n++
	}
	return n < enough
}
