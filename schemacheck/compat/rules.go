package compat

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"sync"
)

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

// Rules returns all rules with their reasons, ordered by id; those that allow a
// change are among them and never appear in findings about events.
func Rules() []Rule {
	var list []Rule
	for _, r := range table() {
		list = append(list, r)
	}
	slices.SortFunc(list, func(a, b Rule) int { return strings.Compare(a.ID, b.ID) })
	return list
}

// RuleByID returns the rule of an id.
func RuleByID(id string) (Rule, bool) {
	r, ok := table()[id]
	return r, ok
}
