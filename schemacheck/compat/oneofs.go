package compat

import (
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/parley-chat/parley/schemacheck/compat/schema"
)

// oneofs reports fields that changed their oneof. New and lost cases are reported
// with the fields.
func (c *comparer) oneofs(b, h protoreflect.MessageDescriptor) {
	entered := map[protoreflect.Name][]protoreflect.FieldDescriptor{} // new oneofs and the fields of base in them
	split := map[protoreflect.Name]bool{}
	renamed := map[protoreflect.Name]bool{}
	for _, bf := range schema.ByNumber(b) {
		hf := h.Fields().ByNumber(bf.Number())
		if hf == nil || hf.Name() != bf.Name() {
			continue
		}
		bo, ho := schema.Oneof(bf), schema.Oneof(hf)
		switch {
		case schema.SameOneof(bf, hf):
			if bo != nil && bo.Name() != ho.Name() && !renamed[ho.Name()] {
				renamed[ho.Name()] = true
				c.inHead("O08", ho, detail(string(bo.Name()), string(ho.Name())))
			}
		case ho == nil:
			c.inHead("O05", hf)
		case b.Oneofs().ByName(ho.Name()) != nil && !b.Oneofs().ByName(ho.Name()).IsSynthetic():
			c.inHead("O07", hf)
		case bo == nil:
			entered[ho.Name()] = append(entered[ho.Name()], bf)
		case !split[ho.Name()]:
			split[ho.Name()] = true
			c.inHead("O11", ho)
		}
	}
	for name, fields := range entered {
		into := h.Oneofs().ByName(name)
		switch {
		case len(fields) > 1:
			c.inHead("O06", into)
		case fields[0].HasPresence():
			c.inHead("O04", into)
		default:
			c.inHead("O03", into)
		}
	}
	for o := range schema.All(h.Oneofs()) {
		was := b.Oneofs().ByName(o.Name())
		if was == nil || was.IsSynthetic() || oneofRequired(was) == oneofRequired(o) {
			continue
		}
		if oneofRequired(o) {
			c.ruleInHead("Y03", o)
		} else {
			c.ruleInHead("Y04", o)
		}
	}
}
