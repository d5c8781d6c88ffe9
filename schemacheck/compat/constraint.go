package compat

import (
	"slices"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Effect is what a change does to the set of values that pass.
type constraintEffect int

// Effects of a change.
const (
	valuesSame  constraintEffect = iota // the same values pass
	valuesFewer                         // fewer
	valuesMore                          // more
	valuesOther                         // others, or it cannot be decided
)

// Kind distinguishes rules that are reported differently.
type constraintKind int

// Kinds of rules.
const (
	limitConstraint      constraintKind = iota // limits, sets, patterns, formats
	requiredConstraint                         // required
	expressionConstraint                       // expressions, and rules that span fields of a message
	lengthConstraint                           // upper bounds of lists and maps
	ignoreConstraint                           // ignore
)

// Change is one rule that differs.
type constraintChange struct {
	Path       string // "string.min_len", "repeated.items.string.pattern"
	Base, Head string // as written in a proto file; "unset" where there is none
	Kind       constraintKind
	Effect     constraintEffect
}

// Fields compares the rules of a field; nil stands for none. BaseZero and headZero say
// whether each side's rules let a zero pass that is set; they are asked when it matters
// only.
func fieldConstraints(base, head *validate.FieldRules, baseZero, headZero func() bool) []constraintChange {
	c := collector{baseZero: baseZero, headZero: headZero}
	c.fields("", orEmpty(base), orEmpty(head))
	return c.changes
}

// Messages compares the rules of a message; nil stands for none.
func messageConstraints(base, head *validate.MessageRules) []constraintChange {
	var c collector
	c.cel("cel", base.GetCel(), head.GetCel(), base.GetCelExpression(), head.GetCelExpression())
	was, is := map[string]string{}, map[string]string{}
	for _, o := range base.GetOneof() {
		was[text(o.GetFields())] = requiredText(o.GetRequired())
	}
	for _, o := range head.GetOneof() {
		is[text(o.GetFields())] = requiredText(o.GetRequired())
	}
	for _, fields := range keys(was, is) {
		b, h := was[fields], is[fields]
		switch {
		case b == h:
		case h == "" || b == "required" && h != "":
			c.add("oneof "+fields, b, h, expressionConstraint, valuesMore)
		default:
			c.add("oneof "+fields, b, h, expressionConstraint, valuesFewer)
		}
	}
	return c.changes
}

func requiredText(required bool) string {
	if required {
		return "required"
	}
	return "optional"
}

// RefusesUnknown says whether a reader with these rules may refuse an enum value that
// its enum does not have: in binary it sees the bare number, in JSON nothing at all,
// so that rules about what must be there refuse it too.
func refusesUnknown(r *validate.FieldRules) bool {
	if r.GetIgnore() == validate.Ignore_IGNORE_ALWAYS {
		return false
	}
	e := r.GetEnum()
	return r.GetRequired() || len(r.GetCel())+len(r.GetCelExpression()) > 0 ||
		e.GetDefinedOnly() || len(e.GetIn()) > 0 || e.HasConst() || slices.Contains(e.GetNotIn(), 0) ||
		r.GetRepeated().GetMinItems() > 0 || r.GetRepeated().HasItems() && refusesUnknown(r.GetRepeated().GetItems()) ||
		r.GetMap().GetMinPairs() > 0 || r.GetMap().HasValues() && refusesUnknown(r.GetMap().GetValues())
}

func orEmpty(r *validate.FieldRules) *validate.FieldRules {
	if r == nil {
		return &validate.FieldRules{}
	}
	return r
}

type collector struct {
	changes            []constraintChange
	baseZero, headZero func() bool
}

func (c *collector) add(path, base, head string, k constraintKind, e constraintEffect) {
	c.changes = append(c.changes, constraintChange{Path: path, Base: or(base, "unset"), Head: or(head, "unset"),
		Kind: k, Effect: e})
}

func or(s, empty string) string {
	if s == "" {
		return empty
	}
	return s
}

func (c *collector) fields(path string, b, h *validate.FieldRules) {
	const always = validate.Ignore_IGNORE_ALWAYS
	off := func(r *validate.FieldRules) bool { return r.GetIgnore() == always }
	switch {
	case off(b) && off(h):
		return
	case off(h):
		c.add(path+"ignore", b.GetIgnore().String(), h.GetIgnore().String(), ignoreConstraint, valuesMore)
		return
	case off(b):
		c.add(path+"ignore", b.GetIgnore().String(), h.GetIgnore().String(), ignoreConstraint, valuesFewer)
		return
	case b.GetIgnore() != h.GetIgnore():
		effect := valuesFewer
		switch {
		case !restricts(b) && !restricts(h), path == "" && c.ignoresNothing(b, h):
			effect = valuesSame
		case h.GetIgnore() == validate.Ignore_IGNORE_IF_ZERO_VALUE:
			effect = valuesMore
		}
		c.add(path+"ignore", b.GetIgnore().String(), h.GetIgnore().String(), ignoreConstraint, effect)
	}
	if b.GetRequired() != h.GetRequired() {
		effect := valuesFewer
		if b.GetRequired() {
			effect = valuesMore
		}
		c.add(path+"required", "", "", requiredConstraint, effect)
		c.changes[len(c.changes)-1].Base, c.changes[len(c.changes)-1].Head = boolText(b.GetRequired()),
			boolText(h.GetRequired())
	}
	c.cel(path+"cel", b.GetCel(), h.GetCel(), b.GetCelExpression(), h.GetCelExpression())
	types := b.ProtoReflect().Descriptor().Oneofs().ByName("type").Fields()
	for i := range types.Len() {
		f := types.Get(i)
		bm, hm := b.ProtoReflect().Get(f).Message(), h.ProtoReflect().Get(f).Message()
		if bm.IsValid() || hm.IsValid() {
			c.rules(path+string(f.Name()), bm, hm)
		}
	}
}

// ignoresNothing says whether ignoring zeros, which one side does, lets nothing more
// pass: the rules of the other side let zeros pass anyway.
func (c *collector) ignoresNothing(b, h *validate.FieldRules) bool {
	const zeros = validate.Ignore_IGNORE_IF_ZERO_VALUE
	return h.GetIgnore() == zeros && c.baseZero() || b.GetIgnore() == zeros && c.headZero()
}

// restricts says whether rules hold anything but ignore.
func restricts(r *validate.FieldRules) bool {
	clone := proto.CloneOf(r)
	clone.ClearIgnore()
	return proto.Size(clone) > 0
}

func boolText(b bool) string {
	if b {
		return "true"
	}
	return "false"
}

// cel compares expressions. Those of the same id replace each other; messages and
// ids alone decide nothing.
func (c *collector) cel(path string, base, head []*validate.Rule, baseOnly, headOnly []string) {
	was, is := map[string]string{}, map[string]string{} // expression to id
	for _, r := range base {
		was[r.GetExpression()] = r.GetId()
	}
	for _, r := range head {
		is[r.GetExpression()] = r.GetId()
	}
	for _, e := range baseOnly {
		was[e] = ""
	}
	for _, e := range headOnly {
		is[e] = ""
	}
	byID := map[string]string{} // id to expression, of those only in head
	for e, id := range is {
		if _, ok := was[e]; !ok && id != "" {
			byID[id] = e
		}
	}
	for _, e := range keys(was, is) {
		id, inBase := was[e]
		to, inHead := is[e]
		switch {
		case inBase && inHead && id != to:
			c.add(path, id, to, expressionConstraint, valuesSame)
		case inBase && inHead:
		case inBase && byID[id] != "":
			c.add(path+" "+id, e, byID[id], expressionConstraint, valuesOther)
		case inBase:
			c.add(path+" "+id, e, "", expressionConstraint, valuesMore)
		case to != "" && slices.Contains(values(was), to) && !has(is, was, to):
		default:
			c.add(path+" "+to, "", e, expressionConstraint, valuesFewer)
		}
	}
}

// has says whether an expression of the given id is on both sides.
func has(is, was map[string]string, id string) bool {
	for e, i := range was {
		if _, both := is[e]; both && i == id {
			return true
		}
	}
	return false
}

func values(m map[string]string) []string {
	var list []string
	for _, v := range m {
		list = append(list, v)
	}
	return list
}

func keys(maps ...map[string]string) []string {
	var list []string
	for _, m := range maps {
		for k := range m {
			list = append(list, k)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// get returns a field's value and whether it is set.
func get(m protoreflect.Message, name protoreflect.Name) (protoreflect.Value, bool) {
	f := m.Descriptor().Fields().ByName(name)
	if f == nil || !m.Has(f) {
		return protoreflect.Value{}, false
	}
	return m.Get(f), true
}
