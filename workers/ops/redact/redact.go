// Package redact hides what users wrote from operators who do not ask for it.
//
// It owns the one rule which fields of a message those are, and that secrets are no part of
// any record. All functions are pure; a message belongs to one goroutine.
package redact

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
)

// metadata is the part of an event that Parley wrote.
var metadata = (&eventv1.EventMetadata{}).ProtoReflect().Descriptor().FullName()

// Message replaces what users may have written in an event, or in what was made of events,
// by its size: all texts but ids, types and keys. So a field that is added later is hidden
// unless its name allows it.
func Message(m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap():
			m.Clear(f) // no event has one whose keys and values are all ids
		case f.IsList() && f.Message() != nil:
			for i := range v.List().Len() {
				Message(v.List().Get(i).Message())
			}
		case f.Message() != nil:
			if name := f.Message().FullName(); name != metadata && name.Parent() != "google.protobuf" {
				Message(v.Message())
			}
		case f.Kind() == protoreflect.BytesKind:
			m.Clear(f)
		case f.Kind() != protoreflect.StringKind || isIdentifier(f.Name()):
		case f.IsList():
			m.Clear(f)
		default:
			m.Set(f, protoreflect.ValueOfString(fmt.Sprintf("[%d bytes]", len(v.String()))))
		}
		return true
	})
}

// Secrets removes the fields whose contract says debug_redact, at any depth, so that no
// record contains credentials.
func Secrets(m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		o, ok := f.Options().(*descriptorpb.FieldOptions)
		switch {
		case ok && o.GetDebugRedact():
			m.Clear(f)
		case f.IsMap():
			if f.MapValue().Message() != nil {
				v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
					Secrets(v.Message())
					return true
				})
			}
		case f.IsList() && f.Message() != nil:
			for i := range v.List().Len() {
				Secrets(v.List().Get(i).Message())
			}
		case f.Message() != nil && !f.IsList():
			Secrets(v.Message())
		}
		return true
	})
}

// isIdentifier reports whether a field has an id, a type or a key, by its name.
func isIdentifier(field protoreflect.Name) bool {
	_, last, ok := strings.Cut(string(field), "_")
	for ok {
		var rest string
		if _, rest, ok = strings.Cut(last, "_"); ok {
			last = rest
		}
	}
	switch last {
	case "id", "ids", "by", "type", "key":
		return true
	}
	return false
}
