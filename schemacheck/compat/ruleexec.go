package compat

import (
	"fmt"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/parley-chat/parley/schemacheck/compat/part"
	"github.com/parley-chat/parley/schemacheck/compat/schema"
)

// ruleRunner runs the validation rules of one field on single values: on nothing, on zero, on an enum value.
// protovalidate says what rules mean. One goroutine uses it.
type ruleRunner struct {
	base, head *schema.FileSet
	parts      part.Cutter
	validators map[*schema.FileSet]protovalidate.Validator // made when a rule must be run
}

// newRuleRunner returns a runner.
func newRuleRunner(base, head *schema.FileSet) *ruleRunner {
	return &ruleRunner{base: base, head: head, validators: map[*schema.FileSet]protovalidate.Validator{}}
}

// Message runs a side's rules on a message.
func (r *ruleRunner) Message(in *schema.FileSet, m proto.Message) error { return r.run(in, m, nil) }

// fieldRules returns the rules of a field; nil if it has none.
func fieldRules(f protoreflect.FieldDescriptor) *validate.FieldRules {
	r, err := protovalidate.ResolveFieldRules(f)
	if err != nil {
		return nil
	}
	return r
}

// oneofRequired says whether validation requires a case of a oneof.
func oneofRequired(o protoreflect.OneofDescriptor) bool {
	r, err := protovalidate.ResolveOneofRules(o)
	return err == nil && r.GetRequired()
}

// ZeroRefused reports whether a field without presence is refused when the producer does
// not set it: then its rules make it required.
func (r *ruleRunner) ZeroRefused(f protoreflect.FieldDescriptor) bool {
	rules := fieldRules(f)
	if rules == nil || f.ContainingMessage().IsMapEntry() {
		return false
	}
	if f.HasPresence() && !rules.GetRequired() {
		return false
	}
	like := r.parts.Field(f)
	return r.run(r.sideOf(f), dynamicpb.NewMessage(like.ContainingMessage()), like) != nil
}

// sideOf returns the side that declares a field.
func (r *ruleRunner) sideOf(f protoreflect.FieldDescriptor) *schema.FileSet {
	if f.IsExtension() {
		if r.base.Extensions[f.ContainingMessage().FullName()][f.Number()] == f {
			return r.base
		}
		return r.head
	}
	if m := f.ContainingMessage(); r.base.Messages[m.FullName()] == m {
		return r.base
	}
	return r.head
}

// run runs a side's rules of a message, or of one of its fields.
func (r *ruleRunner) run(in *schema.FileSet, m proto.Message, f protoreflect.FieldDescriptor) error {
	if !in.HasRules() {
		return nil
	}
	v := r.validators[in]
	if v == nil {
		var err error
		if v, err = protovalidate.New(protovalidate.WithExtensionTypeResolver(in)); err != nil {
			return fmt.Errorf("validator: %w", err)
		}
		r.validators[in] = v
	}
	return v.Validate(m, protovalidate.WithFilter(protovalidate.FilterFunc(
		func(_ protoreflect.Message, d protoreflect.Descriptor) bool {
			return f == nil || d.FullName() == f.FullName()
		})))
}

// withPredefined returns rules with the predefined ones read, which are extensions of a schema's own.
func withPredefined(s *schema.FileSet, r *validate.FieldRules) *validate.FieldRules {
	if r == nil {
		return nil
	}
	r = proto.CloneOf(r)
	m := r.ProtoReflect()
	if f := m.WhichOneof(m.Descriptor().Oneofs().ByName("type")); f != nil {
		typed := m.Mutable(f).Message()
		unknown := typed.GetUnknown()
		typed.SetUnknown(nil)
		if (proto.UnmarshalOptions{Merge: true, Resolver: s}).Unmarshal(unknown, typed.Interface()) != nil {
			typed.SetUnknown(unknown)
		}
	}
	return r
}

// ValueRefused says whether a field's own rules keep writers from an enum value.
func (r *ruleRunner) ValueRefused(f protoreflect.FieldDescriptor, v protoreflect.EnumValueDescriptor) bool {
	like := r.parts.Field(f)
	m := dynamicpb.NewMessage(like.ContainingMessage())
	m.Set(like, protoreflect.ValueOfEnum(v.Number()))
	return r.run(r.sideOf(f), m, like) != nil
}

// ZeroPasses returns a function that reports whether a field's rules accept a zero value
// that the producer sets. It is called for fields that are ignored while they are zero on
// one side only.
func (r *ruleRunner) ZeroPasses(f protoreflect.FieldDescriptor) func() bool {
	return func() bool {
		if f.Message() != nil && !f.IsMap() && !f.IsList() {
			return false
		}
		like := r.parts.Field(f)
		m := dynamicpb.NewMessage(like.ContainingMessage())
		if !f.IsList() && !f.IsMap() {
			m.Set(like, zero(like))
		}
		return r.run(r.sideOf(f), m, like) == nil
	}
}

// zero is the zero value of a field's kind, regardless of its default.
func zero(f protoreflect.FieldDescriptor) protoreflect.Value {
	switch v := f.Default(); v.Interface().(type) {
	case bool:
		return protoreflect.ValueOfBool(false)
	case int32:
		return protoreflect.ValueOfInt32(0)
	case int64:
		return protoreflect.ValueOfInt64(0)
	case uint32:
		return protoreflect.ValueOfUint32(0)
	case uint64:
		return protoreflect.ValueOfUint64(0)
	case float32:
		return protoreflect.ValueOfFloat32(0)
	case float64:
		return protoreflect.ValueOfFloat64(0)
	case string:
		return protoreflect.ValueOfString("")
	case []byte:
		return protoreflect.ValueOfBytes(nil)
	case protoreflect.EnumNumber:
		return protoreflect.ValueOfEnum(0)
	default:
		return v
	}
}
