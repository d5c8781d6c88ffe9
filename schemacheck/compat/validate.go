package compat

import (
	"fmt"
	"strings"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/parley-chat/parley/schemacheck/compat/constraint"
	"github.com/parley-chat/parley/schemacheck/compat/schema"
)

// fieldRules returns the rules of a field; nil if it has none.
func fieldRules(f protoreflect.FieldDescriptor) *validate.FieldRules {
	r, err := protovalidate.ResolveFieldRules(f)
	if err != nil {
		return nil
	}
	return r
}

func hasRules(f protoreflect.FieldDescriptor) bool {
	r := fieldRules(f)
	return r != nil && proto.Size(r) > 0 && r.GetIgnore() != validate.Ignore_IGNORE_ALWAYS
}

func oneofRequired(o protoreflect.OneofDescriptor) bool {
	r, err := protovalidate.ResolveOneofRules(o)
	return err == nil && r.GetRequired()
}

// ruleInHead adds a finding about validation. Requests are read by the server
// alone, which validates with the new rules: there only tighter ones break, and
// clients do not validate answers.
func (c *comparer) ruleInHead(id string, at protoreflect.Descriptor, changes ...change) {
	if c.api {
		m, ok := at.(protoreflect.MessageDescriptor)
		if !ok {
			m, _ = at.Parent().(protoreflect.MessageDescriptor)
		}
		if m == nil || !c.requests[m.FullName()] || !table()[id].NewReadsOld {
			return
		}
		changes = append(changes, reads(true, false))
	}
	c.inHead(id, at, changes...)
}

// zeroRefused says whether a field without presence is refused when nobody sets
// it: then its rules make it required.
func (c *comparer) zeroRefused(f protoreflect.FieldDescriptor) bool {
	r := fieldRules(f)
	if r == nil || f.ContainingMessage().IsMapEntry() {
		return false
	}
	if f.HasPresence() && !r.GetRequired() {
		return false
	}
	return c.validate(dynamicpb.NewMessage(f.ContainingMessage()), f) != nil
}

// validate runs the rules of a message, or of one of its fields.
func (c *comparer) validate(m proto.Message, f protoreflect.FieldDescriptor) error {
	in := c.head
	if c.base.Messages[m.ProtoReflect().Descriptor().FullName()] == m.ProtoReflect().Descriptor() {
		in = c.base
	}
	v := c.validators[in]
	if v == nil {
		var err error
		if v, err = protovalidate.New(protovalidate.WithExtensionTypeResolver(in)); err != nil {
			return fmt.Errorf("validator: %w", err)
		}
		c.validators[in] = v
	}
	return v.Validate(m, protovalidate.WithFilter(protovalidate.FilterFunc(
		func(_ protoreflect.Message, d protoreflect.Descriptor) bool {
			return f == nil || d.FullName() == f.FullName()
		})))
}

// named reads predefined rules, which are extensions of a schema's own.
func named(s *schema.Side, r *validate.FieldRules) *validate.FieldRules {
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

// Rule ids by what happened to a rule of protovalidate.
var ruleIDs = map[constraint.Kind]map[constraint.Effect]string{
	constraint.Plain:    {constraint.Tighter: "Y01", constraint.Looser: "Y02", constraint.Replaced: "Y14", constraint.Rewritten: "Y17"},
	constraint.Required: {constraint.Tighter: "Y03", constraint.Looser: "Y04"},
	constraint.CEL:      {constraint.Tighter: "Y10", constraint.Looser: "Y11", constraint.Replaced: "Y14", constraint.Rewritten: "Y17"},
	constraint.Longest:  {constraint.Tighter: "Y01", constraint.Looser: "Y13", constraint.Rewritten: "Y17"},
	constraint.Ignore:   {constraint.Tighter: "Y01", constraint.Looser: "Y16", constraint.Rewritten: "Y17"},
}

func (c *comparer) report(at protoreflect.Descriptor, changes []constraint.Change) {
	for _, ch := range changes {
		values := ch.Base + " to " + ch.Head
		c.ruleInHead(ruleIDs[ch.Kind][ch.Effect], at, detail(strings.TrimSpace(ch.Path+" "+values)))
	}
}

// compareRules compares the rules of two fields of the same type.
func (c *comparer) compareRules(b, h protoreflect.FieldDescriptor) {
	was, is := named(c.base, fieldRules(b)), named(c.head, fieldRules(h))
	c.report(h, constraint.Fields(was, is))
	be, he := b.Enum(), h.Enum()
	if b.IsMap() {
		be, he = b.MapValue().Enum(), h.MapValue().Enum()
	}
	if be == nil || he == nil || !constraint.RefusesUnknown(was) && b.Cardinality() != protoreflect.Required {
		return
	}
	for v := range schema.All(he.Values()) {
		if be.Values().ByNumber(v.Number()) == nil {
			c.ruleInHead("Y09", h, detail(string(v.Name())))
		}
	}
}

// messageRules compares the rules that stand on messages.
func (c *comparer) messageRules(b, h protoreflect.MessageDescriptor) {
	was, err1 := protovalidate.ResolveMessageRules(b)
	is, err2 := protovalidate.ResolveMessageRules(h)
	if err1 == nil && err2 == nil {
		c.report(h, constraint.Messages(was, is))
	}
}
