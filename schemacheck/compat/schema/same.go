package schema

import "google.golang.org/protobuf/reflect/protoreflect"

// SameTypes says whether each message, enum, extension and service of b is in h by its
// full name.
func SameTypes(b, h protoreflect.FileDescriptor) bool {
	if b.Package() != h.Package() || b.Messages().Len()+b.Enums().Len() == 0 {
		return false
	}
	for m := range All(b.Messages()) {
		if h.Messages().ByName(m.Name()) == nil {
			return false
		}
	}
	for e := range All(b.Enums()) {
		if h.Enums().ByName(e.Name()) == nil {
			return false
		}
	}
	for x := range All(b.Extensions()) {
		if h.Extensions().ByName(x.Name()) == nil {
			return false
		}
	}
	for s := range All(b.Services()) {
		if h.Services().ByName(s.Name()) == nil {
			return false
		}
	}
	return true
}

// SameOneof says whether a field is in the same oneof, or in none, on both sides.
func SameOneof(b, h protoreflect.FieldDescriptor) bool {
	bo, ho := Oneof(b), Oneof(h)
	if bo == nil || ho == nil {
		return bo == nil && ho == nil
	}
	return bo.Name() == ho.Name() || renamedOneof(bo, ho)
}

// renamedOneof: neither name is on the other side and the cases that both messages
// have are the same.
func renamedOneof(b, h protoreflect.OneofDescriptor) bool {
	bm, hm := b.Parent().(protoreflect.MessageDescriptor), h.Parent().(protoreflect.MessageDescriptor)
	if bm.Oneofs().ByName(h.Name()) != nil || hm.Oneofs().ByName(b.Name()) != nil {
		return false
	}
	for f := range All(b.Fields()) {
		if hm.Fields().ByNumber(f.Number()) != nil && h.Fields().ByNumber(f.Number()) == nil {
			return false
		}
	}
	for f := range All(h.Fields()) {
		if bm.Fields().ByNumber(f.Number()) != nil && b.Fields().ByNumber(f.Number()) == nil {
			return false
		}
	}
	return true
}
