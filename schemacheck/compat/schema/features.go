package schema

import (
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
)

// features returns an element's own features; nil if it sets none.
func features(d protoreflect.Descriptor) *descriptorpb.FeatureSet {
	o, ok := d.Options().(interface {
		GetFeatures() *descriptorpb.FeatureSet
	})
	if !ok {
		return nil
	}
	return o.GetFeatures()
}

// VerifiesUTF8 says whether parsers refuse text that is not UTF-8. Go's
// descriptors know, but do not say it in their interface.
func VerifiesUTF8(f protoreflect.FieldDescriptor) bool {
	switch f.ParentFile().Syntax() {
	case protoreflect.Proto2:
		return false
	case protoreflect.Proto3:
		return true
	}
	for d := protoreflect.Descriptor(f); d != nil; d = d.Parent() {
		if v := features(d).GetUtf8Validation(); v != descriptorpb.FeatureSet_UTF8_VALIDATION_UNKNOWN {
			return v == descriptorpb.FeatureSet_VERIFY
		}
	}
	return true // the default of all editions
}

// AllowsJSON says whether JSON is guaranteed for an element.
func AllowsJSON(d protoreflect.Descriptor) bool {
	switch d.ParentFile().Syntax() {
	case protoreflect.Proto2:
		return false
	case protoreflect.Proto3:
		return true
	}
	for ; d != nil; d = d.Parent() {
		if v := features(d).GetJsonFormat(); v != descriptorpb.FeatureSet_JSON_FORMAT_UNKNOWN {
			return v == descriptorpb.FeatureSet_ALLOW
		}
	}
	return true
}
