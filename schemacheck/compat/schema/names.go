package schema

import (
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// JSONName is the JSON name that a field of a name has unless it is given another one:
// the lowerCamelCase that protoc makes.
func JSONName(name protoreflect.Name) string {
	var b strings.Builder
	up := false
	for _, c := range []byte(name) {
		switch {
		case c == '_':
			up = true
			continue
		case up && 'a' <= c && c <= 'z':
			c -= 'a' - 'A'
		}
		up = false
		b.WriteByte(c)
	}
	return b.String()
}

// ReservedFor returns a reserved name of b that readers of JSON take for the field h: its
// own name, or one with the same JSON name; "" if there is none.
func ReservedFor(h protoreflect.FieldDescriptor, b protoreflect.MessageDescriptor) (found protoreflect.Name) {
	for i := range b.ReservedNames().Len() {
		name := b.ReservedNames().Get(i)
		switch {
		case name == h.Name():
			return name
		case found == "" && (h.JSONName() == string(name) || JSONName(name) == h.JSONName() ||
			JSONName(name) == string(h.Name())):
			found = name
		}
	}
	return found
}

// Clash finds a field of the message under another number whose values readers of JSON
// take for those of h, or the other way round: they know a field by its JSON name and by
// its name, and writers write the first. With is nil if there is none.
func (i Fields) Clash(h protoreflect.FieldDescriptor) (with protoreflect.FieldDescriptor, newBreaks, oldBreaks bool) {
	for _, name := range []string{h.JSONName(), string(h.Name())} {
		for _, f := range i.inJSON[name] {
			if f.Number() == h.Number() || f.Name() == h.Name() {
				continue
			}
			newBreaks = newBreaks || f.JSONName() == h.JSONName() || f.JSONName() == string(h.Name())
			oldBreaks = oldBreaks || h.JSONName() == f.JSONName() || h.JSONName() == string(f.Name())
			if with == nil && (newBreaks || oldBreaks) {
				with = f
			}
		}
	}
	return with, newBreaks, oldBreaks
}
