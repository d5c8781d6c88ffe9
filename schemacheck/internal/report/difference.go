package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/parley-chat/parley/schemacheck/compat/schema"
)

// maxText bounds how an element is quoted, in characters.
const maxText = 200

// Sign says what happened to an element.
type Sign string

// Signs of changes.
const (
	Added   Sign = "+"
	Removed Sign = "-"
	Changed Sign = "~"
)

// Change is one element that differs.
type Change struct {
	Sign     Sign
	Was, Is  string   // how the element is written; "" where it is not
	Subjects []string // its full names, in base and in head
}

// Group is a type, a service or a file that differs.
type Group struct {
	Sign    Sign
	Name    string // full name; the path of a file
	File    string // import path
	Changes []Change
}

// Between returns what differs between two schemas, as people read it: additions, removals and changes of
// fields, values, calls and options, by the type that holds them, ordered by file and name. Package compat
// defines what a change means. Well-known files are only
// compared where a scope holds them.
func Between(base, head *schema.FileSet) []Group {
	l := listing{base: base, head: head, groups: map[string]*Group{}}
	was, is := map[string]protoreflect.Descriptor{}, map[string]protoreflect.Descriptor{}
	collect(base, was)
	collect(head, is)
	for _, name := range slices.Sorted(maps.Keys(was)) {
		if is[name] == nil {
			l.group(Removed, was[name])
			continue
		}
		l.compare(was[name], is[name])
	}
	for name, d := range is {
		if was[name] == nil {
			l.group(Added, d)
		}
	}
	var list []Group
	for _, g := range l.groups {
		if g.Sign != Changed || len(g.Changes) > 0 {
			list = append(list, *g)
		}
	}
	slices.SortFunc(list, func(a, b Group) int { return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Name, b.Name)) })
	return list
}

type listing struct {
	base, head *schema.FileSet
	groups     map[string]*Group
}

// collect gathers files by path, and types and services by full name.
func collect(s *schema.FileSet, into map[string]protoreflect.Descriptor) {
	for _, f := range s.Scope {
		into[f.Path()] = f
		for e := range schema.All(f.Enums()) {
			into[string(e.FullName())] = e
		}
		for svc := range schema.All(f.Services()) {
			into[string(svc.FullName())] = svc
		}
		schema.EachMessage(f.Messages(), func(m protoreflect.MessageDescriptor) bool {
			if m.IsMapEntry() {
				return true
			}
			into[string(m.FullName())] = m
			for e := range schema.All(m.Enums()) {
				into[string(e.FullName())] = e
			}
			return true
		})
	}
}

func (l *listing) group(sign Sign, d protoreflect.Descriptor) *Group {
	name := string(d.FullName())
	if f, ok := d.(protoreflect.FileDescriptor); ok {
		name = f.Path()
	}
	g := l.groups[name]
	if g == nil {
		g = &Group{Sign: sign, Name: name, File: d.ParentFile().Path()}
		l.groups[name] = g
	}
	return g
}

func (l *listing) compare(b, h protoreflect.Descriptor) {
	g := l.group(Changed, h)
	if was, is := l.options(l.base, b), l.options(l.head, h); was != is {
		g.add(Changed, "options "+orNone(was), "options "+orNone(is), b, h)
	}
	if was, is := b.ParentFile(), h.ParentFile(); was.Path() != is.Path() {
		g.add(Changed, "in "+was.Path(), "in "+is.Path(), b, h)
	}
	switch b := b.(type) {
	case protoreflect.FileDescriptor:
		h, ok := h.(protoreflect.FileDescriptor)
		if ok && b.Package() != h.Package() {
			g.add(Changed, "package "+string(b.Package()), "package "+string(h.Package()), b, h)
		}
		if ok && b.Syntax() != h.Syntax() {
			g.add(Changed, "syntax "+b.Syntax().String(), "syntax "+h.Syntax().String(), b, h)
		}
	case protoreflect.MessageDescriptor:
		if h, ok := h.(protoreflect.MessageDescriptor); ok {
			elements(l, g, b.Fields(), h.Fields(), notation[protoreflect.FieldDescriptor]{
				key: func(f protoreflect.FieldDescriptor) string { return fmt.Sprint(f.Number()) }, text: field,
			})
			if was, is := reserved(b), reserved(h); was != is {
				g.add(Changed, "reserved "+orNone(was), "reserved "+orNone(is), b, h)
			}
		}
	case protoreflect.EnumDescriptor:
		if h, ok := h.(protoreflect.EnumDescriptor); ok {
			elements(l, g, b.Values(), h.Values(), notation[protoreflect.EnumValueDescriptor]{
				key:  func(v protoreflect.EnumValueDescriptor) string { return fmt.Sprint(v.Number()) },
				text: func(v protoreflect.EnumValueDescriptor) string { return fmt.Sprintf("%s = %d", v.Name(), v.Number()) },
			})
		}
	case protoreflect.ServiceDescriptor:
		if h, ok := h.(protoreflect.ServiceDescriptor); ok {
			elements(l, g, b.Methods(), h.Methods(), notation[protoreflect.MethodDescriptor]{
				key: func(m protoreflect.MethodDescriptor) string { return string(m.Name()) }, text: method,
			})
		}
	}
}

func (g *Group) add(sign Sign, was, is string, at ...protoreflect.Descriptor) {
	c := Change{Sign: sign, Was: schema.Clip(was, maxText), Is: schema.Clip(is, maxText)}
	for _, d := range at {
		name := string(d.FullName())
		if f, ok := d.(protoreflect.FileDescriptor); ok {
			name = f.Path()
		}
		if !slices.Contains(c.Subjects, name) {
			c.Subjects = append(c.Subjects, name)
		}
	}
	g.Changes = append(g.Changes, c)
}

// A notation says which elements of two lists stand for each other, those of equal keys,
// and how one is written.
type notation[D protoreflect.Descriptor] struct{ key, text func(D) string }

// elements compares two lists.
func elements[D protoreflect.Descriptor](l *listing, g *Group, was, is interface {
	Len() int
	Get(int) D
}, in notation[D]) {
	text := func(s *schema.FileSet, d D) string {
		if o := l.options(s, d); o != "" {
			return in.text(d) + " [" + o + "]"
		}
		return in.text(d)
	}
	old := map[string][]D{}
	for b := range schema.All(was) {
		old[in.key(b)] = append(old[in.key(b)], b)
	}
	found := map[protoreflect.FullName]bool{}
	for h := range schema.All(is) {
		same := old[in.key(h)]
		i := max(0, slices.IndexFunc(same, func(b D) bool { return b.Name() == h.Name() })) // aliases share a number
		if len(same) == 0 {
			g.add(Added, "", text(l.head, h), h)
			continue
		}
		b := same[i]
		found[b.FullName()] = true
		old[in.key(h)] = slices.Delete(same, i, i+1)
		if from, to := text(l.base, b), text(l.head, h); from != to {
			g.add(Changed, from, to, b, h)
		}
	}
	for b := range schema.All(was) {
		if !found[b.FullName()] {
			g.add(Removed, text(l.base, b), "", b)
		}
	}
}

func field(f protoreflect.FieldDescriptor) string {
	kind := func(f protoreflect.FieldDescriptor) string {
		switch {
		case f.Message() != nil:
			return string(f.Message().FullName())
		case f.Enum() != nil:
			return string(f.Enum().FullName())
		}
		return f.Kind().String()
	}
	label := ""
	switch {
	case f.IsMap():
		return fmt.Sprintf("map<%s, %s> %s = %d", f.MapKey().Kind(), kind(f.MapValue()), f.Name(), f.Number())
	case f.IsList():
		label = "repeated "
	case f.Cardinality() == protoreflect.Required:
		label = "required "
	case f.ContainingOneof() != nil && !f.ContainingOneof().IsSynthetic():
		label = "oneof " + string(f.ContainingOneof().Name()) + " "
	case f.HasPresence() && f.Message() == nil:
		label = "optional "
	}
	s := fmt.Sprintf("%s%s %s = %d", label, kind(f), f.Name(), f.Number())
	if f.HasDefault() {
		s += fmt.Sprintf(" default %v", f.Default().Interface())
	}
	return s
}

func method(m protoreflect.MethodDescriptor) string {
	stream := map[bool]string{true: "stream "}
	return fmt.Sprintf("rpc %s(%s%s) returns (%s%s)", m.Name(), stream[m.IsStreamingClient()], m.Input().FullName(),
		stream[m.IsStreamingServer()], m.Output().FullName())
}

func reserved(m protoreflect.MessageDescriptor) string {
	var parts []string
	for _, r := range schema.Reserved(m) {
		parts = append(parts, r.String())
	}
	for i := range m.ReservedNames().Len() {
		parts = append(parts, fmt.Sprintf("%q", m.ReservedNames().Get(i)))
	}
	return strings.Join(parts, ", ")
}

// options writes what an element sets, in one line.
func (l *listing) options(s *schema.FileSet, d protoreflect.Descriptor) string {
	// The text format varies its white space on purpose.
	return strings.Join(strings.Fields(prototext.MarshalOptions{EmitUnknown: true}.Format(s.Options(d).Interface())), " ")
}

func orNone(s string) string { return cmp.Or(s, "none") }
