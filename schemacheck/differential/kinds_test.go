package differential_test

import (
	"fmt"
	"testing"

	"github.com/parley-chat/parley/schemacheck/compat"
	"github.com/parley-chat/parley/schemacheck/compat/fixture"
	"github.com/parley-chat/parley/schemacheck/differential"
)

var typeNames = []string{
	"int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed32", "sfixed64",
	"bool", "float", "double", "string", "bytes", "Kind", "Part",
}

// Every change from one type to another is blocked, and a direction that is safe by the rules is
// safe in execution: as a field, in a list, and as a map's key or value.
func TestAllTypeChanges(t *testing.T) {
	t.Parallel()
	const types = "enum Kind {\n  KIND_UNSPECIFIED = 0;\n  KIND_A = 1;\n}\nmessage Part {\n  int32 n = 1;\n}\n"
	keys := map[string]bool{"float": true, "double": true, "bytes": true, "Kind": true, "Part": true}
	schema := func(field string) map[string]string {
		return map[string]string{
			"types.proto": "syntax = \"proto3\";\npackage t.v1;\n" + types,
			"e.proto": "syntax = \"proto3\";\npackage t.v1;\nimport \"types.proto\";\nmessage E {\n  " + field +
				" = 1;\n  Kind k = 2;\n  Part p = 3;\n}\n",
		}
	}
	for _, form := range []string{"%s f", "optional %s f", "repeated %s f", "map<int32, %s> f", "map<%s, string> f"} {
		for i, b := range typeNames {
			for j, h := range typeNames {
				// All pairs of plain fields, and a spread of them in the other forms.
				if b == h || form != "%s f" && (i+2*j)%4 != 0 || form == "map<%s, string> f" && (keys[b] || keys[h]) {
					continue
				}
				name := fmt.Sprintf(form, b) + " to " + h
				base, err := fixture.Compile(schema(fmt.Sprintf(form, b)))
				if err != nil {
					t.Fatal(err)
				}
				head, err := fixture.Compile(schema(fmt.Sprintf(form, h)))
				if err != nil {
					t.Fatal(err)
				}
				var newBreaks, oldBreaks bool
				for _, f := range byRules(t, base, head, compat.Options{}) {
					newBreaks, oldBreaks = newBreaks || f.NewReadsOld, oldBreaks || f.OldReadsNew
				}
				if !newBreaks && !oldBreaks {
					t.Errorf("%s: the change is allowed, expected it to be blocked", name)
				}
				ran, err := differential.Execute(t.Context(), base, head, compat.Options{})
				if err != nil {
					t.Fatal(err)
				}
				for _, f := range ran {
					if f.Severity == compat.Block && (f.NewReadsOld && !newBreaks || f.OldReadsNew && !oldBreaks) {
						t.Errorf("%s: execution breaks a direction that is safe by the rules: %s", name, fixture.Line(f))
					}
				}
			}
		}
	}
}

func BenchmarkExecuteOneEvent(b *testing.B) {
	f := load(b, "../compat/testdata/VALIDATION_TIGHTENED.txtar")
	for b.Loop() {
		if _, err := differential.Execute(b.Context(), f.Base, f.Head, compat.Options{}); err != nil {
			b.Fatal(err)
		}
	}
}
