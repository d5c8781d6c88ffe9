package compat

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

// verifiesUTF8 says whether parsers refuse text that is not UTF-8. Go's
// descriptors know, but do not say it in their interface.
func verifiesUTF8(f protoreflect.FieldDescriptor) bool {
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

// allowsJSON says whether JSON is guaranteed for an element.
func allowsJSON(d protoreflect.Descriptor) bool {
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

func (c *comparer) utf8(b, h protoreflect.FieldDescriptor) {
	if h.Kind() != protoreflect.StringKind || syntaxChanged(b, h) || verifiesUTF8(b) == verifiesUTF8(h) {
		return
	}
	if verifiesUTF8(h) {
		c.inHead("U01", h)
	} else {
		c.inHead("U02", h)
	}
}

func (c *comparer) jsonFormat(b, h protoreflect.Descriptor) {
	if !syntaxChanged(b, h) && allowsJSON(b) != allowsJSON(h) {
		c.inHead("U03", h)
	}
}

func (c *comparer) enumJSONFormat(b, h protoreflect.EnumDescriptor) { c.jsonFormat(b, h) }
