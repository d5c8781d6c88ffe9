// Package rule is the table of the gate's rules: which changes there are, what they
// break, why, and what to do instead.
//
// It owns the table and its words. Which rule a change falls under is decided in
// compat, execute and lint. The package is large because the table is: one entry for
// each rule, grouped by what it is about.
//
// Concurrency: functions are pure and may run together.
package rule

import (
	"cmp"
	"slices"
	"strings"
	"sync"
)

// Severity is the weight of a rule or finding.
type Severity int

// Severities in rising order.
const (
	Allow Severity = iota // a change that is judged and allowed; only rules carry it
	Warn                  // a person should check it
	Block                 // must not be merged
)

// String returns allow, warn or block.
func (s Severity) String() string {
	return [...]string{"allow", "warn", "block"}[s]
}

// ID names a rule by the change that it is about: FIELD_RENAMED.
type ID string

// Rule is a kind of change and its verdict.
type Rule struct {
	ID ID
	// Code is the short id of the rule, an alias of ID: N01. Reports for programs are
	// keyed by it, and files may name a rule by either.
	Code        string
	Severity    Severity
	OldReadsNew bool   // old readers break on new events, unless the change at hand says otherwise
	NewReadsOld bool   // new readers break on old events
	Form        string // forms that break, joined by ","
	Traits      Traits
	Title       string
	Why         string // one sentence
	Suggestion  string // what to do instead, one sentence
}

// Traits are what the gate must know of a rule beside its verdict.
type Traits uint8

// Traits of rules.
const (
	// about the step to the next version, or about head alone: asked of the newest of several versions
	NewestOnly  Traits = 1 << iota
	NotExecuted        // says that samples were not run, or not all of them
	// warns about or allows a change of events, and blocks that of an API, as buf's category FILE does
	BlocksAPI
	FromSample   // a difference that a sample shows
	FromUsedType // a field of an event whose type broke
	FollowsFile  // a loss that goes with that of the file or package
	AboutOneof
	AboutNaming // of Naming
)

// Has says whether a rule has a trait.
func (id ID) Has(t Traits) bool { return byID()[id].Traits&t != 0 }

// Code is the short alias of an id, "" for an unknown one.
func (id ID) Code() string { return byID()[id].Code }

// Compare orders ids by subject: those of fields, of types, of enums stand together.
func (id ID) Compare(other ID) int {
	return cmp.Or(cmp.Compare(id.Code(), other.Code()), cmp.Compare(id, other))
}

// Label is the id with its alias, for people: "FIELD_RENAMED (N01)".
func (id ID) Label() string {
	if code := id.Code(); code != "" {
		return string(id) + " (" + code + ")"
	}
	return string(id)
}

var byID = sync.OnceValue(func() map[ID]Rule {
	m := map[ID]Rule{}
	for _, r := range append(All(), Naming()...) {
		m[r.ID] = r
	}
	return m
})

var byCode = sync.OnceValue(func() map[string]ID {
	m := map[string]ID{}
	for id, r := range byID() {
		m[r.Code] = id
	}
	return m
})

// All returns the rules of comparisons with their reasons, ordered as Compare orders
// them. Those that allow a change are among them and never appear in findings about
// events.
func All() []Rule {
	list := slices.Concat(fieldRules, typeRules, enumRules, messageRules, serviceRules, eventRules, validationRules,
		sampleRules)
	slices.SortFunc(list, func(a, b Rule) int { return cmp.Compare(a.Code, b.Code) })
	return list
}

// Naming returns the rules about how new events are named and declared.
func Naming() []Rule { return slices.Clone(namingRules) }

// ByID returns the rule of an id.
func ByID(id ID) (Rule, bool) {
	r, ok := byID()[id]
	return r, ok
}

// Parse returns the id that a text names, by the id itself or by its alias.
func Parse(s string) (ID, bool) {
	if id, ok := byCode()[s]; ok {
		return id, true
	}
	_, ok := byID()[ID(s)]
	return ID(s), ok
}

// With returns a rule that breaks what either breaks.
func (r Rule) With(other Rule) Rule {
	r.OldReadsNew = r.OldReadsNew || other.OldReadsNew
	r.NewReadsOld = r.NewReadsOld || other.NewReadsOld
	forms := append(strings.Split(r.Form, ","), strings.Split(other.Form, ",")...)
	slices.Sort(forms)
	r.Form = strings.TrimPrefix(strings.Join(slices.Compact(forms), ","), ",")
	return r
}
