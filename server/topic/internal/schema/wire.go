package schema

import (
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// read refuses what is not the message in Protobuf's encoding: what cannot be parsed, fields that the
// schema does not have or has as another type, values that a closed enum does not have, and text that
// is not UTF-8. It allocates nothing unless it refuses. It knows neither rules nor required fields.
func (c *checker) read(payload []byte) error {
	return c.readMessage(payload, c.message, 0)
}

func (c *checker) readMessage(b []byte, m protoreflect.MessageDescriptor, depth int) error {
	if depth >= maxDepth {
		return wrong("it is nested deeper than %d messages", maxDepth)
	}
	fields := m.Fields()
	for len(b) > 0 {
		number, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return malformed(m, n)
		}
		b = b[n:]
		f := fields.ByNumber(number)
		if f == nil && m.ExtensionRanges().Has(number) {
			if x, err := c.types.FindExtensionByNumber(m.FullName(), number); err == nil {
				f = x.TypeDescriptor()
			}
		}
		if f == nil {
			return wrong("%s has no field %d", m.FullName(), number)
		}
		n, err := c.readField(b, f, typ, depth)
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// readField reads the value of a field, and returns how many bytes it has.
func (c *checker) readField(b []byte, f protoreflect.FieldDescriptor, typ protowire.Type, depth int) (int, error) {
	wants := wireType(f.Kind())
	if typ == wants {
		return c.readValue(b, f, depth)
	}
	if typ != protowire.BytesType || !f.IsList() {
		return 0, wrong("%s is not written as a %s", f.FullName(), f.Kind())
	}
	list, n := protowire.ConsumeBytes(b) // a packed list: no other type is one of bytes
	if n < 0 {
		return 0, malformed(f, n)
	}
	for len(list) > 0 {
		size, err := c.readValue(list, f, depth)
		if err != nil {
			return 0, err
		}
		list = list[size:]
	}
	return n, nil
}

// readValue reads a value of a field's kind.
func (c *checker) readValue(b []byte, f protoreflect.FieldDescriptor, depth int) (int, error) {
	var content []byte
	var n int
	switch wireType(f.Kind()) {
	case protowire.VarintType:
		var v uint64
		v, n = protowire.ConsumeVarint(b)
		e := f.Enum()
		if n > 0 && e != nil && e.IsClosed() && e.Values().ByNumber(protoreflect.EnumNumber(v)) == nil {
			return 0, wrong("%s has no value %d", e.FullName(), int32(v))
		}
	case protowire.Fixed32Type:
		_, n = protowire.ConsumeFixed32(b)
	case protowire.Fixed64Type:
		_, n = protowire.ConsumeFixed64(b)
	case protowire.StartGroupType:
		content, n = protowire.ConsumeGroup(f.Number(), b)
	default:
		content, n = protowire.ConsumeBytes(b)
	}
	switch {
	case n < 0:
		return 0, malformed(f, n)
	case f.Message() != nil:
		return n, c.readMessage(content, f.Message(), depth+1)
	case f.Kind() == protoreflect.StringKind && !utf8.Valid(content):
		return 0, wrong("%s is not valid UTF-8", f.FullName())
	}
	return n, nil
}

// wireType is how a value of a kind begins that is not part of a packed list.
func wireType(k protoreflect.Kind) protowire.Type {
	switch k {
	case protoreflect.Fixed32Kind, protoreflect.Sfixed32Kind, protoreflect.FloatKind:
		return protowire.Fixed32Type
	case protoreflect.Fixed64Kind, protoreflect.Sfixed64Kind, protoreflect.DoubleKind:
		return protowire.Fixed64Type
	case protoreflect.StringKind, protoreflect.BytesKind, protoreflect.MessageKind:
		return protowire.BytesType
	case protoreflect.GroupKind:
		return protowire.StartGroupType
	}
	return protowire.VarintType
}

func malformed(in protoreflect.Descriptor, code int) error {
	return wrong("%s cannot be read: %s", in.FullName(), spaced(protowire.ParseError(code).Error()))
}
