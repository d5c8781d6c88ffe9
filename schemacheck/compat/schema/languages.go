package schema

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
)

// Extensions of features that other languages have, by their numbers in FeatureSet,
// and their fields. Their descriptors are not linked into Go programs.
const (
	cppFeatures     = 1000
	cppStringType   = 2
	javaFeatures    = 1001
	javaUTF8        = 2
	cppView         = 1
	cppCord         = 2
	cppString       = 3
	javaFeatureNone = 0
	javaDefault     = 1
)

// CppString returns the type that generated C++ code has for a text or bytes field:
// STRING, CORD, VIEW or STRING_PIECE; "" for fields of other types.
func CppString(f protoreflect.FieldDescriptor) string {
	if f.Kind() != protoreflect.StringKind && f.Kind() != protoreflect.BytesKind {
		return ""
	}
	o, _ := f.Options().(*descriptorpb.FieldOptions)
	if o != nil && o.Ctype != nil {
		return o.GetCtype().String()
	}
	switch foreign(f, cppFeatures, cppStringType) {
	case cppView:
		return "VIEW"
	case cppCord:
		return "CORD"
	case cppString, 0:
		return "STRING"
	}
	return "other"
}

// JavaUTF8 returns how generated Java code checks the text of a field: as all
// languages, or always; "" for fields of other types.
func JavaUTF8(f protoreflect.FieldDescriptor) string {
	if f.Kind() != protoreflect.StringKind {
		return ""
	}
	if f.ParentFile().Syntax() == protoreflect.Proto2 {
		o, _ := f.ParentFile().Options().(*descriptorpb.FileOptions)
		if o.GetJavaStringCheckUtf8() {
			return "VERIFY"
		}
	}
	switch foreign(f, javaFeatures, javaUTF8) {
	case javaFeatureNone, javaDefault:
		return "DEFAULT"
	}
	return "VERIFY"
}

// foreign returns a number in another language's features of an element, its own or
// inherited; 0 if none is given.
func foreign(d protoreflect.Descriptor, extension, field protowire.Number) uint64 {
	for ; d != nil; d = d.Parent() {
		own := features(d)
		if own == nil {
			continue
		}
		b, err := proto.MarshalOptions{AllowPartial: true}.Marshal(own)
		if err != nil {
			continue
		}
		if v, ok := varint(last(b, extension), field); ok {
			return v
		}
	}
	return 0
}

// last returns the content of the last length-delimited field of a number.
func last(b []byte, number protowire.Number) (content []byte) {
	for len(b) > 0 {
		n, kind, size := protowire.ConsumeTag(b)
		if size < 0 {
			return content
		}
		b = b[size:]
		if n == number && kind == protowire.BytesType {
			if v, size := protowire.ConsumeBytes(b); size >= 0 {
				content = v
			}
		}
		if size = protowire.ConsumeFieldValue(n, kind, b); size < 0 {
			return content
		}
		b = b[size:]
	}
	return content
}

func varint(b []byte, number protowire.Number) (v uint64, ok bool) {
	for len(b) > 0 {
		n, kind, size := protowire.ConsumeTag(b)
		if size < 0 {
			return v, ok
		}
		b = b[size:]
		if n == number && kind == protowire.VarintType {
			if value, size := protowire.ConsumeVarint(b); size >= 0 {
				v, ok = value, true
			}
		}
		if size = protowire.ConsumeFieldValue(n, kind, b); size < 0 {
			return v, ok
		}
		b = b[size:]
	}
	return v, ok
}
