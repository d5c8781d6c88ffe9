// Package rule is the table of the gate's rules: which changes there are, what they
// break, why, and what to do instead.
//
// It owns the table and its words. What a rule is found by is in compat and execute.
//
// Concurrency: functions are pure and may run together.
package rule

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"sync"
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

// Rule is a kind of change and its verdict. Letters of ids: F and R fields added
// and removed, N names, C numbers, T types, L cardinality, P presence, O oneofs,
// E enums, M messages and files, K packages, imports and options, D defaults and
// extensions, U features, V reservations, S services, X custom options of events,
// Y validation, H conditions of head alone, W execution of samples.
type Rule struct {
	ID, Title, Why, Instead string
	Severity                Severity
	OldReadsNew             bool   // old readers break on new events, unless the change at hand says otherwise
	NewReadsOld             bool   // new readers break on old events
	Form                    string // forms that break, joined by ","
}

// One rule a line: id, verdict, which readers break, forms, title, why, instead.
//
//go:embed rules.txt
var ruleText string

var table = sync.OnceValue(func() map[string]Rule {
	m := map[string]Rule{}
	for line := range strings.Lines(ruleText) {
		p := strings.Split(strings.TrimSpace(line), "|")
		if len(p) != 7 {
			panic(fmt.Sprintf("rules.txt: %q has %d parts", line, len(p)))
		}
		severity := slices.Index([]string{"allow", "warn", "block"}, p[1])
		readers := slices.Index([]string{"none", "old", "new", "both"}, p[2])
		if _, twice := m[p[0]]; twice || severity < 0 || readers < 0 {
			panic(fmt.Sprintf("rules.txt: bad line %q", line))
		}
		m[p[0]] = Rule{
			ID: p[0], Severity: Severity(severity), OldReadsNew: readers&1 != 0, NewReadsOld: readers&2 != 0,
			Form: p[3], Title: p[4], Why: p[5], Instead: p[6],
		}
	}
	return m
})

// All returns all rules with their reasons, ordered by id; those that allow a
// change are among them and never appear in findings about events.
func All() []Rule {
	var list []Rule
	for _, r := range table() {
		list = append(list, r)
	}
	slices.SortFunc(list, func(a, b Rule) int { return strings.Compare(a.ID, b.ID) })
	return list
}

// NewestOnly says whether a rule is asked of the newest of several versions only: it
// is about the step from one version to the next, or about head alone.
func NewestOnly(id string) bool { return id == "X03" || id[0] == 'H' }

// Unexecuted says whether a finding of a rule tells that samples could not be tried, or
// not all of them.
func Unexecuted(id string) bool { return id == "W04" || id == "W06" || id == "W07" }

// ByID returns the rule of an id.
func ByID(id string) (Rule, bool) {
	r, ok := table()[id]
	return r, ok
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
