package report

import (
	"net/url"
	"slices"
	"strings"

	"github.com/parley-chat/parley/schemacheck/compat"
	"github.com/parley-chat/parley/schemacheck/compat/rule"
)

type object = map[string]any

var levels = map[string]string{compat.Block.String(): "error", compat.Warn.String(): "warning"}

// sarif returns the report as a SARIF log of one run.
func (r *Report) sarif() object {
	rules := []object{}
	index := map[rule.ID]int{}
	for _, of := range append(rule.All(), rule.Naming()...) {
		used := func(f Finding) bool { return f.ID == of.ID }
		if !slices.ContainsFunc(r.Findings, used) &&
			!slices.ContainsFunc(r.Waived, func(w Waived) bool { return used(w.Finding) }) {
			continue
		}
		index[of.ID] = len(rules)
		// Code hosts know an alert by the rule's id, so it stays the short one.
		one := object{
			"id": of.Code, "name": string(of.ID), "shortDescription": object{"text": of.Title},
			"fullDescription":      object{"text": of.Why},
			"defaultConfiguration": object{"level": levels[max(of.Severity, compat.Warn).String()]},
		}
		if of.Suggestion != "" {
			one["help"] = object{"text": of.Suggestion}
		}
		rules = append(rules, one)
	}
	results := []object{}
	for _, f := range r.Findings {
		results = append(results, f.sarif(index, nil))
	}
	for _, w := range r.Waived {
		suppression := object{"kind": "external", "status": "accepted", "justification": w.Reason + " (" + w.Owner +
			", until " + w.Expires + ")"}
		results = append(results, w.Finding.sarif(index, []object{suppression}))
	}
	for _, s := range r.Problems {
		file, _, _ := strings.Cut(s, ": ") // code hosts show no result without a place
		results = append(results, object{
			"ruleId": "released", "level": "error", "message": object{"text": s},
			"locations": []object{{"physicalLocation": object{"artifactLocation": object{"uri": uri(file),
				"uriBaseId": "%SRCROOT%"}}}},
		})
	}
	return object{
		"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0",
		"runs": []object{{
			"tool": object{"driver": object{"name": "schemacheck",
				"informationUri": "https://github.com/parley-chat/parley", "rules": rules}},
			"columnKind": "utf16CodeUnits",
			"results":    results,
		}},
	}
}

// uri makes a reference of a path.
func uri(path string) string { return (&url.URL{Path: path}).EscapedPath() }

// sarif returns a finding as a result. The index is that of its rule.
func (f Finding) sarif(index map[rule.ID]int, suppressions []object) object {
	text := []string{f.What()}
	for _, s := range append([]string{f.Breaks(), f.Why, f.Suggestion}, f.follows()...) {
		if s != "" {
			text = append(text, s)
		}
	}
	one := object{
		"ruleId": f.Rule, "level": levels[f.Severity], "message": object{"text": strings.Join(text, "\n")},
		"partialFingerprints": object{"subject/v1": f.key()},
		"properties": object{"oldReadersBreak": f.OldReadsNew, "newReadersBreak": f.NewReadsOld, "forms": f.Forms,
			"inBase": f.InBase, "against": f.Against},
	}
	if i, known := index[f.ID]; known {
		one["ruleIndex"] = i
	}
	if suppressions != nil {
		one["suppressions"] = suppressions
	}
	physical := object{"artifactLocation": object{"uri": uri(f.File), "uriBaseId": "%SRCROOT%"}}
	if f.Line > 0 && !f.InBase {
		physical["region"] = object{"startLine": f.Line, "startColumn": max(f.Column, 1)}
	}
	one["locations"] = []object{{"physicalLocation": physical,
		"logicalLocations": []object{{"fullyQualifiedName": f.Subject}}}}
	return one
}
