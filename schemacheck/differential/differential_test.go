package differential_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/parley-chat/parley/schemacheck/compat"
	"github.com/parley-chat/parley/schemacheck/compat/fixture"
	"github.com/parley-chat/parley/schemacheck/differential"
)

func load(t testing.TB, path string) *fixture.Fixture {
	t.Helper()
	f, err := fixture.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func byRules(t testing.TB, base, head []protoreflect.FileDescriptor, o compat.Options) []compat.Finding {
	t.Helper()
	findings, err := compat.Compare(t.Context(), base, head, o)
	if err != nil {
		t.Fatal(err)
	}
	return findings
}

func lines(findings []compat.Finding) string {
	var list []string
	for _, f := range findings {
		list = append(list, fixture.Line(f))
	}
	return strings.Join(list, "\n")
}

// Breaks by the rules that samples cannot show, with the reason.
var unseen = map[string]string{
	"new FIELD_NUMBER_REUSED_OTHER_TYPE": "the other wire type makes the value an unknown field",
	"old FIELD_NUMBER_REUSED_OTHER_TYPE": "the other wire type makes the value an unknown field",
	"new EXTENSION_RANGE_REMOVED":        "extensions are not generated",
	"new EXTENSION_RANGE_NARROWED":       "extensions are not generated",
	"new EXTENSION_REMOVED":              "extensions are not generated",
	"new EXTENSION_CHANGED":              "extensions are not generated",
	"old EXTENSION_CHANGED":              "extensions are not generated",
	"new FIELD_TO_EXTENSION":             "extensions are not generated",
	"new ENUM_VALUE_ADDED_ON_RESERVED":   "what the reserved number meant stands in neither schema",
	"old ENUM_VALUE_ADDED_ON_RESERVED":   "what the reserved number meant stands in neither schema",
	"new ENUM_OPENNESS_CHANGED":          "the Go runtime treats closed enums as open",
	"new FIELD_ADDED_ON_RESERVED_NUMBER": "what the reserved number meant stands in neither schema",
	"old FIELD_ADDED_ON_RESERVED_NUMBER": "what the reserved number meant stands in neither schema",
	"new FIELD_ADDED_WITH_USED_NAME":     "what the reserved name meant stands in neither schema",
	"old FIELD_ADDED_WITH_USED_NAME":     "what the reserved name meant stands in neither schema",
	"new FILE_REMOVED":                   "head has no such event",
	"old FIELD_ADDED_REQUIRED":           "the registry refuses it",
	"new FIELD_REMOVED_REQUIRED":         "the registry refuses it",
	"new INTEGER_TO_ENUM":                "numbers pass in both forms",
	"old ENUM_TO_INTEGER":                "numbers pass in both forms",
	"new JSON_FORMAT_CHANGED":            "the Go runtime gives JSON best effort",
	"old JSON_FORMAT_CHANGED":            "the Go runtime gives JSON best effort",
}

// The rule table has the direction and the form that each change breaks. Execution finds a break
// in that direction, and none where the rules find none (K-158).
func TestExecutionAgreesWithTheRules(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("../compat/testdata/*.txtar")
	if err != nil || len(paths) < 170 {
		t.Fatalf("%d fixtures (%v), expected at least 170", len(paths), err)
	}
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".txtar")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := load(t, path)
			if f.Scope == compat.API {
				return
			}
			rules := byRules(t, f.Base, f.Head, compat.Options{Scope: f.Scope})
			ran, err := differential.Execute(t.Context(), f.Base, f.Head, compat.Options{Scope: f.Scope})
			if err != nil {
				t.Fatal(err)
			}
			for _, finding := range ran {
				if finding.Rule == "SAMPLES_NOT_MADE" {
					t.Errorf("the fixture was not executed, expected it to be: %s", fixture.Line(finding))
				}
				if finding.Severity != compat.Block {
					continue
				}
				if !slices.ContainsFunc(rules, func(r compat.Finding) bool { return r.Severity == compat.Block }) {
					t.Errorf("execution breaks without a finding of the rules:\n%s\nthe rules found:\n%s", fixture.Line(finding), lines(rules))
				}
			}
			for _, r := range rules {
				if r.Severity != compat.Block || r.Rule == "USED_MESSAGE_BROKEN" || r.Rule == "IMPORTED_TYPE_BROKEN" ||
					!strings.Contains(r.Form, compat.Binary) && !strings.Contains(r.Form, compat.JSON) &&
						!strings.Contains(r.Form, compat.Validate) {
					continue
				}
				check(t, "new ", string(r.Rule), name, r.NewReadsOld,
					slices.ContainsFunc(ran, func(f compat.Finding) bool { return f.NewReadsOld }))
				check(t, "old ", string(r.Rule), name, r.OldReadsNew,
					slices.ContainsFunc(ran, func(f compat.Finding) bool { return f.OldReadsNew }))
			}
		})
	}
}

// shown lists fixtures in which samples show a break that they cannot show in others of the same
// rule.
var shown = []string{"FIELD_NUMBER_REUSED_OTHER_TYPE-map-key", "FIELD_ADDED_WITH_USED_NAME-replaced",
	"FIELD_ADDED_WITH_USED_NAME-taken"}

func check(t *testing.T, side, rule, fixture string, says, seen bool) {
	t.Helper()
	what := side + rule
	_, byRule := unseen[what]
	_, byName := unseen[side+fixture]
	byName = byName || strings.HasSuffix(fixture, "-extension") // extensions are not generated
	if listed := byName || byRule && !slices.Contains(shown, fixture); says && !seen && !listed {
		t.Errorf("the %s reader breaks by the rules; expected a break in execution too", what)
	} else if says && seen && listed {
		t.Errorf("the %s reader breaks in execution, expected it not to show this rule", what)
	}
}

// A file that the caller lists as an event is executed like a declared one, and read through the
// types that contain it: a type that others use is no event by itself.
func TestEventsByName(t *testing.T) {
	t.Parallel()
	sides := map[string]map[string]string{}
	for side, kind := range map[string]string{"base": "int64", "head": "bool"} {
		sides[side] = map[string]string{
			"shop/v1/event.proto": `syntax = "proto3"; package shop.v1; import "google/protobuf/descriptor.proto";
message Option { string topic = 1; }
extend google.protobuf.MessageOptions { Option event = 50800; }
message Placed { option (event) = {topic: "orders"}; string id = 1; }`,
			"shop/v1/letter.proto": `syntax = "proto3"; package shop.v1; import "shop/v1/reason.proto"; message Letter { Reason reason = 1; }`,
			"shop/v1/reason.proto": `syntax = "proto3"; package shop.v1; message Reason { ` + kind + ` code = 1; }`,
		}
	}
	base, err := fixture.Compile(sides["base"])
	if err != nil {
		t.Fatal(err)
	}
	head, err := fixture.Compile(sides["head"])
	if err != nil {
		t.Fatal(err)
	}
	for pattern, want := range map[string]bool{"shop.v1": true, "shop/v1/letter.proto": true,
		"shop/v1/event.proto": false} {
		found, err := differential.Execute(t.Context(), base, head,
			compat.Options{Scope: compat.All, Events: []string{pattern}})
		if err != nil {
			t.Fatal(err)
		}
		if (len(found) > 0) != want {
			t.Errorf("%s: unexpected number of findings, %d: %s", pattern, len(found), lines(found))
		}
	}
}
