package compat

import (
	"errors"
	"maps"
	"slices"

	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/parley-chat/parley/schemacheck/compat/rule"
)

// headAlone checks what the verdicts rely on in head alone. A mistake that base has already
// is a warning: it cannot be repaired without a break.
func (c *comparer) headAlone() {
	if c.o.Scope == API {
		return
	}
	c.api, c.current = false, ""
	c.evaluable()
	key := func(id rule.ID, at protoreflect.Descriptor) string { return string(id) + " " + string(at.FullName()) }
	had := map[string]bool{}
	checkInvariants(c.base, func(id rule.ID, at protoreflect.Descriptor, _ string) { had[key(id, at)] = true })
	checkInvariants(c.head, func(id rule.ID, at protoreflect.Descriptor, what string) {
		f := []change{detail(what)}
		if had[key(id, at)] {
			f = append(f, severity(Warn))
		}
		c.inHead(id, at, f...)
	})
}

// evaluable reports messages of head whose rules protovalidate refuses as such.
func (c *comparer) evaluable() {
	for _, name := range slices.Sorted(maps.Keys(c.head.Used)) {
		m := c.head.Messages[name]
		if m == nil || c.head.Files[m.ParentFile().Path()].Package() == "google.protobuf" {
			continue
		}
		var broken *protovalidate.CompilationError
		if err := c.trial.Message(c.head, dynamicpb.NewMessage(m)); errors.As(err, &broken) {
			f := []change{detail(broken.Error())}
			if b := c.base.Messages[c.matched[name]]; b != nil &&
				errors.As(c.trial.Message(c.base, dynamicpb.NewMessage(b)), &broken) {
				f = append(f, severity(Warn))
			}
			c.inHead(rule.ValidationNotEvaluable, m, f...)
		}
	}
}
