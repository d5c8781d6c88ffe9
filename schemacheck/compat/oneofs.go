package compat

import (
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/parley-chat/parley/schemacheck/compat/rule"
	"github.com/parley-chat/parley/schemacheck/compat/schema"
)

// oneofs reports fields that changed their oneof. New and lost cases are reported
// with the fields.
func (c *comparer) oneofs(b, h protoreflect.MessageDescriptor) {
	entered := map[protoreflect.Name][]protoreflect.FieldDescriptor{} // new oneofs and the fields of base in them
	split, merged, renamed := map[protoreflect.Name]bool{}, map[protoreflect.Name]bool{}, map[protoreflect.Name]bool{}
	went, came := schema.OneofMoves(b, c.fieldsOf(h))
	for _, bf := range schema.ByNumber(b) {
		hf := c.fieldsOf(h).ByNumber(bf.Number())
		if hf == nil || hf.Name() != bf.Name() {
			continue
		}
		bo, ho := schema.Oneof(bf), schema.Oneof(hf)
		switch {
		case schema.SameOneof(bf, hf):
			if bo != nil && bo.Name() != ho.Name() && !renamed[ho.Name()] {
				renamed[ho.Name()] = true
				c.inHead(rule.OneofRenamed, ho, detail(string(bo.Name()), string(ho.Name())))
			}
		case ho == nil:
			c.inHead(rule.FieldOutOfOneof, hf)
		case b.Oneofs().ByName(ho.Name()) != nil && !b.Oneofs().ByName(ho.Name()).IsSynthetic():
			c.inHead(rule.FieldToExistingOneof, hf)
		case bo == nil:
			entered[ho.Name()] = append(entered[ho.Name()], bf)
		default:
			if went[bo.Name()] > 1 && !split[ho.Name()] {
				split[ho.Name()] = true
				c.inHead(rule.OneofSplit, ho)
			}
			if came[ho.Name()] > 1 && !merged[ho.Name()] {
				merged[ho.Name()] = true
				c.inHead(rule.OneofsMerged, ho)
			}
		}
	}
	for name, fields := range entered {
		into := h.Oneofs().ByName(name)
		switch {
		case merged[name]: // said already
		case len(fields) > 1:
			c.inHead(rule.SeveralFieldsToNewOneof, into)
		case fields[0].HasPresence():
			c.inHead(rule.OptionalFieldToNewOneof, into)
		default:
			c.inHead(rule.FieldToNewOneof, into)
		}
	}
	c.oneofRules(b, h)
}

// oneofRules compares what validation requires of oneofs: those of both sides, new ones
// that require a case, and required ones that head has lost.
func (c *comparer) oneofRules(b, h protoreflect.MessageDescriptor) {
	for o := range schema.All(h.Oneofs()) {
		was := schema.OneofBefore(o, b, c.fieldsOf(b))
		switch {
		case oneofRequired(o) == (was != nil && oneofRequired(was)):
		case !oneofRequired(o):
			c.ruleInHead(rule.ValidationRequiredRemoved, o)
		case was == nil:
			c.ruleInHead(rule.RequiredOneofAdded, o)
		default:
			c.ruleInHead(rule.ValidationRequiredAdded, o)
		}
	}
	for o := range schema.All(b.Oneofs()) {
		if oneofRequired(o) && !schema.OneofStays(o, h, c.fieldsOf(h)) {
			c.ruleInBase(rule.RequiredOneofRemoved, o)
		}
	}
}
