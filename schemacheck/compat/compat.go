// Package compat judges whether a protobuf schema may replace another one: can
// consumers built from either side read what producers built from the other side
// wrote, in binary and in JSON, with their validation rules, and through a schema
// registry.
//
// It owns the rules and their reasons. It compares descriptors only: it reads no file, asks no
// registry and decodes no event; schemacheck/differential does the last. Sources: the updating
// rules of protobuf.dev, AIP-180, and the behaviour of registries and of buf breaking where they
// are stricter.
//
// Concurrency: functions are pure and may run together.
package compat

import (
	"cmp"
	"context"
	"slices"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/parley-chat/parley/schemacheck/compat/rule"
)

// Severity is the weight of a rule or finding.
type Severity = rule.Severity

// Severities in rising order.
const (
	Allow = rule.Allow // a change that is judged and allowed; only rules carry it
	Warn  = rule.Warn  // a person should check it
	Block = rule.Block // must not be merged
)

// Rule is a kind of change and its verdict.
type Rule = rule.Rule

// Rules returns all rules, ordered by id; those that allow a change are among them.
func Rules() []Rule { return rule.All() }

// Policy says which direction of reading is kept.
type Policy = rule.Policy

// Policies as schema registries name them. Transitive ones compare with every
// released version; a single comparison is the same.
const (
	Full               = rule.Full               // both directions
	FullTransitive     = rule.FullTransitive     // both, with every earlier version
	Backward           = rule.Backward           // new consumers read old events
	Forward            = rule.Forward            // old consumers read new events
	None               = rule.None               // nothing is compared
	BackwardTransitive = rule.BackwardTransitive // as Backward, with every earlier version
	ForwardTransitive  = rule.ForwardTransitive  // as Forward, with every earlier version
)

// ParsePolicy reads the registry's name of a policy in any case.
func ParsePolicy(s string) (Policy, error) { return rule.ParsePolicy(s) }

// Scope says what the compared files are used for.
type Scope int

const (
	// Event judges the registered files and the types that they use. A file is
	// registered if it declares an event by a custom option; where none does, if no
	// other file of the scope imports it.
	Event Scope = iota
	// API judges RPC contracts: all files, services too. New messages and oneof
	// cases are allowed, rules on requests may loosen, nothing may be removed.
	API
	// All judges registered files and what they use as Event, other files as API.
	All
)

// Forms in which a reader meets a change, see Finding.Form.
const (
	Binary   = "binary"   // protobuf encoding
	JSON     = "json"     // ProtoJSON with unknown fields ignored
	Registry = "registry" // a schema registry at FULL refuses the version
	Validate = "rules"    // protovalidate rules of the reader
	Contract = "contract" // custom options: topic, key, name, version
)

// Options of a comparison. The zero value is FULL for events.
type Options struct {
	Policy Policy
	Scope  Scope
	// Files judged as events, regardless of their declarations: patterns of import paths,
	// of folders above them, and of packages. Those that no other file of the scope imports
	// are registered; the others hold types of theirs.
	Events []string
}

// Finding is one change that a rule does not let pass.
type Finding = rule.Finding

// Compare returns what the rules say keeps head from replacing base, ordered by
// place. Both are the files in scope; types of imported files are judged through those
// that use them. Under None there is nothing to find. The error is the context's.
//
// A gate asks schemacheck/gate, which runs samples too.
func Compare(ctx context.Context, base, head []protoreflect.FileDescriptor, o Options) ([]Finding, error) {
	if o.Policy == None {
		return nil, nil
	}
	c := newComparer(base, head, o)
	steps := []func(){
		c.files, c.messages, c.otherExtensions, c.messages, c.services, c.versions, c.brokenUses, c.headAlone,
	}
	c.ctx = ctx
	for _, step := range steps {
		if step(); ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
	return c.result(), nil
}

func (c *comparer) result() []Finding {
	kept := slices.DeleteFunc(c.findings, func(f Finding) bool {
		if f.OldReadsNew == f.NewReadsOld {
			return false
		}
		return f.OldReadsNew && !c.o.Policy.OldReadsNew() || f.NewReadsOld && !c.o.Policy.NewReadsOld()
	})
	slices.SortFunc(kept, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column),
			a.Rule.Compare(b.Rule), cmp.Compare(a.Subject, b.Subject), cmp.Compare(a.Detail, b.Detail))
	})
	return slices.Compact(kept)
}
