package schema

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// TypeName is a field's type as it is written in a proto file.
func TypeName(f protoreflect.FieldDescriptor) string {
	name := f.Kind().String()
	switch {
	case f.IsMap():
		return "map<" + TypeName(f.MapKey()) + ", " + TypeName(f.MapValue()) + ">"
	case f.Message() != nil:
		name = string(f.Message().FullName())
	case f.Enum() != nil:
		name = string(f.Enum().FullName())
	}
	if f.Kind() == protoreflect.GroupKind {
		name = "group " + name
	}
	if f.IsList() {
		name = "repeated " + name
	}
	return strings.TrimSpace(name)
}

// Shape is a message as its fields are encoded, without the names of types.
func Shape(m protoreflect.MessageDescriptor) string {
	var lines []string
	for f := range All(m.Fields()) {
		lines = append(lines, fmt.Sprint(f.Number(), f.Name(), f.Kind(), f.Cardinality(), f.IsMap()))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// EnumShape is an enum as names and numbers.
func EnumShape(e protoreflect.EnumDescriptor) string {
	var lines []string
	for v := range All(e.Values()) {
		lines = append(lines, fmt.Sprint(v.Name(), v.Number()))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// Oneof returns the real oneof of a field.
func Oneof(f protoreflect.FieldDescriptor) protoreflect.OneofDescriptor {
	if o := f.ContainingOneof(); o != nil && !o.IsSynthetic() {
		return o
	}
	return nil
}

// ByNumber returns fields in the order of their numbers.
func ByNumber(m protoreflect.MessageDescriptor) []protoreflect.FieldDescriptor {
	list := slices.Collect(All(m.Fields()))
	slices.SortFunc(list, func(a, b protoreflect.FieldDescriptor) int { return cmp.Compare(a.Number(), b.Number()) })
	return list
}

// Interval is a range of numbers, both ends included.
type Interval struct{ From, To int }

// Subtract removes from ranges what others cover.
func Subtract(from []Interval, others ...Interval) []Interval {
	for _, o := range others {
		var rest []Interval
		for _, i := range from {
			if i.To < o.From || i.From > o.To {
				rest = append(rest, i)
				continue
			}
			if i.From < o.From {
				rest = append(rest, Interval{i.From, o.From - 1})
			}
			if i.To > o.To {
				rest = append(rest, Interval{o.To + 1, i.To})
			}
		}
		from = rest
	}
	return from
}

// String writes the range as proto files do.
func (i Interval) String() string {
	if i.From == i.To {
		return fmt.Sprint(i.From)
	}
	return fmt.Sprintf("%d-%d", i.From, i.To)
}

// Reserved returns the reserved numbers of a message.
func Reserved(m protoreflect.MessageDescriptor) []Interval { return intervals(m.ReservedRanges()) }

// Extendable returns the extension numbers of a message.
func Extendable(m protoreflect.MessageDescriptor) []Interval { return intervals(m.ExtensionRanges()) }

func intervals(ranges protoreflect.FieldRanges) []Interval {
	var list []Interval
	for i := range ranges.Len() {
		list = append(list, Interval{int(ranges.Get(i)[0]), int(ranges.Get(i)[1]) - 1})
	}
	return list
}

// ReservedValues returns the reserved numbers of an enum.
func ReservedValues(e protoreflect.EnumDescriptor) []Interval {
	var list []Interval
	for i := range e.ReservedRanges().Len() {
		list = append(list, Interval{int(e.ReservedRanges().Get(i)[0]), int(e.ReservedRanges().Get(i)[1])})
	}
	return list
}

// Numbers returns the numbers of fields or of enum values.
func Numbers[D interface{ Number() N }, N ~int32](l interface {
	Len() int
	Get(int) D
}) []Interval {
	var list []Interval
	for d := range All(l) {
		list = append(list, Interval{int(d.Number()), int(d.Number())})
	}
	return list
}
