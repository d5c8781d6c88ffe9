package schema

import "google.golang.org/protobuf/reflect/protoreflect"

// Reach knows which types fields of a schema use, and remembers it by type.
type Reach struct {
	side  *FileSet
	known map[protoreflect.FullName]map[protoreflect.FullName]bool
}

// NewReach returns what the fields of a side use.
func NewReach(s *FileSet) *Reach {
	return &Reach{side: s, known: map[protoreflect.FullName]map[protoreflect.FullName]bool{}}
}

// From returns the messages and enums that a field uses, with all that those use.
func (r *Reach) From(f protoreflect.FieldDescriptor) map[protoreflect.FullName]bool {
	switch {
	case f.Enum() != nil:
		return map[protoreflect.FullName]bool{f.Enum().FullName(): true}
	case f.Message() == nil:
		return nil
	}
	name := f.Message().FullName()
	if r.known[name] == nil {
		r.known[name] = r.side.Reach(func(yield func(protoreflect.MessageDescriptor) bool) { yield(f.Message()) })
	}
	return r.known[name]
}
