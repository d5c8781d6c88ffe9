package sample

import (
	"math"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
)

// wellKnown returns values of messages that have a JSON form of their own. False
// leaves the message to its fields.
func wellKnown(m protoreflect.MessageDescriptor, rules []*validate.FieldRules) ([]protoreflect.Message, bool) {
	switch m.FullName() {
	case "google.protobuf.Timestamp":
		// From year 1 to the end of year 9999, as JSON allows.
		return instants(m, typeRules(rules, "timestamp"), Now.Unix(), -62135596800, 253402300799), true
	case "google.protobuf.Duration":
		return instants(m, typeRules(rules, "duration"), 90, -315576000000, 315576000000), true
	case "google.protobuf.Any":
		return []protoreflect.Message{dynamicpb.NewMessage(m)}, true
	case "google.protobuf.Struct", "google.protobuf.ListValue":
		return []protoreflect.Message{dynamicpb.NewMessage(m)}, true
	case "google.protobuf.Value":
		v := dynamicpb.NewMessage(m)
		v.Set(m.Fields().ByName("string_value"), protoreflect.ValueOfString("a"))
		return []protoreflect.Message{v}, true
	case "google.protobuf.FieldMask":
		mask := dynamicpb.NewMessage(m)
		mask.Mutable(m.Fields().ByName("paths")).List().Append(protoreflect.ValueOfString("a.b"))
		return []protoreflect.Message{mask, dynamicpb.NewMessage(m)}, true
	}
	return nil, false
}

// instants returns points or lengths of time: a typical one, those that rules
// mention with their neighbours, and the ends.
func instants(
	m protoreflect.MessageDescriptor, rules []protoreflect.Message, typical, first, last int64,
) []protoreflect.Message {
	seconds, nanos := m.Fields().ByName("seconds"), m.Fields().ByName("nanos")
	var list []protoreflect.Message
	add := func(s, n int64) {
		switch {
		case n < 0 && (s > 0 || first == -62135596800):
			s, n = s-1, n+1e9
		case n > 999999999:
			s, n = s+1, n-1e9
		case n > 0 && s < 0 && first != -62135596800: // a duration's parts have one sign
			s, n = s+1, n-1e9
		}
		if s < first || s > last {
			return
		}
		v := dynamicpb.NewMessage(m)
		if s != 0 {
			v.Set(seconds, protoreflect.ValueOfInt64(s))
		}
		if n != 0 {
			v.Set(nanos, protoreflect.ValueOfInt32(int32(n)))
		}
		list = append(list, v)
	}
	add(typical, 0)
	for _, v := range mentioned(rules) {
		at := v.Message()
		s, n := at.Get(at.Descriptor().Fields().ByName("seconds")).Int(),
			at.Get(at.Descriptor().Fields().ByName("nanos")).Int()
		for _, d := range []int64{0, 1, -1} {
			add(s, n+d)
			add(s+d, n)
		}
	}
	for _, s := range []int64{0, 1, -1, first, last, typical - 3600, typical + 3600, typical - math.MaxInt32,
		typical + math.MaxInt32} {
		add(s, 0)
	}
	add(typical, 123456789)
	return list
}
