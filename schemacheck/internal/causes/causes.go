// Package causes groups the findings of a comparison: a finding that follows from another
// one is reported with it, so that a change is one finding, however many readers it breaks.
//
// It owns what follows from what. It judges nothing and drops no verdict: a finding
// is only put under one that is as severe and breaks the same readers.
//
// Concurrency: functions are pure and may run together.
package causes

import (
	"cmp"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/parley-chat/parley/schemacheck/compat"
	"github.com/parley-chat/parley/schemacheck/compat/rule"
	"github.com/parley-chat/parley/schemacheck/compat/schema"
)

// Finding is a cause with what follows from it.
type Finding struct {
	compat.Finding
	Consequences []compat.Finding
}

// removalCauses are the rules under which the loss of a field without a reservation is
// reported: what the same edit breaks more visibly.
var removalCauses = []rule.ID{rule.OneofCaseRemoved, rule.FieldRemovedRequired, rule.FieldRemovedZeroInvalid}

// sameElement has the rules under which others of the same element are reported.
var sameElement = map[rule.ID][]rule.ID{
	rule.FieldRemovedNotReserved:       removalCauses,
	rule.FieldRemovedNameNotReserved:   removalCauses,
	rule.FieldRemovedNumberNotReserved: removalCauses,
	rule.OtherMessageInEventFile:       {rule.MessageRenamed, rule.EventRenamed, rule.NestedMessageMoved},
}

// Group puts consequences under their causes and keeps the order.
func Group(findings []compat.Finding, base, head *schema.FileSet) []Finding {
	g := grouping{base: base, head: head}
	findings = merged(findings)
	for stage := range stages {
		for _, f := range findings {
			if stageOf(f) == stage {
				g.assign(f)
			}
		}
	}
	slices.SortStableFunc(g.causes, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return g.causes
}

// merged makes one finding of the options of generated code that a file has changed.
func merged(findings []compat.Finding) (list []compat.Finding) {
	first := map[string]int{}
	for _, f := range findings {
		i, ok := first[f.File]
		if f.Rule == rule.FileOptionChanged && ok && list[i].Severity == f.Severity {
			list[i].Detail += ", " + f.Detail
			continue
		}
		if f.Rule == rule.FileOptionChanged && !ok {
			first[f.File] = len(list)
		}
		list = append(list, f)
	}
	return list
}

type grouping struct {
	base, head *schema.FileSet
	causes     []Finding
}

// Consequences are placed after what they may follow from.
const (
	own = iota // follows from nothing
	nearby
	field
	sample
	stages
)

func stageOf(f compat.Finding) int {
	switch {
	case f.Rule.Has(rule.FromSample):
		return sample
	case f.Rule.Has(rule.FromUsedType):
		return field
	case sameElement[f.Rule] != nil || f.Rule.Has(rule.FollowsFile):
		return nearby
	}
	return own
}

// assign puts a finding under its causes, or makes it one.
func (g *grouping) assign(f compat.Finding) {
	into := g.causesOf(f)
	if len(into) == 0 {
		g.causes = append(g.causes, Finding{Finding: f})
	}
	for _, i := range into {
		if one, ok := reworded(g.causes[i].Finding, f); ok {
			g.causes[i].Consequences = append(g.causes[i].Consequences, one)
		}
	}
}

// causesOf returns the indices of what a finding follows from, none for what follows
// from nothing.
func (g *grouping) causesOf(f compat.Finding) (list []int) {
	stage := stageOf(f)
	if stage == own {
		return nil
	}
	types := map[string]bool{}
	for i, c := range g.causes {
		if stageOf(c.Finding) > nearby || c.Severity < f.Severity || !overlap(c.Finding, f) {
			continue
		}
		switch {
		case stage == field:
			// Once for each of the types: each of them is broken by its first finding.
			name := string(g.typeOf(c.Finding))
			if slices.Contains(strings.Split(f.Detail, ", "), name) && !types[name] {
				types[name] = true
				list = append(list, i)
			}
		case stage == sample:
			if len(list) == 0 && g.shows(f, c.Finding) {
				list = append(list, i)
			}
		case f.Subject == c.Subject && slices.Contains(sameElement[f.Rule], c.Rule) && len(list) == 0:
			list = append(list, i)
		case (c.Rule == rule.FileRemoved || c.Rule == rule.PackageChanged) && c.File == f.File && c.Base == f.Base &&
			len(list) == 0:
			list = append(list, i)
		}
	}
	return list
}

// overlap says whether two findings break a reader together, or one of them none.
func overlap(a, b compat.Finding) bool {
	return a.OldReadsNew && b.OldReadsNew || a.NewReadsOld && b.NewReadsOld || !b.OldReadsNew && !b.NewReadsOld
}

func (g *grouping) side(f compat.Finding) *schema.FileSet {
	if f.Base {
		return g.base
	}
	return g.head
}

// typeOf returns the message or enum that a finding is about, or in which it is.
func (g *grouping) typeOf(f compat.Finding) protoreflect.FullName {
	return TypeOf(g.side(f), f.Subject)
}

// TypeOf returns the message or enum that a full name is, or in which it stands; ""
// for names of neither.
func TypeOf(s *schema.FileSet, subject string) protoreflect.FullName {
	full := protoreflect.FullName(subject)
	if s.Messages[full] != nil || s.Enums[full] != nil {
		return full
	}
	for name, e := range s.Enums { // values are named beside their enum, not below it
		if name.Parent() == full.Parent() && e.Values().ByName(full.Name()) != nil {
			return name
		}
	}
	for name := full.Parent(); name != ""; name = name.Parent() {
		if s.Messages[name] != nil || s.Enums[name] != nil {
			return name
		}
	}
	return ""
}

// shows says whether a sample's difference is the one that a rule foresees.
func (g *grouping) shows(sample, cause compat.Finding) bool {
	at, of := g.typeOf(sample), g.typeOf(cause)
	if at == "" || of == "" {
		return false
	}
	if string(at) == sample.Subject { // the whole message: by anything that it holds
		return g.holds(at, of)
	}
	if at != of {
		field := g.field(sample)
		return field != nil && field.Message() != nil && g.holds(field.Message().FullName(), of) ||
			field != nil && field.Enum() != nil && field.Enum().FullName() == of
	}
	if string(of) == cause.Subject {
		return true
	}
	a, b := g.field(sample), g.field(cause)
	switch {
	case a == nil:
		return false
	case b == nil: // a oneof, or a reservation
		return a.ContainingOneof() != nil &&
			(cause.Rule.Has(rule.AboutOneof) || string(a.ContainingOneof().FullName()) == cause.Subject)
	}
	return a.Number() == b.Number() || a.ContainingOneof() != nil && b.ContainingOneof() != nil &&
		a.ContainingOneof().Name() == b.ContainingOneof().Name()
}

// holds says whether a message uses a type, itself included, in base or in head.
func (g *grouping) holds(message, of protoreflect.FullName) bool {
	for _, s := range []*schema.FileSet{g.base, g.head} {
		m := s.Messages[message]
		if m != nil && s.Reach(func(yield func(protoreflect.MessageDescriptor) bool) { yield(m) })[of] {
			return true
		}
	}
	return false
}

// field returns the field that a finding is about, nil if it is about none.
func (g *grouping) field(f compat.Finding) protoreflect.FieldDescriptor {
	name := protoreflect.FullName(f.Subject)
	m := g.side(f).Messages[name.Parent()]
	if m == nil {
		return nil
	}
	return m.Fields().ByName(name.Name())
}

// reworded returns a consequence as it is reported under its cause; false for what says
// nothing more. Samples are compared by the names of fields: after a rename they
// differ in binary too, where no reader uses names.
func reworded(cause, f compat.Finding) (compat.Finding, bool) {
	if cause.Rule != rule.FieldRenamed && cause.Rule != rule.EnumValueRenamed || !f.Rule.Has(rule.FromSample) {
		return f, true
	}
	forms := slices.DeleteFunc(strings.Split(f.Form, ","), func(form string) bool { return form == compat.Binary })
	f.Form = strings.Join(forms, ",")
	return f, f.Form != ""
}
