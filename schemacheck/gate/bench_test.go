package gate_test

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/parley-chat/parley/schemacheck/compat"
	"github.com/parley-chat/parley/schemacheck/compat/fixture"
	exec "github.com/parley-chat/parley/schemacheck/differential"
	"github.com/parley-chat/parley/schemacheck/gate"
)

// wide returns an event of n fields of different types, without or with rules. The last
// field is of the given type.
func wide(t testing.TB, n int, rules bool, last string) []protoreflect.FileDescriptor {
	t.Helper()
	var b strings.Builder
	b.WriteString("syntax = \"proto3\";\npackage t.v1;\nimport \"buf/validate/validate.proto\";\nimport \"google/protobuf/timestamp.proto\";\nmessage E {\n")
	types := []struct{ name, rule string }{
		{"string", "string = {min_len: 0, max_len: 40}"}, {"int64", "int64.gte = -5"},
		{"optional string", "string.pattern = \"^[a-z]*$\""}, {"bool", ""},
		{"repeated int32", "repeated.max_items = 20"}, {"google.protobuf.Timestamp", ""}, {"bytes", "bytes.max_len = 64"},
		{"double", "double.finite = true"},
	}
	for i := 1; i <= n; i++ {
		name, rule := types[i%len(types)].name, ""
		if rules && types[i%len(types)].rule != "" {
			rule = " [(buf.validate.field)." + types[i%len(types)].rule + "]"
		}
		if i == n {
			name, rule = last, ""
		}
		number := i
		if i >= 19000 { // reserved by protobuf
			number += 1000
		}
		fmt.Fprintf(&b, "  %s f%d = %d%s;\n", name, i, number, rule)
	}
	files, err := fixture.Compile(map[string]string{"e.proto": b.String() + "}\n"})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func BenchmarkCompare(b *testing.B) {
	for _, n := range []int{100, 1000, 10000} {
		for _, rules := range []bool{false, true} {
			base, head := wide(b, n, rules, "string"), wide(b, n, rules, "int32")
			b.Run(fmt.Sprintf("rules/fields=%d/validated=%t", n, rules), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if _, err := compat.Compare(b.Context(), base, head, compat.Options{}); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.Run(fmt.Sprintf("execution/fields=%d/validated=%t", n, rules), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if _, err := exec.Execute(b.Context(), base, head, compat.Options{}); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.Run(fmt.Sprintf("both/fields=%d/validated=%t", n, rules), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if _, err := gate.Compare(b.Context(), base, head, compat.Options{}); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// execute returns the rules of what samples alone show.
func execute(t testing.TB, base, head []protoreflect.FileDescriptor) []string {
	t.Helper()
	findings, err := exec.Execute(t.Context(), base, head, compat.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return rules(findings)
}
