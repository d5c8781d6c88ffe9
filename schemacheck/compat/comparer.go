package compat

import (
	"context"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/parley-chat/parley/schemacheck/compat/rule"
	"github.com/parley-chat/parley/schemacheck/compat/schema"
)

// maxDetail bounds what findings quote of patterns, expressions and names, in
// characters.
const maxDetail = 300

// A comparer holds the state of one comparison.
type comparer struct {
	ctx        context.Context // of the one call that the comparer serves
	o          Options
	base, head *schema.FileSet
	findings   []Finding

	headNames   map[protoreflect.FullName]protoreflect.FullName // of renamed types of base
	matched     map[protoreflect.FullName]protoreflect.FullName // messages of head, to those of base that they replace
	compared    map[protoreflect.FullName]bool                  // types and extensions of base
	queue       [][2]protoreflect.MessageDescriptor
	levels      []*level                       // of the files under judgement
	evolved     map[protoreflect.FullName]bool // types of head with an addition or a deprecation
	needVersion map[protoreflect.FullName]bool // messages of head whose change should raise the version of their events
	requests    map[protoreflect.FullName]bool // types of head in requests
	broken      map[protoreflect.FullName]Rule // types of base with a blocking finding: its directions and forms

	indexes      map[protoreflect.MessageDescriptor]schema.Fields
	reached      *schema.Reach // what fields of base use
	trial        *ruleRunner
	replacements map[string]bool                        // paths of files of head that replace one of another path
	movedFiles   map[string]protoreflect.FileDescriptor // files of base that have another path in head
	current      protoreflect.FullName                  // the type of base at hand
	api          bool                                   // the file or type at hand is judged as API
}

func newComparer(base, head []protoreflect.FileDescriptor, o Options) *comparer {
	c := &comparer{
		o: o, base: schema.New(base, o.Events...), head: schema.New(head, o.Events...),
		headNames:    map[protoreflect.FullName]protoreflect.FullName{},
		compared:     map[protoreflect.FullName]bool{},
		matched:      map[protoreflect.FullName]protoreflect.FullName{},
		evolved:      map[protoreflect.FullName]bool{},
		needVersion:  map[protoreflect.FullName]bool{},
		broken:       map[protoreflect.FullName]Rule{},
		replacements: map[string]bool{},
		movedFiles:   map[string]protoreflect.FileDescriptor{},
		indexes:      map[protoreflect.MessageDescriptor]schema.Fields{},
	}
	c.reached = schema.NewReach(c.base)
	c.trial = newRuleRunner(c.base, c.head)
	c.requests = c.head.Reach(func(yield func(protoreflect.MessageDescriptor) bool) {
		for _, f := range c.head.Scope {
			for s := range schema.All(f.Services()) {
				for m := range schema.All(s.Methods()) {
					if !yield(m.Input()) {
						return
					}
				}
			}
		}
	})
	return c
}

// mapped returns the name in head of a type of base.
func (c *comparer) mapped(name protoreflect.FullName) protoreflect.FullName {
	if to, ok := c.headNames[name]; ok {
		return to
	}
	return name
}

// fieldsOf returns the index of a message's fields.
func (c *comparer) fieldsOf(m protoreflect.MessageDescriptor) schema.Fields {
	i, ok := c.indexes[m]
	if !ok {
		i = schema.IndexFields(m)
		c.indexes[m] = i
	}
	return i
}

// judgedAsAPI says which rule set a type or file of base is under.
func (c *comparer) judgedAsAPI(d protoreflect.Descriptor) bool {
	switch c.o.Scope {
	case Event:
		return false
	case API:
		return true
	}
	if d.ParentFile() == d {
		return !c.base.IsEvent(d.ParentFile())
	}
	return !c.base.IsEvent(d.ParentFile()) && !c.base.Used[d.FullName()]
}

// A change overrides what the rule says in general.
type change func(*Finding)

func detail(parts ...string) change {
	return func(f *Finding) { f.Detail = strings.Join(parts, " to ") }
}

// reads sets the directions that break.
func reads(newReadsOld, oldReadsNew bool) change {
	return func(f *Finding) { f.NewReadsOld, f.OldReadsNew = newReadsOld, oldReadsNew }
}

func severity(s Severity) change { return func(f *Finding) { f.Severity = s } }

// inHead adds a finding at an element of head, inBase at one that head has lost.
func (c *comparer) inHead(id rule.ID, at protoreflect.Descriptor, changes ...change) {
	c.add(id, at, false, changes)
}

func (c *comparer) inBase(id rule.ID, at protoreflect.Descriptor, changes ...change) {
	c.add(id, at, true, changes)
}

func (c *comparer) add(id rule.ID, at protoreflect.Descriptor, base bool, changes []change) {
	f := rule.FindingAt(id, at, base)
	for _, change := range changes {
		change(&f)
	}
	f.Detail = schema.Clip(f.Detail, maxDetail)
	if c.api && id.Has(rule.BlocksAPI) {
		f.Severity = Block
	}
	c.findings = append(c.findings, f)
	if f.Severity == Block && c.current != "" && (f.OldReadsNew || f.NewReadsOld) {
		c.broken[c.current] = c.broken[c.current].With(Rule{OldReadsNew: f.OldReadsNew, NewReadsOld: f.NewReadsOld,
			Form: f.Form})
	}
}

// enqueue asks for the comparison of two messages once.
func (c *comparer) enqueue(b, h protoreflect.MessageDescriptor) {
	if c.compared[b.FullName()] || b.IsMapEntry() {
		return
	}
	c.compared[b.FullName()] = true
	c.queue = append(c.queue, [2]protoreflect.MessageDescriptor{b, h})
}

func (c *comparer) messages() {
	for len(c.queue) > 0 && c.ctx.Err() == nil {
		p := c.queue[0]
		c.queue = c.queue[1:]
		c.current, c.api = p[0].FullName(), c.judgedAsAPI(p[0])
		c.message(p[0], p[1])
	}
	c.current = ""
}

// brokenUses names the events that are encoded with a type that broke.
func (c *comparer) brokenUses() {
	c.current, c.api = "", false
	for _, b := range c.base.Roots {
		h := c.head.Messages[c.mapped(b.FullName())]
		if h == nil || c.judgedAsAPI(b) {
			continue
		}
		for bf := range schema.All(b.Fields()) {
			hf := c.fieldsOf(h).ByNumber(bf.Number())
			if hf == nil {
				continue
			}
			c.usesBrokenType(b, bf, hf)
		}
		for _, bx := range c.base.Extensions[b.FullName()] {
			if hx := c.extensionInHead(bx); hx != nil {
				c.usesBrokenType(b, bx, hx)
			}
		}
	}
}

func (c *comparer) usesBrokenType(event protoreflect.MessageDescriptor, b, h protoreflect.FieldDescriptor) {
	here, imported := map[protoreflect.FullName]bool{}, map[protoreflect.FullName]bool{}
	used := c.reached.From(b)
	for name := range c.broken {
		if !used[name] || name == event.FullName() {
			continue
		}
		var d protoreflect.Descriptor = c.base.Messages[name]
		if e := c.base.Enums[name]; e != nil {
			d = e
		}
		if d.ParentFile().Path() == event.ParentFile().Path() {
			here[name] = true
		} else {
			imported[name] = true
		}
	}
	c.reportThroughField(rule.UsedMessageBroken, h, here)
	c.reportThroughField(rule.ImportedTypeBroken, h, imported)
}

// reportThroughField reports a field of an event whose types broke, with all that they break.
func (c *comparer) reportThroughField(
	id rule.ID, h protoreflect.FieldDescriptor, types map[protoreflect.FullName]bool,
) {
	if len(types) == 0 {
		return
	}
	var names []string
	var all Rule
	for _, name := range slices.Sorted(maps.Keys(types)) {
		names = append(names, string(name))
		all = all.With(c.broken[name])
	}
	c.inHead(id, h, detail(strings.Join(names, ", ")), reads(all.NewReadsOld, all.OldReadsNew),
		func(f *Finding) { f.Form = all.Form })
}
