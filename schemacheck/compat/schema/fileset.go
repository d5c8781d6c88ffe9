package schema

import (
	"maps"
	"path"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/parley-chat/parley/schemacheck/internal/tense"
)

// FileSet is the index of one schema. It is read-only once built.
type FileSet struct {
	Scope      []protoreflect.FileDescriptor          // ordered by path
	Files      map[string]protoreflect.FileDescriptor // with all that they import
	Messages   map[protoreflect.FullName]protoreflect.MessageDescriptor
	Enums      map[protoreflect.FullName]protoreflect.EnumDescriptor
	Extensions map[protoreflect.FullName]map[protoreflect.FieldNumber]protoreflect.FieldDescriptor // by extended message
	Events     map[protoreflect.FullName]Event
	Registered map[string]bool // paths of the files that a registry holds
	Named      map[string]bool // paths of the files that the caller calls events
	Declared   bool            // some file declares an event
	// Used holds the messages and enums that registered files use, theirs included.
	Used map[protoreflect.FullName]bool
	// Roots are the messages that stand for events: the declared ones, and of named
	// files, or without any declared one of registered files, the top-level messages
	// that no message refers to.
	Roots []protoreflect.MessageDescriptor
}

// HasRules says whether a file, or one that it imports, is that of protovalidate's options, wherever it lies.
// Without it no message has rules.
func (s *FileSet) HasRules() bool {
	for _, f := range s.Files {
		if f.Package() == "buf.validate" {
			return true
		}
	}
	return false
}

// New indexes the files in scope and all that they import. Files that match one of the
// patterns, see Matches, hold events, regardless of their declarations.
func New(scope []protoreflect.FileDescriptor, events ...string) *FileSet {
	s := &FileSet{
		Scope:      slices.Clone(scope),
		Files:      map[string]protoreflect.FileDescriptor{},
		Messages:   map[protoreflect.FullName]protoreflect.MessageDescriptor{},
		Enums:      map[protoreflect.FullName]protoreflect.EnumDescriptor{},
		Extensions: map[protoreflect.FullName]map[protoreflect.FieldNumber]protoreflect.FieldDescriptor{},
		Events:     map[protoreflect.FullName]Event{},
		Registered: map[string]bool{},
		Named:      map[string]bool{},
	}
	slices.SortFunc(s.Scope, func(a, b protoreflect.FileDescriptor) int { return strings.Compare(a.Path(), b.Path()) })
	for _, f := range s.Scope {
		s.addFile(f)
	}
	for _, f := range s.Scope {
		s.Named[f.Path()] = Matches(events, f)
	}
	s.register()
	s.Used = s.Reach(func(yield func(protoreflect.MessageDescriptor) bool) {
		for _, f := range s.Scope {
			if s.IsEvent(f) && !EachMessage(f.Messages(), yield) {
				return
			}
		}
	})
	s.Roots = s.roots()
	return s
}

func (s *FileSet) addFile(f protoreflect.FileDescriptor) {
	if s.Files[f.Path()] != nil || f.IsPlaceholder() {
		return
	}
	s.Files[f.Path()] = f
	for i := range f.Imports().Len() {
		s.addFile(f.Imports().Get(i).FileDescriptor)
	}
	s.add(f)
}

// Container declares types; files and messages do.
type Container interface {
	protoreflect.Descriptor
	Messages() protoreflect.MessageDescriptors
	Enums() protoreflect.EnumDescriptors
	Extensions() protoreflect.ExtensionDescriptors
}

func (s *FileSet) add(in Container) {
	for e := range All(in.Enums()) {
		s.Enums[e.FullName()] = e
	}
	for x := range All(in.Extensions()) {
		of := x.ContainingMessage().FullName()
		if s.Extensions[of] == nil {
			s.Extensions[of] = map[protoreflect.FieldNumber]protoreflect.FieldDescriptor{}
		}
		s.Extensions[of][x.Number()] = x
	}
	for m := range All(in.Messages()) {
		s.Messages[m.FullName()] = m
		s.add(m)
	}
}

// register finds the events and the registered files.
func (s *FileSet) register() {
	imported, called := map[string]bool{}, map[string]bool{} // by files without services, and by those with
	for _, f := range s.Scope {
		by := imported
		if f.Services().Len() > 0 {
			by = called
		}
		for i := range f.Imports().Len() {
			by[f.Imports().Get(i).Path()] = true
		}
		EachMessage(f.Messages(), func(m protoreflect.MessageDescriptor) bool {
			if e, ok := s.event(m); ok {
				s.Events[m.FullName()] = e
				s.Registered[f.Path()] = true
				s.Declared = true
			}
			return true
		})
	}
	for _, f := range s.Scope {
		switch {
		case imported[f.Path()] || f.Services().Len() > 0:
		case s.Named[f.Path()], !s.Declared && (!called[f.Path()] || inPastTense(f)):
			s.Registered[f.Path()] = true
		}
	}
}

// inPastTense says whether a file that a service uses resembles one of an event: a
// message is named by what has happened.
func inPastTense(f protoreflect.FileDescriptor) bool {
	for m := range All(f.Messages()) {
		if tense.Past(string(m.Name())) {
			return true
		}
	}
	return false
}

// IsEvent says whether a file is judged as one of events.
func (s *FileSet) IsEvent(f protoreflect.FileDescriptor) bool {
	return s.Registered[f.Path()] || s.Named[f.Path()]
}

// Matches says whether one of the patterns is a file's import path or a folder above
// it, or the file's package or one above it.
func Matches(patterns []string, f protoreflect.FileDescriptor) bool {
	for _, pattern := range patterns {
		for p := f.Path(); p != "." && p != "/"; p = path.Dir(p) {
			if ok, _ := path.Match(strings.TrimSuffix(pattern, "/"), p); ok {
				return true
			}
		}
		for p := f.Package(); p != ""; p = p.Parent() {
			if ok, _ := path.Match(pattern, string(p)); ok {
				return true
			}
		}
	}
	return false
}

// Reach returns the names of the messages and enums that are used by the given
// ones, themselves included.
func (s *FileSet) Reach(from func(func(protoreflect.MessageDescriptor) bool)) map[protoreflect.FullName]bool {
	seen := map[protoreflect.FullName]bool{}
	var visit func(m protoreflect.MessageDescriptor)
	visit = func(m protoreflect.MessageDescriptor) {
		if seen[m.FullName()] {
			return
		}
		seen[m.FullName()] = true
		fields := slices.Collect(All(m.Fields()))
		fields = slices.AppendSeq(fields, maps.Values(s.Extensions[m.FullName()]))
		for _, f := range fields {
			if f.Message() != nil {
				visit(f.Message())
			}
			if f.Enum() != nil {
				seen[f.Enum().FullName()] = true
			}
		}
	}
	for m := range from {
		visit(m)
	}
	return seen
}

func (s *FileSet) roots() []protoreflect.MessageDescriptor {
	var list []protoreflect.MessageDescriptor
	for _, name := range slices.Sorted(maps.Keys(s.Events)) {
		list = append(list, s.Messages[name])
	}
	referred := map[protoreflect.FullName]bool{}
	for _, f := range s.Scope {
		EachMessage(f.Messages(), func(m protoreflect.MessageDescriptor) bool {
			for fd := range All(m.Fields()) {
				if fd.Message() != nil && fd.Message() != m {
					referred[fd.Message().FullName()] = true
				}
			}
			return true
		})
	}
	for _, f := range s.Scope {
		if !s.Named[f.Path()] && (s.Declared || !s.Registered[f.Path()]) {
			continue
		}
		for m := range All(f.Messages()) {
			if _, declared := s.Events[m.FullName()]; !declared && !referred[m.FullName()] {
				list = append(list, m)
			}
		}
	}
	return list
}

// FindExtensionByNumber makes a set the resolver of its own custom options.
func (s *FileSet) FindExtensionByNumber(
	message protoreflect.FullName, n protoreflect.FieldNumber,
) (protoreflect.ExtensionType, error) {
	if x := s.Extensions[message][n]; x != nil {
		return dynamicpb.NewExtensionType(x), nil
	}
	return nil, protoregistry.NotFound
}

// FindExtensionByName is the resolver's other half; options in binary do not need it.
func (s *FileSet) FindExtensionByName(protoreflect.FullName) (protoreflect.ExtensionType, error) {
	return nil, protoregistry.NotFound
}

// Options reads a descriptor's options with this set's extensions, however the
// loader of the schema represents them.
func (s *FileSet) Options(d protoreflect.Descriptor) protoreflect.Message {
	m := dynamicpb.NewMessage(d.Options().ProtoReflect().Descriptor())
	b, err := proto.MarshalOptions{AllowPartial: true}.Marshal(d.Options())
	if err == nil {
		// The part that was read before an error is compared; options that the loader accepted
		// have none.
		_ = proto.UnmarshalOptions{AllowPartial: true, Resolver: s}.Unmarshal(b, m)
	}
	return m
}

// All iterates over a list of descriptors.
func All[D any](l interface {
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

// EachMessage visits messages and those nested in them; false ends it.
func EachMessage(l protoreflect.MessageDescriptors, visit func(protoreflect.MessageDescriptor) bool) bool {
	for m := range All(l) {
		if !visit(m) || !EachMessage(m.Messages(), visit) {
			return false
		}
	}
	return true
}
