package schema

import "google.golang.org/protobuf/reflect/protoreflect"

// Fields finds the fields of a message by number and by name. Descriptors of compilers
// search all fields each time.
type Fields struct {
	byNumber map[protoreflect.FieldNumber]protoreflect.FieldDescriptor
	byName   map[protoreflect.Name]protoreflect.FieldDescriptor
	inJSON   map[string][]protoreflect.FieldDescriptor // by all names that readers of JSON know
}

// IndexFields returns the index of a message's fields.
func IndexFields(m protoreflect.MessageDescriptor) Fields {
	i := Fields{
		byNumber: make(map[protoreflect.FieldNumber]protoreflect.FieldDescriptor, m.Fields().Len()),
		byName:   make(map[protoreflect.Name]protoreflect.FieldDescriptor, m.Fields().Len()),
		inJSON:   make(map[string][]protoreflect.FieldDescriptor, m.Fields().Len()),
	}
	for f := range All(m.Fields()) {
		i.byNumber[f.Number()], i.byName[f.Name()] = f, f
		i.inJSON[f.JSONName()] = append(i.inJSON[f.JSONName()], f)
		if f.JSONName() != string(f.Name()) {
			i.inJSON[string(f.Name())] = append(i.inJSON[string(f.Name())], f)
		}
	}
	return i
}

// ByNumber returns the field of a number, nil if there is none.
func (i Fields) ByNumber(n protoreflect.FieldNumber) protoreflect.FieldDescriptor {
	return i.byNumber[n]
}

// ByName returns the field of a name, nil if there is none.
func (i Fields) ByName(name protoreflect.Name) protoreflect.FieldDescriptor { return i.byName[name] }
