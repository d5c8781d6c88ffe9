package compat

import (
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/parley-chat/parley/schemacheck/compat/rule"
	"github.com/parley-chat/parley/schemacheck/compat/schema"
)

// utf8 compares the checks of text in a field, or in a map's keys or values.
func (c *comparer) utf8(b, h protoreflect.FieldDescriptor) {
	text := h.Kind() == protoreflect.StringKind ||
		h.IsMap() && (h.MapKey().Kind() == protoreflect.StringKind || h.MapValue().Kind() == protoreflect.StringKind)
	if !text || syntaxChanged(b, h) || schema.VerifiesUTF8(b) == schema.VerifiesUTF8(h) {
		return
	}
	if schema.VerifiesUTF8(h) {
		c.inHead(rule.UTF8ValidationEnabled, h)
	} else {
		c.inHead(rule.UTF8ValidationDisabled, h)
	}
}

func (c *comparer) jsonFormat(b, h protoreflect.Descriptor) {
	if !syntaxChanged(b, h) && schema.AllowsJSON(b) != schema.AllowsJSON(h) {
		c.inHead(rule.JSONFormatChanged, h)
	}
}
