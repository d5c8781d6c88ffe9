package schema

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// Event is what a custom option says about a message: an option whose value is a
// message with a field topic.
type Event struct {
	Option  protoreflect.FieldDescriptor // nil stands for no event
	Value   protoreflect.Message
	Version int64
}

// Custom returns the custom options of an element by number, without those of
// protovalidate, which have rules of their own.
func (s *FileSet) Custom(d protoreflect.Descriptor) map[protoreflect.FieldNumber]protoreflect.FieldDescriptor {
	found := map[protoreflect.FieldNumber]protoreflect.FieldDescriptor{}
	for f := range s.Options(d).Range {
		if f.IsExtension() && f.ParentFile().Package() != "buf.validate" {
			found[f.Number()] = f
		}
	}
	return found
}

func (s *FileSet) event(m protoreflect.MessageDescriptor) (Event, bool) {
	options := s.Options(m)
	custom := s.Custom(m)
	for _, n := range slices.Sorted(maps.Keys(custom)) {
		x := custom[n]
		if x.Message() == nil || x.IsList() || x.IsMap() || stringField(x.Message(), "topic") == nil {
			continue
		}
		e := Event{Option: x, Value: options.Get(x).Message()}
		if v := x.Message().Fields().ByName("version"); v != nil && !v.IsList() {
			e.Version = asInt(e.Value.Get(v))
		}
		return e, true
	}
	return Event{}, false
}

func asInt(v protoreflect.Value) int64 {
	switch n := v.Interface().(type) {
	case int32:
		return int64(n)
	case uint32:
		return int64(n)
	case uint64:
		return int64(n)
	case int64:
		return n
	}
	return 0
}

func stringField(m protoreflect.MessageDescriptor, name protoreflect.Name) protoreflect.FieldDescriptor {
	f := m.Fields().ByName(name)
	if f == nil || f.Kind() != protoreflect.StringKind || f.IsList() {
		return nil
	}
	return f
}

// Text returns a string field of the event option, "" if it has none.
func (e Event) Text(names ...protoreflect.Name) string {
	for _, name := range names {
		if f := stringField(e.Option.Message(), name); f != nil {
			return e.Value.Get(f).String()
		}
	}
	return ""
}

// OptionText writes a value so that equal values give equal text, regardless of the
// descriptors that they were read with.
func OptionText(v protoreflect.Value, f protoreflect.FieldDescriptor) string {
	switch {
	case f.IsList():
		var parts []string
		for i := range v.List().Len() {
			parts = append(parts, optionScalar(v.List().Get(i), f))
		}
		return strings.Join(parts, ",")
	case f.IsMap():
		var parts []string
		for k, v := range v.Map().Range {
			parts = append(parts, fmt.Sprintf("%q:%s", k.String(), optionScalar(v, f.MapValue())))
		}
		slices.Sort(parts)
		return strings.Join(parts, ",")
	}
	return optionScalar(v, f)
}

func optionScalar(v protoreflect.Value, f protoreflect.FieldDescriptor) string {
	if f.Message() == nil {
		return fmt.Sprintf("%q", fmt.Sprint(v.Interface()))
	}
	var parts []string
	for sub, v := range v.Message().Range {
		parts = append(parts, fmt.Sprintf("%d{%s}", sub.Number(), OptionText(v, sub)))
	}
	slices.Sort(parts)
	return strings.Join(parts, ";") + fmt.Sprintf("%x", v.Message().GetUnknown())
}

// Clip shortens a text to a number of characters and makes it valid UTF-8.
func Clip(s string, limit int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if utf8.RuneCountInString(s) <= limit {
		return s
	}
	return string([]rune(s)[:limit-1]) + "…"
}
