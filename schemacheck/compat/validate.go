package compat

import (
	"strings"

	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/parley-chat/parley/schemacheck/compat/rule"
	"github.com/parley-chat/parley/schemacheck/compat/schema"
)

// ruleInHead adds a finding about validation. Requests are read by the server
// alone, which validates with the new rules: there only tighter ones break, and
// clients do not validate answers.
func (c *comparer) ruleInHead(id rule.ID, at protoreflect.Descriptor, changes ...change) {
	if f, ok := c.applies(id, at); ok {
		c.inHead(id, at, append(changes, f...)...)
	}
}

// ruleInBase is ruleInHead for what head has lost.
func (c *comparer) ruleInBase(id rule.ID, at protoreflect.Descriptor, changes ...change) {
	if f, ok := c.applies(id, at); ok {
		c.inBase(id, at, append(changes, f...)...)
	}
}

// applies says whether a rule about validation applies to an element, and what the scope
// changes in it.
func (c *comparer) applies(id rule.ID, at protoreflect.Descriptor) ([]change, bool) {
	if !c.api {
		return nil, true
	}
	m, _ := at.Parent().(protoreflect.MessageDescriptor) // of a oneof
	switch d := at.(type) {
	case protoreflect.MessageDescriptor:
		m = d
	case protoreflect.FieldDescriptor:
		m = d.ContainingMessage() // an extension is declared somewhere else
	}
	if m == nil || !c.requests[m.FullName()] || !newReadsOld(id) {
		return nil, false
	}
	return []change{reads(true, false)}, true
}

func newReadsOld(id rule.ID) bool {
	r, _ := rule.ByID(id)
	return r.NewReadsOld
}

// Rule ids by what happened to a rule of protovalidate.
var ruleIDs = map[constraintKind]map[constraintEffect]rule.ID{
	limitConstraint: {valuesFewer: rule.ValidationTightened, valuesMore: rule.ValidationLoosened,
		valuesOther: rule.ValidationReplaced, valuesSame: rule.ValidationRewritten},
	requiredConstraint: {valuesFewer: rule.ValidationRequiredAdded,
		valuesMore: rule.ValidationRequiredRemoved},
	expressionConstraint: {valuesFewer: rule.CELRuleAdded, valuesMore: rule.CELRuleRemoved,
		valuesOther: rule.ValidationReplaced, valuesSame: rule.ValidationRewritten},
	lengthConstraint: {valuesFewer: rule.ValidationTightened, valuesMore: rule.MaxItemsRaised,
		valuesSame: rule.ValidationRewritten},
	ignoreConstraint: {valuesFewer: rule.ValidationTightened, valuesMore: rule.ValidationDisabled,
		valuesSame: rule.ValidationRewritten},
}

func (c *comparer) reportConstraints(at protoreflect.Descriptor, changes []constraintChange) {
	for _, ch := range changes {
		values := ch.Base + " to " + ch.Head
		c.ruleInHead(ruleIDs[ch.Kind][ch.Effect], at, detail(strings.TrimSpace(ch.Path+" "+values)))
	}
}

// compareRules compares the rules of two fields of the same type.
func (c *comparer) compareRules(b, h protoreflect.FieldDescriptor) {
	was, is := withPredefined(c.base, fieldRules(b)),
		withPredefined(c.head, fieldRules(h))
	c.reportConstraints(h, fieldConstraints(was, is, c.trial.ZeroPasses(b), c.trial.ZeroPasses(h)))
	be, he := b.Enum(), h.Enum()
	if b.IsMap() {
		be, he = b.MapValue().Enum(), h.MapValue().Enum()
	}
	if be == nil || he == nil || !refusesUnknown(was) && b.Cardinality() != protoreflect.Required {
		return
	}
	for v := range schema.All(he.Values()) {
		if be.Values().ByNumber(v.Number()) == nil && c.valueBreaks(b, h, v) {
			c.ruleInHead(rule.EnumValueAddedInvalid, h, detail(string(v.Name())))
		}
	}
}

// valueBreaks says whether writers may set a new enum value that old readers refuse: as
// the number that they see in binary, or as the unset field that is left of it in JSON.
func (c *comparer) valueBreaks(b, h protoreflect.FieldDescriptor, v protoreflect.EnumValueDescriptor) bool {
	if b.IsList() || b.IsMap() || b.Cardinality() == protoreflect.Required {
		return true
	}
	return !c.trial.ValueRefused(h, v) && (c.trial.ValueRefused(b, v) || c.trial.ZeroRefused(b))
}

// messageRules compares the rules that stand on messages.
func (c *comparer) messageRules(b, h protoreflect.MessageDescriptor) {
	was, err1 := protovalidate.ResolveMessageRules(b)
	is, err2 := protovalidate.ResolveMessageRules(h)
	if err1 == nil && err2 == nil {
		c.reportConstraints(h, messageConstraints(was, is))
	}
}
