package execute_test

import (
	"strings"
	"testing"

	"github.com/parley-chat/parley/schemacheck/compat"
	"github.com/parley-chat/parley/schemacheck/execute"
)

// What execution says of a change, word for word: the direction, the forms, the
// place, and the first value that shows it.
func TestFindings(t *testing.T) {
	for name, want := range map[string]string{
		"L11": `
W02 block head/a.proto:3:1 t.v1.E new-reads-old in json: proto: invalid value for string field value: 42
W02 block head/a.proto:3:1 t.v1.E old-reads-new in json: proto: invalid value for int32 field value: "aaaaaaaa"
W01 block head/a.proto:5:3 t.v1.E.v new-reads-old in binary: 42 read as ""
W01 block head/a.proto:5:3 t.v1.E.v old-reads-new in binary,json: "aaaaaaaa" read as 0
`,
		"L09": `
W02 block head/a.proto:3:1 t.v1.E old-reads-new in json: proto: invalid value for int32 key: "aaaaaaaa"
W01 block head/a.proto:5:3 t.v1.E.v new-reads-old in binary: key 0 read as nothing
W01 block head/a.proto:5:3 t.v1.E.v old-reads-new in binary: key aaaaaaaa read as nothing
`,
		"T11": `
W02 block head/a.proto:3:1 t.v1.E new-reads-old in json: proto: invalid value for bytes field v: "éééééééé"
W02 block head/a.proto:3:1 t.v1.E old-reads-new in binary: proto: field t.v1.E.v contains invalid UTF-8
W01 block head/a.proto:5:3 t.v1.E.v new-reads-old in json: "aaaaaaaa" read as "i�i�"
W01 block head/a.proto:5:3 t.v1.E.v old-reads-new in json: "aaaaaaaa" read as "YWFhYWFhYWE="
`,
		"T12": `
W02 block head/a.proto:3:1 t.v1.E new-reads-old in binary: proto: field t.v1.E.v contains invalid UTF-8
W02 block head/a.proto:3:1 t.v1.E old-reads-new in json: proto: invalid value for bytes field v: "éééééééé"
W01 block head/a.proto:5:3 t.v1.E.v new-reads-old in json: "aaaaaaaa" read as "YWFhYWFhYWE="
W01 block head/a.proto:5:3 t.v1.E.v old-reads-new in json: "aaaaaaaa" read as "i�i�"
`,
		"T15": `
W02 block head/a.proto:3:1 t.v1.E old-reads-new in json: proto: invalid value for float field v: 1.7976931348623157e+308
W01 block head/a.proto:5:3 t.v1.E.v new-reads-old in binary,json: 1.5 read as 0
W01 block head/a.proto:5:3 t.v1.E.v old-reads-new in binary,json: 1.5 read as 0
`,
		"E07": `
W01 block head/a.proto:10:3 t.v1.E.kind new-reads-old in binary: KIND_A read as KIND_B
W01 block head/a.proto:10:3 t.v1.E.kind old-reads-new in binary: KIND_A read as KIND_B
`,
		"E10": `
W01 block head/a.proto:11:3 t.v1.E.kind old-reads-new in json: KIND_C read as KIND_UNSPECIFIED
`,
		"N05": `
W01 block head/a.proto:5:3 t.v1.E.b new-reads-old in binary: "aaaaaaaa" read as ""
W01 block head/a.proto:5:3 t.v1.E.b old-reads-new in binary: "" read as "aaaaaaaa"
W01 block head/a.proto:6:3 t.v1.E.a new-reads-old in binary: "" read as "aaaaaaaa"
W01 block head/a.proto:6:3 t.v1.E.a old-reads-new in binary: "aaaaaaaa" read as ""
`,
		"D01": `
W01 block head/a.proto:5:3 t.v1.E.n new-reads-old in binary,json: default 1 read as 2
W01 block head/a.proto:5:3 t.v1.E.n old-reads-new in binary,json: default 2 read as 1
`,
		"P01": `
W05 warn head/a.proto:5:3 t.v1.E.v old-reads-new in binary,json: set read as unset
`,
		"P02": `
W05 warn head/a.proto:5:3 t.v1.E.v new-reads-old in binary,json: set read as unset
`,
		"Y01": `
W03 block head/a.proto:4:1 t.v1.E new-reads-old in rules: s string.min_len
`,
		"Y09": `
W03 block head/a.proto:9:1 t.v1.E old-reads-new in rules: kind enum.defined_only
`,
		"R05": `
W02 block head/a.proto:3:1 t.v1.E old-reads-new in binary,json: proto: required field t.v1.E.n not set
`,
		"T27-list": `
W02 block head/a.proto:3:1 t.v1.E new-reads-old in json: proto: invalid value for string field city: 42
W02 block head/a.proto:3:1 t.v1.E old-reads-new in json: proto: invalid value for int32 field city: "aaaaaaaa"
W01 block head/a.proto:6:5 t.v1.E.Addr.city new-reads-old in binary: 42 read as ""
W01 block head/a.proto:6:5 t.v1.E.Addr.city old-reads-new in binary: "aaaaaaaa" read as 0
`,
		"U01": `
W02 block head/a.proto:3:1 t.v1.E new-reads-old in binary: proto: field t.v1.E.s contains invalid UTF-8
`,
		"O05": `
W02 block head/a.proto:3:1 t.v1.E old-reads-new in json: proto: error parsing "b", oneof t.v1.E.v is already set
W01 block head/a.proto:8:3 t.v1.E.b old-reads-new in binary: "aaaaaaaa" read as ""
`,
		"L05": `
W02 block head/a.proto:3:1 t.v1.E new-reads-old in json: proto: invalid value for string field v: [
W02 block head/a.proto:3:1 t.v1.E old-reads-new in json: proto: syntax error unexpected token "aaaaaaaa"
W01 block head/a.proto:5:3 t.v1.E.v new-reads-old in binary: 2 elements read as "éééééééé"
W01 block head/a.proto:5:3 t.v1.E.v old-reads-new in binary: "aaaaaaaa" read as 1 elements
`,
		"F02": ``,
		"E01": ``,
	} {
		f := load(t, "../compat/testdata/"+name+".txtar")
		findings, err := execute.Execute(t.Context(), f.Base, f.Head, compat.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got := lines(findings); got != strings.TrimSpace(want) {
			t.Errorf("%s:\n%s\nwant:\n%s", name, got, strings.TrimSpace(want))
		}
	}
}

// A policy of one direction runs that direction alone; an API has no events.
func TestPolicyAndScope(t *testing.T) {
	f := load(t, "../compat/testdata/T07.txtar")
	for policy, want := range map[compat.Policy][2]bool{
		compat.Full: {true, true}, compat.Backward: {true, false}, compat.Forward: {false, true},
	} {
		findings, err := execute.Execute(t.Context(), f.Base, f.Head, compat.Options{Policy: policy})
		if err != nil {
			t.Fatal(err)
		}
		var seen [2]bool
		for _, f := range findings {
			seen[0], seen[1] = seen[0] || f.NewReadsOld, seen[1] || f.OldReadsNew
		}
		if seen != want {
			t.Errorf("%s: %v, want %v", policy, seen, want)
		}
	}
	if findings, err := execute.Execute(t.Context(), f.Base, f.Head, compat.Options{Scope: compat.API}); err != nil || len(findings) > 0 {
		t.Errorf("API: %d findings, %v", len(findings), err)
	}
}
