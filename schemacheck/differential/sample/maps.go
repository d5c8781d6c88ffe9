package sample

import (
	"context"
	"slices"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"google.golang.org/protobuf/reflect/protoreflect"
)

type pair struct{ k, v protoreflect.Value }

// mapOf makes a map of pairs.
func mapOf(pairs []pair) candidate {
	weight := 1
	for _, p := range pairs {
		weight += 1 + weighOne(p.v)
	}
	return candidate{weight: weight, set: func(m protoreflect.Message, f protoreflect.FieldDescriptor) {
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

// mapValues returns maps of valid pairs in the sizes that rules speak of. Where the
// depth ends, maps of messages are empty.
func (g *Generator) mapValues(
	ctx context.Context, f protoreflect.FieldDescriptor, rules []*validate.FieldRules, depth int,
) []candidate {
	var keyRules, valueRules []*validate.FieldRules
	for _, r := range rules {
		if r.GetMap().HasKeys() {
			keyRules = append(keyRules, r.GetMap().GetKeys())
		}
		if r.GetMap().HasValues() {
			valueRules = append(valueRules, r.GetMap().GetValues())
		}
	}
	refused := func(p pair) bool { return g.elementRefused(f, mapOf([]pair{p})) }
	keys := g.singles(ctx, f.MapKey(), keyRules, depth)
	sizes := sizes(typeRules(rules, "map"), "pairs")
	for i := int64(0); int64(len(keys)) < slices.Max(sizes)+8; i++ {
		k, ok := numbered(f.MapKey().Kind(), i)
		if !ok {
			break
		}
		keys = append(keys, k)
	}
	values := g.singles(ctx, f.MapValue(), valueRules, depth)
	good, ok := goodPair(keys, values, refused)
	if !ok {
		return []candidate{mapOf(nil)}
	}
	keys = slices.DeleteFunc(keys, func(k protoreflect.Value) bool { return refused(pair{k, good.v}) })
	values = slices.DeleteFunc(values, func(v protoreflect.Value) bool { return refused(pair{good.k, v}) })
	var out []candidate
	for _, n := range sizes {
		if n > int64(len(keys)) {
			continue
		}
		var some []pair
		for i := range int(n) {
			some = append(some, pair{keys[i], values[i%len(values)]})
		}
		out = append(out, mapOf(some))
	}
	for i := range min(max(len(keys), len(values)), variations(depth)) {
		out = append(out, mapOf([]pair{{keys[i%len(keys)], values[i%len(values)]}}))
	}
	return out
}

// goodPair finds a key and a value that pass together: a good key shows which values
// pass, a good value which keys do.
func goodPair(keys, values []protoreflect.Value, refused func(pair) bool) (pair, bool) {
	for _, k := range keys {
		for _, v := range values {
			if p := (pair{k, v}); !refused(p) {
				return p, true
			}
		}
	}
	return pair{}, false
}
