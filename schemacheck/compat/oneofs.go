package compat

import (
	"google.golang.org/protobuf/reflect/protoreflect"
)

// sameOneof says whether a field is in the same oneof, or in none, on both sides.
func sameOneof(b, h protoreflect.FieldDescriptor) bool {
	bo, ho := oneof(b), oneof(h)
	if bo == nil || ho == nil {
		return bo == nil && ho == nil
	}
	return bo.Name() == ho.Name() || renamedOneof(bo, ho)
}

// renamedOneof: neither name is on the other side and the cases that both messages
// have are the same.
func renamedOneof(b, h protoreflect.OneofDescriptor) bool {
	bm, hm := b.Parent().(protoreflect.MessageDescriptor), h.Parent().(protoreflect.MessageDescriptor)
	if bm.Oneofs().ByName(h.Name()) != nil || hm.Oneofs().ByName(b.Name()) != nil {
		return false
	}
	for f := range all(b.Fields()) {
		if hm.Fields().ByNumber(f.Number()) != nil && h.Fields().ByNumber(f.Number()) == nil {
			return false
		}
	}
	for f := range all(h.Fields()) {
		if bm.Fields().ByNumber(f.Number()) != nil && b.Fields().ByNumber(f.Number()) == nil {
			return false
		}
	}
	return true
}

// oneofs reports fields that changed their oneof. New and lost cases are reported
// with the fields.
func (c *comparer) oneofs(b, h protoreflect.MessageDescriptor) {
	entered := map[protoreflect.Name][]protoreflect.FieldDescriptor{} // new oneofs and the fields of base in them
	split := map[protoreflect.Name]bool{}
	renamed := map[protoreflect.Name]bool{}
	for _, bf := range byNumber(b) {
		hf := h.Fields().ByNumber(bf.Number())
		if hf == nil || hf.Name() != bf.Name() {
			continue
		}
		bo, ho := oneof(bf), oneof(hf)
		switch {
		case sameOneof(bf, hf):
			if bo != nil && bo.Name() != ho.Name() && !renamed[ho.Name()] {
				renamed[ho.Name()] = true
				c.inHead("O08", ho, detail(string(bo.Name()), string(ho.Name())))
			}
		case ho == nil:
			c.inHead("O05", hf)
		case b.Oneofs().ByName(ho.Name()) != nil && oneofIsReal(b.Oneofs().ByName(ho.Name())):
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
	for o := range all(h.Oneofs()) {
		was := b.Oneofs().ByName(o.Name())
		if was == nil || !oneofIsReal(was) || oneofRequired(was) == oneofRequired(o) {
			continue
		}
		if oneofRequired(o) {
			c.ruleInHead("Y03", o)
		} else {
			c.ruleInHead("Y04", o)
		}
	}
}

func oneofIsReal(o protoreflect.OneofDescriptor) bool { return !o.IsSynthetic() }
