package sample

import (
	"slices"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
)

// values returns what the field's own rules let pass, the typical value first.
func (g *Generator) values(f protoreflect.FieldDescriptor, depth int) []value {
	if f.Message() != nil && !f.IsMap() && depth >= maxDepth {
		return nil
	}
	rules := g.rules(f)
	var candidates []value
	switch {
	case f.IsMap():
		candidates = g.mapValues(f, rules, depth)
	case f.IsList():
		candidates = g.listValues(f, rules, depth)
	default:
		for _, v := range g.singles(f, rules, depth) {
			candidates = append(candidates, value{func(m protoreflect.Message) { m.Set(f, v) }})
		}
	}
	return slices.DeleteFunc(candidates, func(v value) bool {
		m := dynamicpb.NewMessage(f.ContainingMessage())
		v.set(m)
		return len(g.violations(m, f)) > 0
	})
}

// singles returns values of a field's type, a list's or map's element included.
func (g *Generator) singles(f protoreflect.FieldDescriptor, rules []*validate.FieldRules, depth int) []protoreflect.Value {
	switch {
	case f.Enum() != nil:
		return enumValues(f)
	case f.Message() != nil:
		return g.messageValues(f.Message(), rules, depth)
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

func (g *Generator) messageValues(m protoreflect.MessageDescriptor, rules []*validate.FieldRules, depth int) []protoreflect.Value {
	var list []protoreflect.Value
	if special, ok := wellKnown(m, rules); ok {
		for _, s := range special {
			list = append(list, protoreflect.ValueOfMessage(s))
		}
		return list
	}
	for _, s := range g.messages(m, depth+1) {
		list = append(list, protoreflect.ValueOfMessage(s))
	}
	return list
}

// listValues returns lists of valid elements in the sizes that rules speak of.
func (g *Generator) listValues(f protoreflect.FieldDescriptor, rules []*validate.FieldRules, depth int) []value {
	var items []*validate.FieldRules
	for _, r := range rules {
		if r.GetRepeated().HasItems() {
			items = append(items, r.GetRepeated().GetItems())
		}
	}
	list := func(elements []protoreflect.Value) value {
		return value{func(m protoreflect.Message) {
			m.Clear(f)
			l := m.Mutable(f).List()
			for _, e := range elements {
				l.Append(e)
			}
		}}
	}
	pool := g.singles(f, items, depth)
	sizes := sizes(typeRules(rules, "repeated"), "items")
	for i := int64(0); int64(len(pool)) < slices.Max(sizes) && f.Message() == nil && f.Enum() == nil; i++ {
		v, ok := numbered(f.Kind(), i)
		if !ok {
			break
		}
		pool = append(pool, v)
	}
	pool = slices.DeleteFunc(pool, func(v protoreflect.Value) bool {
		m := dynamicpb.NewMessage(f.ContainingMessage())
		list([]protoreflect.Value{v}).set(m)
		return g.elementRefused(m, f)
	})
	if len(pool) == 0 {
		return []value{list(nil)}
	}
	var out []value
	for _, n := range sizes {
		elements := make([]protoreflect.Value, 0, n)
		for i := range n {
			elements = append(elements, pool[int(i)%len(pool)])
		}
		out = append(out, list(elements))
	}
	for _, v := range pool[:min(len(pool), maxVariations[min(depth+1, maxDepth)])] {
		out = append(out, list([]protoreflect.Value{v}))
	}
	return out
}

// elementRefused says whether an element is refused, not the list or map as such.
func (g *Generator) elementRefused(m protoreflect.Message, f protoreflect.FieldDescriptor) bool {
	for _, v := range g.violations(m, f) {
		elements := v.Proto.GetField().GetElements()
		if len(elements) == 0 || elements[0].WhichSubscript() != 0 || v.Proto.GetForKey() {
			return true
		}
	}
	return false
}

func (g *Generator) mapValues(f protoreflect.FieldDescriptor, rules []*validate.FieldRules, depth int) []value {
	var keyRules, valueRules []*validate.FieldRules
	for _, r := range rules {
		if r.GetMap().HasKeys() {
			keyRules = append(keyRules, r.GetMap().GetKeys())
		}
		if r.GetMap().HasValues() {
			valueRules = append(valueRules, r.GetMap().GetValues())
		}
	}
	type pair struct{ k, v protoreflect.Value }
	fill := func(pairs []pair) value {
		return value{func(m protoreflect.Message) {
			m.Clear(f)
			if len(pairs) == 0 {
				return
			}
			to := m.Mutable(f).Map()
			for _, p := range pairs {
				to.Set(p.k.MapKey(), p.v)
			}
		}}
	}
	refused := func(p pair) bool {
		m := dynamicpb.NewMessage(f.ContainingMessage())
		fill([]pair{p}).set(m)
		return g.elementRefused(m, f)
	}
	keys := g.singles(f.MapKey(), keyRules, depth)
	sizes := sizes(typeRules(rules, "map"), "pairs")
	for i := int64(0); int64(len(keys)) < slices.Max(sizes)+8; i++ {
		k, ok := numbered(f.MapKey().Kind(), i)
		if !ok {
			break
		}
		keys = append(keys, k)
	}
	values := g.singles(f.MapValue(), valueRules, depth)
	// A good key shows which values pass, a good value which keys do.
	var pairs []pair
	for _, k := range keys {
		for _, v := range values {
			if p := (pair{k, v}); !refused(p) {
				pairs = append(pairs, p)
				if len(pairs) > 1 { // the others are tried with this one's partner
					break
				}
			}
		}
		if len(pairs) > 1 {
			break
		}
	}
	if len(pairs) == 0 {
		return []value{fill(nil)}
	}
	good := pairs[0]
	keys = slices.DeleteFunc(keys, func(k protoreflect.Value) bool { return refused(pair{k, good.v}) })
	values = slices.DeleteFunc(values, func(v protoreflect.Value) bool { return refused(pair{good.k, v}) })
	var out []value
	for _, n := range sizes {
		if n > int64(len(keys)) {
			continue
		}
		var some []pair
		for i := range int(n) {
			some = append(some, pair{keys[i], values[i%len(values)]})
		}
		out = append(out, fill(some))
	}
	for i := range min(max(len(keys), len(values)), maxVariations[min(depth+1, maxDepth)]) {
		out = append(out, fill([]pair{{keys[i%len(keys)], values[i%len(values)]}}))
	}
	return out
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
