package compat

import (
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"
)

// A side is the index of one schema.
type side struct {
	scope      []protoreflect.FileDescriptor          // ordered by path
	files      map[string]protoreflect.FileDescriptor // with all that they import
	messages   map[protoreflect.FullName]protoreflect.MessageDescriptor
	enums      map[protoreflect.FullName]protoreflect.EnumDescriptor
	extensions map[protoreflect.FullName]map[protoreflect.FieldNumber]protoreflect.FieldDescriptor
	events     map[protoreflect.FullName]event
	registered map[string]bool // paths
	declared   bool            // some file declares an event
	used       map[protoreflect.FullName]bool
}

func newSide(scope []protoreflect.FileDescriptor) *side {
	s := &side{
		scope:      slices.Clone(scope),
		files:      map[string]protoreflect.FileDescriptor{},
		messages:   map[protoreflect.FullName]protoreflect.MessageDescriptor{},
		enums:      map[protoreflect.FullName]protoreflect.EnumDescriptor{},
		extensions: map[protoreflect.FullName]map[protoreflect.FieldNumber]protoreflect.FieldDescriptor{},
		events:     map[protoreflect.FullName]event{},
		registered: map[string]bool{},
	}
	slices.SortFunc(s.scope, func(a, b protoreflect.FileDescriptor) int { return strings.Compare(a.Path(), b.Path()) })
	for _, f := range s.scope {
		s.addFile(f)
	}
	s.register()
	s.used = s.reach(func(yield func(protoreflect.MessageDescriptor) bool) {
		for _, f := range s.scope {
			if s.registered[f.Path()] && !each(f.Messages(), yield) {
				return
			}
		}
	})
	return s
}

func (s *side) addFile(f protoreflect.FileDescriptor) {
	if s.files[f.Path()] != nil || f.IsPlaceholder() {
		return
	}
	s.files[f.Path()] = f
	for i := range f.Imports().Len() {
		s.addFile(f.Imports().Get(i).FileDescriptor)
	}
	s.add(f)
}

// A container declares types; files and messages do.
type container interface {
	protoreflect.Descriptor
	Messages() protoreflect.MessageDescriptors
	Enums() protoreflect.EnumDescriptors
	Extensions() protoreflect.ExtensionDescriptors
}

func (s *side) add(in container) {
	for e := range all(in.Enums()) {
		s.enums[e.FullName()] = e
	}
	for x := range all(in.Extensions()) {
		of := x.ContainingMessage().FullName()
		if s.extensions[of] == nil {
			s.extensions[of] = map[protoreflect.FieldNumber]protoreflect.FieldDescriptor{}
		}
		s.extensions[of][x.Number()] = x
	}
	for m := range all(in.Messages()) {
		s.messages[m.FullName()] = m
		s.add(m)
	}
}

// register finds the events and the registered files.
func (s *side) register() {
	imported := map[string]bool{}
	services := false
	for _, f := range s.scope {
		for i := range f.Imports().Len() {
			imported[f.Imports().Get(i).Path()] = true
		}
		services = services || f.Services().Len() > 0
		each(f.Messages(), func(m protoreflect.MessageDescriptor) bool {
			if e, ok := s.event(m); ok {
				s.events[m.FullName()] = e
				s.registered[f.Path()] = true
				s.declared = true
			}
			return true
		})
	}
	if s.declared {
		return
	}
	for _, f := range s.scope {
		if !imported[f.Path()] && f.Services().Len() == 0 {
			s.registered[f.Path()] = true
		}
	}
}

// reach returns the names of the messages and enums that are used by the given
// ones, themselves included.
func (s *side) reach(from func(func(protoreflect.MessageDescriptor) bool)) map[protoreflect.FullName]bool {
	seen := map[protoreflect.FullName]bool{}
	var walk func(m protoreflect.MessageDescriptor)
	walk = func(m protoreflect.MessageDescriptor) {
		if seen[m.FullName()] {
			return
		}
		seen[m.FullName()] = true
		fields := slices.Collect(all(m.Fields()))
		fields = slices.AppendSeq(fields, maps.Values(s.extensions[m.FullName()]))
		for _, f := range fields {
			if f.Message() != nil {
				walk(f.Message())
			}
			if f.Enum() != nil {
				seen[f.Enum().FullName()] = true
			}
		}
	}
	for m := range from {
		walk(m)
	}
	return seen
}

// roots are the messages that stand for events: the declared ones, or without any
// the top-level messages of registered files that no message there refers to.
func (s *side) roots() []protoreflect.MessageDescriptor {
	var list []protoreflect.MessageDescriptor
	if s.declared {
		for _, name := range slices.Sorted(maps.Keys(s.events)) {
			list = append(list, s.messages[name])
		}
		return list
	}
	referred := map[protoreflect.FullName]bool{}
	for _, f := range s.scope {
		each(f.Messages(), func(m protoreflect.MessageDescriptor) bool {
			for fd := range all(m.Fields()) {
				if fd.Message() != nil && fd.Message() != m {
					referred[fd.Message().FullName()] = true
				}
			}
			return true
		})
	}
	for _, f := range s.scope {
		for m := range all(f.Messages()) {
			if s.registered[f.Path()] && !referred[m.FullName()] {
				list = append(list, m)
			}
		}
	}
	return list
}

// FindExtensionByNumber makes a side the resolver of its own custom options.
func (s *side) FindExtensionByNumber(message protoreflect.FullName, n protoreflect.FieldNumber) (protoreflect.ExtensionType, error) {
	if x := s.extensions[message][n]; x != nil {
		return dynamicpb.NewExtensionType(x), nil
	}
	return nil, protoregistry.NotFound
}

// FindExtensionByName is the resolver's other half; options in binary do not need it.
func (s *side) FindExtensionByName(protoreflect.FullName) (protoreflect.ExtensionType, error) {
	return nil, protoregistry.NotFound
}

// options reads a descriptor's options with this side's extensions, however the
// loader of the schema represents them.
func (s *side) options(d protoreflect.Descriptor) protoreflect.Message {
	m := dynamicpb.NewMessage(d.Options().ProtoReflect().Descriptor())
	b, err := proto.MarshalOptions{AllowPartial: true}.Marshal(d.Options())
	if err == nil {
		// What is read before an error is compared; options that the loader accepted have none.
		_ = proto.UnmarshalOptions{AllowPartial: true, Resolver: s}.Unmarshal(b, m)
	}
	return m
}

// all iterates over a list of descriptors.
func all[D any](l interface {
	Len() int
	Get(int) D
}) func(func(D) bool) {
	return func(yield func(D) bool) {
		for i := range l.Len() {
			if !yield(l.Get(i)) {
				return
			}
		}
	}
}

// each visits messages and those nested in them; false ends it.
func each(l protoreflect.MessageDescriptors, visit func(protoreflect.MessageDescriptor) bool) bool {
	for m := range all(l) {
		if !visit(m) || !each(m.Messages(), visit) {
			return false
		}
	}
	return true
}
