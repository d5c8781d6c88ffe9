// Package sample makes messages that are valid for one schema and lie at the edges
// of its rules, and of another schema's rules for the same fields.
//
// It owns the choice of values: typical ones, zeros, the limits of kinds, the limits
// of protovalidate rules and their neighbours, each enum value, each oneof case, and
// random combinations. The same schemas give the same messages. Values that it
// cannot invent (a CEL rule that only few values pass) show as a message without
// samples; work beyond a budget that the size of the schema does not raise is left out
// and said by Partial.
//
// Concurrency: a Generator is used by one goroutine.
package sample

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/parley-chat/parley/schemacheck/compat/part"
	"github.com/parley-chat/parley/schemacheck/compat/schema"
)

// Limits of what is made. A list, map or text beyond them is left out.
const (
	maxElements = 2000
	maxText     = 1 << 20
	maxDepth    = 3
	maxWeight   = 200_000 // of one message; each of its fields has an equal part of it
	maxAttempts = 300     // random messages that are made for a first valid one
	randoms     = 12      // random messages of an event
)

// Variations of a message by depth: an event, a message in it, one in that.
var maxVariations = [maxDepth + 1]int{600, 40, 10, 3}

// The most fields of a message that are varied one at a time, by depth.
var maxSingle = [maxDepth + 1]int{75, 20, 10, 3}

// The weight of all messages that are tried, by depth.
var budgets = [maxDepth + 1]int{500_000, 250_000, 100_000, 50_000}

// Now is the time that rules about the present see.
var Now = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Other is what a Generator knows of the schema that reads its samples.
type Other interface {
	// Message finds the other schema's message of a name here, nil if there is none.
	Message(protoreflect.FullName) protoreflect.MessageDescriptor
	// Same says whether a field and all that it uses are the same there. Of a wide message
	// such a field is not varied: an incompatibility shows with a field that differs.
	Same(protoreflect.FieldDescriptor) bool
}

// Alone stands for no other schema.
type Alone struct{}

// Message finds nothing.
func (Alone) Message(protoreflect.FullName) protoreflect.MessageDescriptor { return nil }

// Same is never true.
func (Alone) Same(protoreflect.FieldDescriptor) bool { return false }

// Generator makes samples for the messages of one schema.
type Generator struct {
	validator protovalidate.Validator
	other     Other
	random    *rand.Rand
	made      map[string][]protoreflect.Message // messages by name and depth
	plain     map[string][]candidate            // values of fields without rules, by type
	parts     part.Cutter
	budget    [maxDepth + 1]int // that remains
	partial   bool
}

// Validator returns a validator that sees Now as the present and knows the predefined rules of a schema. A schema that
// does not import protovalidate has no rules, and gets one that lets all pass: each start of protovalidate reads the
// descriptors of the whole program, which takes longer than the rest of most comparisons.
func Validator(of *schema.FileSet) (protovalidate.Validator, error) {
	if !of.HasRules() {
		return noRules{}, nil
	}
	v, err := protovalidate.New(protovalidate.WithExtensionTypeResolver(of),
		protovalidate.WithNowFunc(func() *timestamppb.Timestamp { return timestamppb.New(Now) }))
	if err != nil {
		return nil, fmt.Errorf("validator: %w", err)
	}
	return v, nil
}

type noRules struct{}

func (noRules) Validate(proto.Message, ...protovalidate.ValidationOption) error { return nil }

// New returns a generator for messages that the validator lets pass.
func New(v protovalidate.Validator, other Other, seed uint64) *Generator {
	return &Generator{
		validator: v, other: other, random: rand.New(rand.NewPCG(seed, seed)), made: map[string][]protoreflect.Message{},
		plain: map[string][]candidate{}, budget: budgets,
	}
}

// ErrNone says that no valid message was found.
var ErrNone = errors.New("no valid message was found")

// Messages returns valid messages of a type, the most typical one first. Errors are
// ErrNone and the context's.
func (g *Generator) Messages(ctx context.Context, m protoreflect.MessageDescriptor) ([]protoreflect.Message, error) {
	list := g.messages(ctx, m, 0)
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case len(list) == 0:
		return nil, fmt.Errorf("%s: %w", m.FullName(), ErrNone)
	}
	return list, nil
}

// Partial says whether messages were left out because they did not fit the budget: the
// samples do not show all values of all fields.
func (g *Generator) Partial() bool { return g.partial }

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

// rules returns what both schemas say about a field, own first, and whether its own
// say nothing, so that all values pass.
func (g *Generator) rules(f protoreflect.FieldDescriptor) (list []*validate.FieldRules, free bool) {
	own, err := protovalidate.ResolveFieldRules(f)
	if err == nil && own != nil {
		list = append(list, own)
	}
	if m := g.other.Message(f.ContainingMessage().FullName()); m != nil {
		if there := m.Fields().ByNumber(f.Number()); there != nil {
			if r, err := protovalidate.ResolveFieldRules(there); err == nil && r != nil {
				list = append(list, r)
			}
		}
	}
	return list, err == nil && own == nil
}
