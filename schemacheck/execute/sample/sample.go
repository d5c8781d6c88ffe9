// Package sample makes messages that are valid for one schema and lie at the edges
// of its rules, and of another schema's rules for the same fields.
//
// It owns the choice of values: typical ones, zeros, the limits of kinds, the limits
// of protovalidate rules and their neighbours, each enum value, each oneof case, and
// random combinations. The same schemas give the same messages. Values that it
// cannot invent (a CEL rule that only few values pass) show as a message without
// samples.
//
// Concurrency: a Generator is used by one goroutine.
package sample

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"time"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Limits of what is made. A list, map or text beyond them is left out.
const (
	maxElements = 2000
	maxText     = 1 << 20
	maxDepth    = 3
	tries       = 300 // random messages that are looked at for a first valid one
	randoms     = 12  // random messages of an event
)

// Variations of a message by depth: an event, a message in it, one in that.
var maxVariations = [maxDepth + 1]int{600, 40, 10, 3}

// Now is the time that rules about the present see.
var Now = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Generator makes samples for the messages of one schema.
type Generator struct {
	validator protovalidate.Validator
	other     func(protoreflect.FullName) protoreflect.MessageDescriptor
	random    *rand.Rand
	made      map[string][]protoreflect.Message // messages by name and depth
}

// Validator returns a validator that sees Now as the present and knows the
// predefined rules of a schema.
func Validator(of protoregistry.ExtensionTypeResolver) (protovalidate.Validator, error) {
	v, err := protovalidate.New(protovalidate.WithExtensionTypeResolver(of),
		protovalidate.WithNowFunc(func() *timestamppb.Timestamp { return timestamppb.New(Now) }))
	if err != nil {
		return nil, fmt.Errorf("validator: %w", err)
	}
	return v, nil
}

// New returns a generator for messages that the validator lets pass. Other finds the
// message of the other schema by its name here, nil if there is none.
func New(v protovalidate.Validator, other func(protoreflect.FullName) protoreflect.MessageDescriptor, seed uint64) *Generator {
	return &Generator{
		validator: v, other: other, random: rand.New(rand.NewPCG(seed, seed)), made: map[string][]protoreflect.Message{},
	}
}

// ErrNone says that no valid message was found.
var ErrNone = errors.New("no valid message was found")

// Messages returns valid messages of a type, the most typical one first.
func (g *Generator) Messages(m protoreflect.MessageDescriptor) ([]protoreflect.Message, error) {
	list := g.messages(m, 0)
	if len(list) == 0 {
		return nil, fmt.Errorf("%s: %w", m.FullName(), ErrNone)
	}
	return list, nil
}

// A value of a field, ready to be set.
type value struct{ set func(protoreflect.Message) }

func (g *Generator) messages(m protoreflect.MessageDescriptor, depth int) []protoreflect.Message {
	key := fmt.Sprint(m.FullName(), depth)
	if made, ok := g.made[key]; ok {
		return made
	}
	g.made[key] = nil
	values := map[protoreflect.FieldNumber][]value{}
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		values[f.Number()] = g.values(f, depth)
	}
	base := g.first(m, values)
	if base == nil {
		return nil
	}
	list := []protoreflect.Message{base}
	seen := map[uint64]bool{fingerprint(base): true}
	add := func(sample protoreflect.Message) {
		if h := fingerprint(sample); len(list) < maxVariations[depth] && !seen[h] && g.valid(sample) {
			seen[h] = true
			list = append(list, sample)
		}
	}
	add(dynamicpb.NewMessage(m)) // nothing set
	add(g.least(m, values))
	// Wide before deep: one more value of each field in turn, so that a cap cuts all
	// fields alike.
	for round, more := 0, true; more; round++ {
		more = false
		for i := range m.Fields().Len() {
			f := m.Fields().Get(i)
			if round == 0 {
				without := clone(base)
				without.Clear(f)
				add(without)
			}
			if round < len(values[f.Number()]) {
				more = true
				varied := clone(base)
				values[f.Number()][round].set(varied)
				add(varied)
			}
		}
	}
	for range randoms {
		add(g.mixed(m, values))
	}
	g.made[key] = list
	return list
}

// first returns a valid message with all fields set, if there is one.
func (g *Generator) first(m protoreflect.MessageDescriptor, values map[protoreflect.FieldNumber][]value) protoreflect.Message {
	full := dynamicpb.NewMessage(m)
	for i := m.Fields().Len() - 1; i >= 0; i-- { // of a oneof the first case remains
		if v := values[m.Fields().Get(i).Number()]; len(v) > 0 {
			v[0].set(full)
		}
	}
	if g.valid(full) {
		return full
	}
	if least := g.least(m, values); g.valid(least) {
		return least
	}
	for range tries {
		if mixed := g.mixed(m, values); g.valid(mixed) {
			return mixed
		}
	}
	return nil
}

// least sets only what is refused when it is not set.
func (g *Generator) least(m protoreflect.MessageDescriptor, values map[protoreflect.FieldNumber][]value) protoreflect.Message {
	msg := dynamicpb.NewMessage(m)
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		if v := values[f.Number()]; len(v) > 0 && (f.Cardinality() == protoreflect.Required || len(g.violations(msg, f)) > 0) {
			v[0].set(msg)
		}
	}
	for i := range m.Oneofs().Len() {
		o := m.Oneofs().Get(i)
		rules, err := protovalidate.ResolveOneofRules(o)
		if v := values[o.Fields().Get(0).Number()]; err == nil && rules.GetRequired() && len(v) > 0 {
			v[0].set(msg)
		}
	}
	return msg
}

func (g *Generator) mixed(m protoreflect.MessageDescriptor, values map[protoreflect.FieldNumber][]value) protoreflect.Message {
	msg := dynamicpb.NewMessage(m)
	for i := range m.Fields().Len() {
		v := values[m.Fields().Get(i).Number()]
		if n := g.random.IntN(len(v) + 1); n < len(v) {
			v[n].set(msg)
		}
	}
	return msg
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

// violations validates one field of a message and what is in it.
func (g *Generator) violations(m protoreflect.Message, f protoreflect.FieldDescriptor) []*protovalidate.Violation {
	of := f.ContainingMessage()
	err := g.validator.Validate(m.Interface(), protovalidate.WithFilter(protovalidate.FilterFunc(
		func(in protoreflect.Message, d protoreflect.Descriptor) bool {
			return in.Descriptor() != of || d.FullName() == f.FullName()
		})))
	var invalid *protovalidate.ValidationError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &invalid):
		return invalid.Violations
	}
	return []*protovalidate.Violation{{Proto: &validate.Violation{}}}
}

// rules returns what both schemas say about a field: own first.
func (g *Generator) rules(f protoreflect.FieldDescriptor) []*validate.FieldRules {
	fields := []protoreflect.FieldDescriptor{f}
	if m := g.other(f.ContainingMessage().FullName()); m != nil {
		if there := m.Fields().ByNumber(f.Number()); there != nil {
			fields = append(fields, there)
		}
	}
	var list []*validate.FieldRules
	for _, f := range fields {
		if r, err := protovalidate.ResolveFieldRules(f); err == nil && r != nil {
			list = append(list, r)
		}
	}
	return list
}
