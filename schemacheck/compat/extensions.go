package compat

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/parley-chat/parley/schemacheck/compat/rule"
	"github.com/parley-chat/parley/schemacheck/compat/schema"
)

// extensions compares the extensions of two messages that stand for each other, regardless
// of the file and message that declare them: an event carries them as it carries fields.
func (c *comparer) extensions(b, h protoreflect.MessageDescriptor) {
	was, is := c.base.Extensions[b.FullName()], c.head.Extensions[h.FullName()]
	kept := map[protoreflect.FieldNumber]bool{}
	for _, n := range slices.Sorted(maps.Keys(was)) {
		if x := c.extensionInHead(was[n]); x != nil {
			kept[x.Number()] = true
		}
		c.extension(was[n])
	}
	for _, n := range slices.Sorted(maps.Keys(is)) {
		// A number that something else had in base is reported where it was lost.
		if was[n] == nil && !kept[n] && c.fieldsOf(b).ByNumber(n) == nil {
			c.raisesVersion(is[n])
			c.rulesOfAdded(is[n])
		}
	}
}

// otherExtensions compares the extensions that the files under judgement declare for
// messages that are not compared, such as the options of descriptor.proto. It runs after
// the messages, because only then it is known which of them are compared.
func (c *comparer) otherExtensions() {
	for _, l := range c.levels {
		c.api = c.judgedAsAPI(l.b.ParentFile())
		for b := range schema.All(l.b.Extensions()) {
			c.extension(b)
		}
	}
}

// extension compares an extension of base with the one of head that stands for it, once.
func (c *comparer) extension(b protoreflect.FieldDescriptor) {
	if c.compared[b.FullName()] {
		return
	}
	c.compared[b.FullName()] = true
	h := c.extensionInHead(b)
	switch {
	case h == nil:
		c.lostExtension(b)
	case b.Number() != h.Number():
		c.inHead(rule.ExtensionChanged, h, detail(number(b.Number()), number(h.Number())))
	case !c.sameType(b, h):
		c.inHead(rule.ExtensionChanged, h, detail(schema.TypeName(b), schema.TypeName(h)))
	default:
		c.field(b, h)
	}
}

// lostExtension: head has no extension of the name. If its number has another meaning
// there, readers of either side misread it.
func (c *comparer) lostExtension(b protoreflect.FieldDescriptor) {
	of := c.mapped(b.ContainingMessage().FullName())
	taken := c.head.Extensions[of][b.Number()]
	if m := c.head.Messages[of]; taken == nil && m != nil {
		taken = c.fieldsOf(m).ByNumber(b.Number())
	}
	if taken == nil {
		c.inBase(rule.ExtensionRemoved, b)
		return
	}
	c.inHead(rule.ExtensionChanged, taken,
		detail(string(b.Name())+" "+schema.TypeName(b), string(taken.Name())+" "+schema.TypeName(taken)))
}

// extensionInHead returns the extension of head that stands for one of base: that of its
// full name, or that of its name in what stands for the file or message that declares it.
// Nil stands for none.
func (c *comparer) extensionInHead(b protoreflect.FieldDescriptor) (h protoreflect.FieldDescriptor) {
	for _, x := range c.head.Extensions[c.mapped(b.ContainingMessage().FullName())] {
		switch {
		case x.FullName() == b.FullName():
			return x
		case x.Name() == b.Name() && c.standsFor(b.Parent(), x.Parent()):
			h = x
		}
	}
	return h
}

// standsFor says whether a file or message of head replaces one of base.
func (c *comparer) standsFor(b, h protoreflect.Descriptor) bool {
	if b != b.ParentFile() {
		return h != h.ParentFile() && c.mapped(b.FullName()) == h.FullName()
	}
	if h != h.ParentFile() {
		return false
	}
	if moved := c.movedFiles[b.ParentFile().Path()]; moved != nil {
		return moved.Path() == h.ParentFile().Path()
	}
	return b.ParentFile().Path() == h.ParentFile().Path()
}
