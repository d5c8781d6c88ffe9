package schema

import "google.golang.org/protobuf/reflect/protoreflect"

// OneofMoves counts, by the name of a oneof of base, the places that its cases have in
// head, and by the name of a oneof of head, those that its cases had in base. A place is
// a oneof, or outside of all.
func OneofMoves(b protoreflect.MessageDescriptor, h Fields) (went, came map[protoreflect.Name]int) {
	went, came = map[protoreflect.Name]int{}, map[protoreflect.Name]int{}
	seen := map[[3]protoreflect.Name]bool{}
	count := func(in map[protoreflect.Name]int, from, to protoreflect.OneofDescriptor, side protoreflect.Name) {
		if from == nil {
			return
		}
		oneofName := protoreflect.Name("")
		if to != nil {
			oneofName = to.Name()
		}
		if key := [3]protoreflect.Name{side, from.Name(), oneofName}; !seen[key] {
			seen[key] = true
			in[from.Name()]++
		}
	}
	for bf := range All(b.Fields()) {
		if hf := h.ByNumber(bf.Number()); hf != nil {
			count(went, Oneof(bf), Oneof(hf), "base")
			count(came, Oneof(hf), Oneof(bf), "head")
		}
	}
	return went, came
}

// OneofBefore returns the oneof of base that one of head was: that of its name, or that
// of its cases; nil for a new one.
func OneofBefore(
	o protoreflect.OneofDescriptor, b protoreflect.MessageDescriptor, fields Fields,
) protoreflect.OneofDescriptor {
	if was := b.Oneofs().ByName(o.Name()); was != nil && !was.IsSynthetic() {
		return was
	}
	for f := range All(o.Fields()) {
		if was := fields.ByNumber(f.Number()); was != nil && Oneof(was) != nil && SameOneof(was, f) {
			return Oneof(was)
		}
	}
	return nil
}

// OneofStays says whether a oneof of base is still in head, under any name.
func OneofStays(o protoreflect.OneofDescriptor, h protoreflect.MessageDescriptor, fields Fields) bool {
	if is := h.Oneofs().ByName(o.Name()); is != nil && !is.IsSynthetic() {
		return true
	}
	for f := range All(o.Fields()) {
		if is := fields.ByNumber(f.Number()); is != nil && Oneof(is) != nil && SameOneof(f, is) {
			return true
		}
	}
	return false
}
