package report

import (
	"fmt"
	"slices"
	"strings"
)

// maxListed is how many names a line of text has; the format json has all.
const maxListed = 12

// api says in the words of an API what rules say in those of events. Longer phrases
// come first.
var api = strings.NewReplacer(
	" and a registry refuses the file", " and their code no longer builds",
	", and a registry at FULL refuses the file", "",
	", and a registry refuses the file", "",
	", and a registry refuses the change", "",
	"A registry refuses the file: a message was removed.", "Clients and servers that use it no longer build.",
	"A registry at FULL refuses the file: seen backwards a message was removed.", "Readers that lack it skip it.",
	"generated code and registries know", "generated code knows",
	"Any, generated code and registries know", "Any and generated code know",
	"Stored schemas and other files", "Clients and other files",
	"from a registered file", "from its file",
	"to a registered file", "to its file",
	"generated code moves, and in a registry the name of the reference changes", "generated code moves",
	"Keep the path, or register the new one before the events that import it.", "Keep the path.",
	"The reference's name in the registry changes.", "Generated code moves with it.",
	"Keep the path, or register the new one before the event.", "Keep the path.",
	"Keep the type until no stored event uses it, and reserve the field alone.",
	"Keep the type and reserve the field alone.",
	"and with it the event's identity", "and with them the paths of its calls",
	"in an event type of its own", "as an enum of its own",
	"wider values need a new field or event type", "wider values need a new field",
	"a fact without it is a new event type", "a request without it is a new rpc",
	"Check it where the event is made", "Check it in the handler",
	"check stricter limits where the event is made", "check stricter limits in the handler",
	"new consumers on old events", "new readers on old messages",
	"old consumers on new events", "old readers on new messages",
	"Readers of stored events need it", "Clients and servers built from the other side need it",
	"Readers of stored events need its messages", "Clients and servers built from the other side need its messages",
	"in stored events", "in messages of the other side",
	"Stored events", "Messages of the other side",
	"stored events", "messages of the other side",
	"events", "messages", "Events", "Messages",
	"event", "message", "Event", "Message",
	"consumers", "readers", "Consumers", "Readers",
)

// worded says a sentence about an API without speaking of events.
func worded(s string, ofAPI bool) string {
	if !ofAPI {
		return s
	}
	return api.Replace(s)
}

// follows says what follows from a finding, a line each.
func (f Finding) follows() []string {
	var lines []string
	for _, c := range f.Consequences[:min(len(f.Consequences), maxListed)] {
		s := "also " + c.ID.Label() + " " + c.Subject + ": " + c.Title
		if c.Detail != "" {
			s += " (" + c.Detail + ")"
		}
		lines = append(lines, s)
	}
	if more := len(f.Consequences) - len(lines); more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return lines
}

// String is the waived finding in a line.
func (w Waived) String() string {
	return fmt.Sprintf("%s %s until %s by %s: %s", w.Finding.ID.Label(), w.Finding.What(), w.Expires, w.Owner, w.Reason)
}

func (j *Judged) fill() {
	if j.Events == nil {
		j.Events = []Event{}
	}
	for _, list := range []*[]string{&j.Types, &j.API, &j.Other} {
		if *list == nil {
			*list = []string{}
		}
	}
}

// lines says in text what was judged as what.
func (j Judged) lines() []string {
	var lines []string
	if len(j.Events) > 0 {
		var names []string
		for _, e := range j.Events {
			s := e.Name
			if e.Declared {
				s += fmt.Sprintf(" version %d on %s", e.Version, e.Topic)
			}
			names = append(names, s)
		}
		lines = append(lines, fmt.Sprintf("judged as events: %s; with %s that they use", listed(names),
			count(len(j.Types), "type")))
	}
	if len(j.API) > 0 {
		lines = append(lines, "judged as API: "+listed(j.API))
	}
	if len(j.Other) > 0 {
		lines = append(lines, "not judged, as the scope leaves it out: "+listed(j.Other))
	}
	return lines
}

func listed(names []string) string {
	if len(names) <= maxListed {
		return strings.Join(names, ", ")
	}
	return strings.Join(slices.Clone(names[:maxListed]), ", ") + fmt.Sprintf(" and %d more", len(names)-maxListed)
}
