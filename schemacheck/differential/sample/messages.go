package sample

import (
	"context"
	"fmt"
	"hash/fnv"

	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/parley-chat/parley/schemacheck/compat/schema"
)

// A candidate is a value that a field may have, and its weight: what it adds to the
// size of a message, about a unit for each scalar.
type candidate struct {
	set    func(protoreflect.Message, protoreflect.FieldDescriptor)
	weight int
}

// A shape is a message and the values of its fields, by number.
type shape struct {
	of     protoreflect.MessageDescriptor
	values map[protoreflect.FieldNumber][]candidate
	varied []protoreflect.FieldDescriptor // those that are not the same on both sides; all of a message that is not wide
	rest   protoreflect.Message           // what else must be set of a wide message; nil of others
}

// shape chooses the values of a message's fields. A wide message whose rules speak of
// single fields only has one value of each field that is the same on both sides.
func (g *Generator) shape(ctx context.Context, m protoreflect.MessageDescriptor, depth int) shape {
	s := shape{of: m, values: map[protoreflect.FieldNumber][]candidate{}}
	wide := m.Fields().Len() > maxSingle[depth] && !ruled(m)
	for f := range schema.All(m.Fields()) {
		if wide && g.other.Same(f) {
			s.values[f.Number()] = g.values(ctx, f, depth, 1)
			continue
		}
		s.varied = append(s.varied, f)
		s.values[f.Number()] = g.values(ctx, f, depth, -1)
	}
	if len(s.varied) < m.Fields().Len() {
		s.rest = g.least(s)
	}
	return s
}

// ruled says whether a message has rules that span its fields.
func ruled(m protoreflect.MessageDescriptor) bool {
	r, err := protovalidate.ResolveMessageRules(m)
	return err != nil || r != nil && proto.Size(r) > 0
}

// messages returns valid messages of a type at a depth, the typical one first; none when
// the context has ended.
func (g *Generator) messages(ctx context.Context, m protoreflect.MessageDescriptor, depth int) []protoreflect.Message {
	if ctx.Err() != nil {
		return nil
	}
	key := fmt.Sprint(m.FullName(), depth)
	if made, ok := g.made[key]; ok {
		return made
	}
	g.made[key] = nil
	s := g.shape(ctx, m, depth)
	base := g.first(ctx, s, depth)
	if base == nil {
		return nil
	}
	l := &sampler{g: g, depth: depth, list: []protoreflect.Message{base}, seen: map[uint64]bool{fingerprint(base): true},
		limit: maxVariations[depth]}
	l.add(dynamicpb.NewMessage(m)) // nothing set
	least := g.least(s)
	l.add(least)
	from := base
	if s.rest != nil {
		from = s.rest // few changed fields of a wide message cost little
	}
	if !l.single(ctx, from, s) {
		l.together(ctx, least, s)
	}
	for range randoms {
		l.add(g.mixed(s))
	}
	g.made[key] = l.list
	return l.list
}

// A sampler collects the messages of one type that are valid and different.
type sampler struct {
	g            *Generator
	depth, limit int
	list         []protoreflect.Message
	seen         map[uint64]bool
}

// add keeps a message that is valid and new. False says that there is no room for more.
func (l *sampler) add(m protoreflect.Message) bool {
	if len(l.list) >= l.limit {
		return false
	}
	if l.g.budget[l.depth] <= 0 {
		l.g.partial = true
		return false
	}
	l.g.budget[l.depth] -= weigh(m)
	if !l.g.valid(m) {
		return true
	}
	if h := fingerprint(m); !l.seen[h] {
		l.seen[h] = true
		l.list = append(l.list, m)
	}
	return true
}

// single varies one field at a time. Wide before deep: one more value of each field
// in turn, so that a limit cuts all fields alike. False says that it did.
func (l *sampler) single(ctx context.Context, base protoreflect.Message, s shape) bool {
	if len(s.varied) > maxSingle[l.depth] {
		return false
	}
	for round, more := 0, true; more; round++ {
		more = false
		for _, f := range s.varied {
			if ctx.Err() != nil {
				return false
			}
			if round == 0 {
				without := clone(base)
				without.Clear(f)
				if !l.add(without) {
					return false
				}
			}
			if round < len(s.values[f.Number()]) {
				more = true
				varied := clone(base)
				s.values[f.Number()][round].set(varied, f)
				if !l.add(varied) {
					return false
				}
			}
		}
	}
	return true
}

// together varies all fields at once, each round with one more value of each, and of
// each oneof one case: so many messages as the field with the most values has, however
// many fields there are.
func (l *sampler) together(ctx context.Context, least protoreflect.Message, s shape) {
	rounds := 0
	for _, f := range s.varied {
		cases := 1
		if o := schema.Oneof(f); o != nil {
			cases = o.Fields().Len()
		}
		rounds = max(rounds, cases*len(s.values[f.Number()]))
	}
	if l.depth > 0 { // nested messages have few variations, regardless of their size
		rounds = min(rounds, maxVariations[l.depth]/2)
	}
	l.limit = len(l.list) + min(rounds, maxVariations[l.depth])
	l.g.partial = l.g.partial || rounds > maxVariations[l.depth]
	for round := range rounds {
		m := clone(least)
		for _, f := range s.varied {
			values, n := s.values[f.Number()], round
			if o := schema.Oneof(f); o != nil {
				if o.Fields().Get(round%o.Fields().Len()) != f {
					continue
				}
				n /= o.Fields().Len()
			}
			if len(values) > 0 {
				values[n%len(values)].set(m, f)
			}
		}
		if ctx.Err() != nil || !l.add(m) {
			return
		}
	}
}

// first returns a valid message with all fields set, if there is one.
func (g *Generator) first(ctx context.Context, s shape, depth int) protoreflect.Message {
	full := dynamicpb.NewMessage(s.of)
	for i := s.of.Fields().Len() - 1; i >= 0; i-- { // of a oneof the first case remains
		f := s.of.Fields().Get(i)
		if v := s.values[f.Number()]; len(v) > 0 {
			v[0].set(full, f)
		}
	}
	if g.valid(full) {
		return full
	}
	if least := g.least(s); g.valid(least) {
		return least
	}
	for range maxAttempts {
		if g.budget[depth] <= 0 {
			g.partial = true
			return nil
		}
		mixed := g.mixed(s)
		g.budget[depth] -= weigh(mixed)
		if ctx.Err() != nil {
			return nil
		}
		if g.valid(mixed) {
			return mixed
		}
	}
	return nil
}

// least sets only what is refused when it is not set.
func (g *Generator) least(s shape) protoreflect.Message {
	msg := dynamicpb.NewMessage(s.of)
	for f := range schema.All(s.of.Fields()) {
		if v := s.values[f.Number()]; len(v) > 0 && (f.Cardinality() == protoreflect.Required || g.unsetRefused(f)) {
			v[0].set(msg, f)
		}
	}
	for o := range schema.All(s.of.Oneofs()) {
		rules, err := protovalidate.ResolveOneofRules(o)
		if first := o.Fields().Get(0); err == nil && rules.GetRequired() && len(s.values[first.Number()]) > 0 {
			s.values[first.Number()][0].set(msg, first)
		}
	}
	return msg
}

// unsetRefused says whether rules ask for a field.
func (g *Generator) unsetRefused(f protoreflect.FieldDescriptor) bool {
	if r, err := protovalidate.ResolveFieldRules(f); err == nil && r == nil {
		return false
	}
	like := g.parts.Field(f)
	return len(g.violations(dynamicpb.NewMessage(like.ContainingMessage()), like)) > 0
}

func (g *Generator) mixed(s shape) protoreflect.Message {
	msg := protoreflect.Message(dynamicpb.NewMessage(s.of))
	if s.rest != nil {
		msg = clone(s.rest)
	}
	for _, f := range s.varied {
		v := s.values[f.Number()]
		if n := g.random.IntN(len(v) + 1); n < len(v) {
			v[n].set(msg, f)
		}
	}
	return msg
}

// weigh returns the size of a message in units of about a scalar, with one for each of
// its fields that it lacks: readers check those too.
func weigh(m protoreflect.Message) int {
	n := 1 + m.Descriptor().Fields().Len()
	for f, v := range m.Range {
		n += weighValue(f, v)
	}
	return n
}

func weighValue(f protoreflect.FieldDescriptor, v protoreflect.Value) int {
	switch {
	case f.IsMap():
		n := 0
		for _, v := range v.Map().Range {
			n += 1 + weighValue(f.MapValue(), v)
		}
		return n
	case f.IsList():
		n := 0
		for i := range v.List().Len() {
			n += weighOne(v.List().Get(i))
		}
		return n
	}
	return weighOne(v)
}

func weighOne(v protoreflect.Value) int {
	switch x := v.Interface().(type) {
	case protoreflect.Message:
		return weigh(x)
	case string:
		return 1 + len(x)/1024
	case []byte:
		return 1 + len(x)/1024
	}
	return 1
}

func clone(m protoreflect.Message) protoreflect.Message {
	return proto.Clone(m.Interface()).ProtoReflect()
}

func fingerprint(m protoreflect.Message) uint64 {
	b, _ := proto.MarshalOptions{Deterministic: true, AllowPartial: true}.Marshal(m.Interface())
	h := fnv.New64a()
	_, _ = h.Write(b) // never fails
	return h.Sum64()
}

// valid says whether a producer may write the message.
func (g *Generator) valid(m protoreflect.Message) bool {
	return proto.CheckInitialized(m.Interface()) == nil && g.validator.Validate(m.Interface()) == nil
}
