// Package compat judges whether a protobuf schema may replace another one: can
// consumers built from either side read what producers built from the other side
// wrote, in binary and in JSON, with their validation rules, and through a schema
// registry.
//
// It owns the rules and their reasons. It compares descriptors only: it reads no
// file, asks no registry and decodes no event; schemacheck/execute does the last.
// Sources: ADR-011 section 5, the updating rules of protobuf.dev, AIP-180, and the
// behaviour of registries and of buf breaking where they are stricter.
//
// Concurrency: functions are pure and may run together.
package compat

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// Severity is the weight of a rule or finding.
type Severity int

// Severities in rising order.
const (
	Allow Severity = iota // a change that is looked at and allowed; only rules carry it
	Warn                  // somebody should look at it
	Block                 // must not be merged
)

// String returns allow, warn or block.
func (s Severity) String() string {
	return [...]string{"allow", "warn", "block"}[s]
}

// Policy says which direction of reading is kept.
type Policy int

// Policies as schema registries name them. Transitive ones ask the caller to
// compare with every released version; a single comparison is the same.
const (
	Full           Policy = iota // both directions
	FullTransitive               // both, with every earlier version
	Backward                     // new consumers read old events
	Forward                      // old consumers read new events
)

var policies = []string{"FULL", "FULL_TRANSITIVE", "BACKWARD", "FORWARD"}

// String returns the registry's name of the policy.
func (p Policy) String() string { return policies[p] }

// ParsePolicy reads the registry's name of a policy in any case.
func ParsePolicy(s string) (Policy, error) {
	i := slices.Index(policies, strings.ToUpper(s))
	if i < 0 {
		return 0, fmt.Errorf("no such policy; known are %s", strings.Join(policies, ", "))
	}
	return Policy(i), nil
}

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
	// Files judged as events, whatever they declare: patterns of import paths, of
	// folders above them, and of packages. Those that no other file of the scope
	// imports are registered; the others hold types of theirs.
	Events []string
}

// Finding is one change that a rule does not let pass.
type Finding struct {
	Rule     string // id of the rule, see Rules
	Severity Severity
	// Where the element stands: in head, or in base if it is no longer in head.
	// Line and Column count from 1; 0 without source positions.
	File         string
	Line, Column int
	Base         bool
	Subject      string // full name of the element
	Detail       string // what changed, "int32 to int64"; may be empty
	// Which direction breaks; neither for what decodes and is blocked by policy.
	OldReadsNew, NewReadsOld bool
	Form                     string // forms that break, joined by ","
	Why, Instead             string // one sentence each
}

// FindingAt returns a rule's finding at an element, which stands in base or in head.
func FindingAt(id string, at protoreflect.Descriptor, base bool) Finding {
	r := table()[id]
	f := Finding{
		Rule: id, Severity: r.Severity, OldReadsNew: r.OldReadsNew, NewReadsOld: r.NewReadsOld, Form: r.Form,
		File: at.ParentFile().Path(), Base: base, Subject: string(at.FullName()), Why: r.Why, Instead: r.Instead,
	}
	if at.ParentFile() == at {
		f.Subject = f.File
	}
	if loc := at.ParentFile().SourceLocations().ByDescriptor(at); loc.Path != nil || loc.EndLine > 0 {
		f.Line, f.Column = loc.StartLine+1, loc.StartColumn+1
	}
	return f
}

// Compare returns what keeps head from replacing base, ordered by place. Both are
// the files in scope; types of imported files are judged through those that use them.
func Compare(base, head []protoreflect.FileDescriptor, o Options) []Finding {
	c := newComparer(base, head, o)
	c.files()
	c.drain()
	if o.Scope != Event {
		c.services()
	}
	c.versions()
	c.affected()
	c.standing()
	return c.result()
}

func (c *comparer) result() []Finding {
	kept := slices.DeleteFunc(c.findings, func(f Finding) bool {
		if f.OldReadsNew == f.NewReadsOld {
			return false
		}
		return c.o.Policy == Backward && f.OldReadsNew || c.o.Policy == Forward && f.NewReadsOld
	})
	slices.SortFunc(kept, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column),
			cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Subject, b.Subject), cmp.Compare(a.Detail, b.Detail))
	})
	return slices.Compact(kept)
}
