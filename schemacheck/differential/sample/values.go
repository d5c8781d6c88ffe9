package sample

import (
	"context"
	"fmt"
	"slices"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/parley-chat/parley/schemacheck/compat/schema"
)

// values returns what the field's own rules let pass, the typical value first: all, or so
// many as are asked for. Values that are too large for the field's part of a message are
// left out.
func (g *Generator) values(ctx context.Context, f protoreflect.FieldDescriptor, depth, most int) []candidate {
	if ctx.Err() != nil {
		return nil
	}
	rules, free := g.rules(f)
	key := ""
	if len(rules) == 0 && free && f.Message() == nil {
		key = fmt.Sprint(f.Kind(), f.Cardinality(), enumName(f), schema.VerifiesUTF8(f), depth,
			f.ContainingMessage().Fields().Len() > maxSingle[depth], most)
		if made, ok := g.plain[key]; ok {
			return made
		}
	}
	limit := max(maxWeight/f.ContainingMessage().Fields().Len(), 1)
	var passed []candidate
	for _, c := range g.candidates(ctx, f, rules, depth) {
		switch {
		case len(passed) == most:
		case c.weight > limit:
			g.partial = true
		case free || !g.refused(f, c):
			passed = append(passed, c)
		}
	}
	if key != "" {
		g.plain[key] = passed
	}
	return passed
}

// candidates returns values that a field's rules may let pass.
func (g *Generator) candidates(
	ctx context.Context, f protoreflect.FieldDescriptor, rules []*validate.FieldRules, depth int,
) []candidate {
	switch {
	case f.IsMap():
		return g.mapValues(ctx, f, rules, depth)
	case f.IsList():
		return g.listValues(ctx, f, rules, depth)
	}
	var list []candidate
	for _, v := range g.singles(ctx, f, rules, depth) {
		list = append(list, candidate{
			set:    func(m protoreflect.Message, f protoreflect.FieldDescriptor) { m.Set(f, v) },
			weight: weighOne(v),
		})
	}
	return list
}

func enumName(f protoreflect.FieldDescriptor) protoreflect.FullName {
	if f.Enum() == nil {
		return ""
	}
	return f.Enum().FullName()
}

// refused says whether a field's rules refuse a value.
func (g *Generator) refused(f protoreflect.FieldDescriptor, c candidate) bool {
	like := g.parts.Field(f)
	m := dynamicpb.NewMessage(like.ContainingMessage())
	c.set(m, like)
	return len(g.violations(m, like)) > 0
}

// singles returns values of a field's type, a list's or map's element included.
func (g *Generator) singles(
	ctx context.Context, f protoreflect.FieldDescriptor, rules []*validate.FieldRules, depth int,
) []protoreflect.Value {
	switch {
	case f.Enum() != nil:
		return enumValues(f)
	case f.Message() != nil:
		return g.messageValues(ctx, f.Message(), rules, depth)
	}
	typed := typeRules(rules, f.Kind().String())
	switch f.Kind() {
	case protoreflect.BoolKind:
		return []protoreflect.Value{protoreflect.ValueOfBool(true), protoreflect.ValueOfBool(false)}
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		return floatValues(f.Kind(), typed)
	case protoreflect.StringKind:
		return stringValues(f, typed)
	case protoreflect.BytesKind:
		return bytesValues(typed)
	}
	return intValues(f.Kind(), typed)
}

// typeRules returns the part of rules that is about a type, by its name in
// FieldRules; the other schema may have rules about another type.
func typeRules(rules []*validate.FieldRules, name string) []protoreflect.Message {
	var list []protoreflect.Message
	for _, r := range rules {
		m := r.ProtoReflect()
		if f := m.WhichOneof(m.Descriptor().Oneofs().ByName("type")); f != nil && string(f.Name()) == name {
			list = append(list, m.Get(f).Message())
		}
	}
	return list
}

func enumValues(f protoreflect.FieldDescriptor) []protoreflect.Value {
	var list []protoreflect.Value
	highest := protoreflect.EnumNumber(0)
	values := f.Enum().Values()
	for i := range values.Len() {
		n := values.Get(i).Number()
		highest = max(highest, n)
		list = append(list, protoreflect.ValueOfEnum(n))
	}
	if len(list) > 1 && values.Get(0).Number() == 0 {
		list[0], list[1] = list[1], list[0] // the typical value is not the unset one
	}
	if !f.Enum().IsClosed() && highest < 1<<30 {
		list = append(list, protoreflect.ValueOfEnum(highest+1000003)) // from a producer that is newer still
	}
	return list
}

// messageValues returns messages of a type, one level deeper; none where the depth
// ends.
func (g *Generator) messageValues(
	ctx context.Context, m protoreflect.MessageDescriptor, rules []*validate.FieldRules, depth int,
) []protoreflect.Value {
	if depth >= maxDepth {
		return nil
	}
	special, ok := wellKnown(m, rules)
	if !ok {
		special = g.messages(ctx, m, depth+1)
	}
	var list []protoreflect.Value
	for _, s := range special {
		list = append(list, protoreflect.ValueOfMessage(s))
	}
	return list
}

// variations is how many values of an element are tried alone, at a depth.
func variations(depth int) int { return maxVariations[min(depth+1, maxDepth)] }

// lists makes a list of elements.
func lists(elements []protoreflect.Value) candidate {
	weight := 1
	for _, e := range elements {
		weight += weighOne(e)
	}
	return candidate{weight: weight, set: func(m protoreflect.Message, f protoreflect.FieldDescriptor) {
		m.Clear(f)
		l := m.Mutable(f).List()
		for _, e := range elements {
			l.Append(e)
		}
	}}
}

// listValues returns lists of valid elements in the sizes that rules speak of.
func (g *Generator) listValues(
	ctx context.Context, f protoreflect.FieldDescriptor, rules []*validate.FieldRules, depth int,
) []candidate {
	var items []*validate.FieldRules
	for _, r := range rules {
		if r.GetRepeated().HasItems() {
			items = append(items, r.GetRepeated().GetItems())
		}
	}
	pool := g.singles(ctx, f, items, depth)
	sizes := sizes(typeRules(rules, "repeated"), "items")
	for i := int64(0); int64(len(pool)) < slices.Max(sizes) && f.Message() == nil && f.Enum() == nil; i++ {
		v, ok := numbered(f.Kind(), i)
		if !ok {
			break
		}
		pool = append(pool, v)
	}
	pool = slices.DeleteFunc(pool, func(v protoreflect.Value) bool {
		return g.elementRefused(f, lists([]protoreflect.Value{v}))
	})
	if len(pool) == 0 {
		return []candidate{lists(nil)}
	}
	var out []candidate
	for _, n := range sizes {
		elements := make([]protoreflect.Value, 0, n)
		for i := range n {
			elements = append(elements, pool[int(i)%len(pool)])
		}
		out = append(out, lists(elements))
	}
	alone := variations(depth)
	if f.ContainingMessage().Fields().Len() > maxSingle[depth] {
		alone = min(alone, maxVariations[2])
	}
	for _, v := range pool[:min(len(pool), alone)] {
		out = append(out, lists([]protoreflect.Value{v}))
	}
	return out
}

// elementRefused says whether an element is refused, not the list or map as such.
func (g *Generator) elementRefused(f protoreflect.FieldDescriptor, c candidate) bool {
	if own, err := protovalidate.ResolveFieldRules(f); err == nil && own == nil {
		return false
	}
	like := g.parts.Field(f)
	m := dynamicpb.NewMessage(like.ContainingMessage())
	c.set(m, like)
	for _, v := range g.violations(m, like) {
		elements := v.Proto.GetField().GetElements()
		if len(elements) == 0 || elements[0].WhichSubscript() != 0 || v.Proto.GetForKey() {
			return true
		}
	}
	return false
}

// sizes returns how long a list, map or text should be: a typical size first.
func sizes(rules []protoreflect.Message, unit protoreflect.Name) []int64 {
	list := []int64{2, 1, 0}
	limit := int64(maxElements)
	if unit == "len" || unit == "bytes" {
		list, limit = []int64{8, 0, 1, 2, 3, 4, 16, 32, 36, 64}, maxText
	}
	for _, r := range rules {
		for _, name := range []protoreflect.Name{"min_" + unit, "max_" + unit, unit, "len_" + unit} {
			f := r.Descriptor().Fields().ByName(name)
			if f == nil || f.Kind() != protoreflect.Uint64Kind || !r.Has(f) || r.Get(f).Uint() > uint64(limit) {
				continue
			}
			n := int64(r.Get(f).Uint())
			list = append(list, n, n+1, max(n-1, 0))
		}
	}
	return unique(list)
}

func unique[T comparable](list []T) []T {
	seen := map[T]bool{}
	return slices.DeleteFunc(list, func(v T) bool {
		was := seen[v]
		seen[v] = true
		return was
	})
}
