package report

import (
	"slices"

	"github.com/parley-chat/parley/schemacheck/compat"
)

type object = map[string]any

// sarif returns the report as a SARIF log of one run.
func (r *Report) sarif() object {
	level := map[string]string{compat.Block.String(): "error", compat.Warn.String(): "warning"}
	rules := []object{}
	index := map[string]int{}
	for _, rule := range compat.Rules() {
		if !slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Rule == rule.ID }) {
			continue
		}
		index[rule.ID] = len(rules)
		one := object{
			"id": rule.ID, "shortDescription": object{"text": rule.Title}, "fullDescription": object{"text": rule.Why},
			"defaultConfiguration": object{"level": level[max(rule.Severity, compat.Warn).String()]},
		}
		if rule.Instead != "" {
			one["help"] = object{"text": rule.Instead}
		}
		rules = append(rules, one)
	}
	results := []object{}
	for _, f := range r.Findings {
		text := f.what()
		for _, s := range []string{f.breaks(), f.Why, f.Instead} {
			if s != "" {
				text += "\n" + s
			}
		}
		one := object{
			"ruleId": f.Rule, "level": level[f.Severity], "message": object{"text": text},
			"partialFingerprints": object{"subject/v1": f.key()},
			"properties":          object{"oldReadersBreak": f.OldReadsNew, "newReadersBreak": f.NewReadsOld, "forms": f.Forms, "inBase": f.InBase, "against": f.Against},
		}
		if i, known := index[f.Rule]; known {
			one["ruleIndex"] = i
		}
		physical := object{"artifactLocation": object{"uri": f.File, "uriBaseId": "%SRCROOT%"}}
		if f.Line > 0 && !f.InBase {
			physical["region"] = object{"startLine": f.Line, "startColumn": max(f.Column, 1)}
		}
		one["locations"] = []object{{"physicalLocation": physical, "logicalLocations": []object{{"fullyQualifiedName": f.Subject}}}}
		results = append(results, one)
	}
	for _, s := range r.Extra {
		results = append(results, object{"ruleId": "released", "level": "error", "message": object{"text": s}})
	}
	return object{
		"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0",
		"runs": []object{{
			"tool":       object{"driver": object{"name": "schemacheck", "informationUri": "https://github.com/parley-chat/parley", "rules": rules}},
			"columnKind": "utf16CodeUnits",
			"results":    results,
		}},
	}
}
