package compat

import (
	"fmt"
	"math"
	"math/big"
	"slices"
	"strings"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// rules compares the rules of one type, "string" or "repeated".
func (c *collector) rules(path string, b, h protoreflect.Message) {
	done := map[protoreflect.Name]bool{"example": true}
	for _, size := range []string{"len", "bytes", "items", "pairs"} {
		c.size(path, size, b, h, done)
	}
	c.numbers(path, b, h, done)
	c.constant(path, b, h, done)
	c.format(path, b, h, done)
	fields := b.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if done[f.Name()] || (!b.Has(f) && !h.Has(f)) {
			continue
		}
		at := path + "." + string(f.Name())
		switch bv, hv := b.Get(f), h.Get(f); {
		case f.Name() == "in" || f.Name() == "not_in":
			c.set(at, f, b, h)
		case f.Name() == "items" || f.Name() == "keys" || f.Name() == "values":
			bf, _ := bv.Message().Interface().(*validate.FieldRules)
			hf, _ := hv.Message().Interface().(*validate.FieldRules)
			c.fields(at+".", orEmpty(bf), orEmpty(hf))
		case f.Kind() == protoreflect.BoolKind && !f.IsList():
			c.flag(at, bv.Bool(), hv.Bool())
		default:
			c.opaque(at, valueText(f, b), valueText(f, h))
		}
	}
	c.predefined(path, b, h)
}

// opaque rules can only be there or not, or differ.
func (c *collector) opaque(path, b, h string) {
	switch {
	case b == h:
	case b == "":
		c.add(path, b, h, limitConstraint, valuesFewer)
	case h == "":
		c.add(path, b, h, limitConstraint, valuesMore)
	default:
		c.add(path, b, h, limitConstraint, valuesOther)
	}
}

func (c *collector) flag(path string, b, h bool) {
	switch {
	case !b && h:
		c.add(path, "false", "true", limitConstraint, valuesFewer)
	case b && !h:
		c.add(path, "true", "false", limitConstraint, valuesMore)
	}
}

// predefined compares rules that extensions add: whether they are used, with what, and
// the expressions that they stand for.
func (c *collector) predefined(path string, b, h protoreflect.Message) {
	texts := func(m protoreflect.Message) (uses, meanings map[string]string) {
		uses, meanings = map[string]string{}, map[string]string{}
		for f := range m.Range {
			if f.IsExtension() {
				name := "(" + string(f.FullName()) + ")"
				uses[name], meanings[name] = valueText(f, m), meaning(f)
			}
		}
		if u := m.GetUnknown(); len(u) > 0 {
			uses["(unknown)"] = fmt.Sprintf("%x", []byte(u))
		}
		return uses, meanings
	}
	was, meant := texts(b)
	is, means := texts(h)
	for _, name := range keys(was, is) {
		c.opaque(path+"."+name, was[name], is[name])
		if was[name] == is[name] && meant[name] != means[name] {
			c.add(path+"."+name, meant[name], means[name], expressionConstraint, valuesOther)
		}
	}
}

// meaning is what a predefined rule does: its expressions. Ids and messages decide
// nothing.
func meaning(rule protoreflect.FieldDescriptor) string {
	r, err := protovalidate.ResolvePredefinedRules(rule)
	if err != nil {
		return ""
	}
	var expressions []string
	for _, c := range r.GetCel() {
		expressions = append(expressions, c.GetExpression())
	}
	slices.Sort(expressions)
	return strings.Join(expressions, ", ")
}

// size compares lower and upper bounds of a length; an exact length is both.
func (c *collector) size(path, unit string, b, h protoreflect.Message, done map[protoreflect.Name]bool) {
	exact := protoreflect.Name("len")
	if unit == "bytes" {
		exact = "len_bytes"
	}
	low, high := protoreflect.Name("min_"+unit), protoreflect.Name("max_"+unit)
	if b.Descriptor().Fields().ByName(low) == nil {
		return
	}
	if unit == "items" || unit == "pairs" {
		exact = ""
	}
	done[low], done[high] = true, true
	if exact != "" {
		done[exact] = true
	}
	bounds := func(m protoreflect.Message) (lo, hi uint64, written string) {
		hi = math.MaxUint64
		for _, name := range []protoreflect.Name{low, high, exact} {
			v, ok := get(m, name)
			if !ok {
				continue
			}
			written += " " + string(name)
			if name != high {
				lo = v.Uint()
			}
			if name != low {
				hi = v.Uint()
			}
		}
		return lo, hi, written
	}
	blo, bhi, bw := bounds(b)
	hlo, hhi, hw := bounds(h)
	if blo != hlo {
		effect := valuesFewer
		if hlo < blo {
			effect = valuesMore
		}
		c.add(path+"."+string(low), fmt.Sprint(blo), fmt.Sprint(hlo), limitConstraint, effect)
	}
	if bhi != hhi {
		kind, effect := limitConstraint, valuesFewer
		if hhi > bhi {
			effect = valuesMore
		}
		if exact == "" {
			kind = lengthConstraint
		}
		c.add(path+"."+string(high), upper(bhi), upper(hhi), kind, effect)
	}
	if blo == hlo && bhi == hhi && bw != hw {
		c.add(path, strings.TrimSpace(bw), strings.TrimSpace(hw), limitConstraint, valuesSame)
	}
}

func upper(n uint64) string {
	if n == math.MaxUint64 {
		return "unset"
	}
	return fmt.Sprint(n)
}

// constant compares const.
func (c *collector) constant(path string, b, h protoreflect.Message, done map[protoreflect.Name]bool) {
	if f := b.Descriptor().Fields().ByName("const"); f != nil {
		done["const"] = true
		c.opaque(path+".const", valueText(f, b), valueText(f, h))
	}
}

// format compares the well-known formats of strings and bytes, of which one holds.
func (c *collector) format(path string, b, h protoreflect.Message, done map[protoreflect.Name]bool) {
	o := b.Descriptor().Oneofs().ByName("well_known")
	if o == nil {
		return
	}
	of := func(m protoreflect.Message) string {
		f := m.WhichOneof(o)
		switch {
		case f == nil || f.Kind() == protoreflect.BoolKind && !m.Get(f).Bool():
			return ""
		case f.Kind() == protoreflect.BoolKind:
			return string(f.Name())
		}
		return valueText(f, m)
	}
	for i := range o.Fields().Len() {
		done[o.Fields().Get(i).Name()] = true
	}
	c.opaque(path+" format", of(b), of(h))
	// Strict is on unless it is switched off.
	if f := b.Descriptor().Fields().ByName("strict"); f != nil {
		done["strict"] = true
		strict := func(m protoreflect.Message) bool { return !m.Has(f) || m.Get(f).Bool() }
		c.flag(path+".strict", strict(b), strict(h))
	}
}

// set compares in and not_in.
func (c *collector) set(path string, f protoreflect.FieldDescriptor, b, h protoreflect.Message) {
	was, is := elements(f, b), elements(f, h)
	more, less := false, false // in the list
	for _, e := range is {
		more = more || !slices.Contains(was, e)
	}
	for _, e := range was {
		less = less || !slices.Contains(is, e)
	}
	if f.Name() == "in" { // no list at all lets everything pass
		switch {
		case len(was) == 0:
			more, less = false, true
		case len(is) == 0:
			more, less = true, false
		}
	} else {
		more, less = less, more
	}
	effect := valuesSame
	switch {
	case more && less:
		effect = valuesOther
	case more:
		effect = valuesMore
	case less:
		effect = valuesFewer
	}
	if effect != valuesSame {
		c.add(path, "["+strings.Join(was, ", ")+"]", "["+strings.Join(is, ", ")+"]", limitConstraint, effect)
	}
}

func elements(f protoreflect.FieldDescriptor, m protoreflect.Message) []string {
	var list []string
	for i := range m.Get(f).List().Len() {
		list = append(list, scalarText(m.Get(f).List().Get(i)))
	}
	return list
}

func text(list []string) string { return strings.Join(list, ", ") }

// valueText writes a set field as text, "" if it is not set.
func valueText(f protoreflect.FieldDescriptor, m protoreflect.Message) string {
	if !m.Has(f) {
		return ""
	}
	if f.IsList() {
		return "[" + text(elements(f, m)) + "]"
	}
	return scalarText(m.Get(f))
}

func scalarText(v protoreflect.Value) string {
	switch x := v.Interface().(type) {
	case string:
		return fmt.Sprintf("%q", x)
	case []byte:
		return fmt.Sprintf("%q", x)
	case protoreflect.Message:
		if n, ok := nanos(x); ok {
			return n.FloatString(0) + "ns"
		}
		b, _ := proto.MarshalOptions{Deterministic: true}.Marshal(x.Interface())
		return fmt.Sprintf("%x", b)
	}
	return fmt.Sprint(v.Interface())
}

// nanos reads a Duration or a Timestamp.
func nanos(m protoreflect.Message) (*big.Rat, bool) {
	name := m.Descriptor().FullName()
	if name != "google.protobuf.Duration" && name != "google.protobuf.Timestamp" {
		return nil, false
	}
	s, _ := get(m, "seconds")
	n, _ := get(m, "nanos")
	total := new(big.Int)
	if s.IsValid() {
		total.Mul(big.NewInt(s.Int()), big.NewInt(1e9))
	}
	if n.IsValid() {
		total.Add(total, big.NewInt(n.Int()))
	}
	return new(big.Rat).SetInt(total), true
}
