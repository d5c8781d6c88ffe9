package differential_test

import (
	"strings"
	"testing"

	"github.com/parley-chat/parley/schemacheck/compat"
	"github.com/parley-chat/parley/schemacheck/differential"
)

// The exact findings of execution: the direction, the forms, the position, and the first value
// that shows the break.
func TestFindings(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"MAP_VALUE_TYPE_CHANGED": `
SAMPLE_NOT_DECODED block head/a.proto:3:1 t.v1.E new-reads-old in json: proto: invalid value for string field value: 42
SAMPLE_NOT_DECODED block head/a.proto:3:1 t.v1.E old-reads-new in json: proto: invalid value for int32 field value: "aaaaaaaa"
SAMPLE_READ_DIFFERENTLY block head/a.proto:5:3 t.v1.E.v new-reads-old in binary: 42 read as ""
SAMPLE_READ_DIFFERENTLY block head/a.proto:5:3 t.v1.E.v old-reads-new in binary,json: "aaaaaaaa" read as 0
`,
		"MAP_KEY_TYPE_CHANGED": `
SAMPLE_NOT_DECODED block head/a.proto:3:1 t.v1.E old-reads-new in json: proto: invalid value for int32 key: "aaaaaaaa"
SAMPLE_READ_DIFFERENTLY block head/a.proto:5:3 t.v1.E.v new-reads-old in binary: key 0 read as nothing
SAMPLE_READ_DIFFERENTLY block head/a.proto:5:3 t.v1.E.v old-reads-new in binary: key aaaaaaaa read as nothing
`,
		"STRING_TO_BYTES": `
SAMPLE_NOT_DECODED block head/a.proto:3:1 t.v1.E new-reads-old in json: proto: invalid value for bytes field v: "éééééééé"
SAMPLE_NOT_DECODED block head/a.proto:3:1 t.v1.E old-reads-new in binary: proto: field t.v1.E.v contains invalid UTF-8
SAMPLE_READ_DIFFERENTLY block head/a.proto:5:3 t.v1.E.v new-reads-old in json: "aaaaaaaa" read as "i�i�"
SAMPLE_READ_DIFFERENTLY block head/a.proto:5:3 t.v1.E.v old-reads-new in json: "aaaaaaaa" read as "YWFhYWFhYWE="
`,
		"BYTES_TO_STRING": `
SAMPLE_NOT_DECODED block head/a.proto:3:1 t.v1.E new-reads-old in binary: proto: field t.v1.E.v contains invalid UTF-8
SAMPLE_NOT_DECODED block head/a.proto:3:1 t.v1.E old-reads-new in json: proto: invalid value for bytes field v: "éééééééé"
SAMPLE_READ_DIFFERENTLY block head/a.proto:5:3 t.v1.E.v new-reads-old in json: "aaaaaaaa" read as "YWFhYWFhYWE="
SAMPLE_READ_DIFFERENTLY block head/a.proto:5:3 t.v1.E.v old-reads-new in json: "aaaaaaaa" read as "i�i�"
`,
		"FLOAT_DOUBLE_EXCHANGED": `
SAMPLE_NOT_DECODED block head/a.proto:3:1 t.v1.E old-reads-new in json: proto: invalid value for float field v: 1.7976931348623157e+308
SAMPLE_READ_DIFFERENTLY block head/a.proto:5:3 t.v1.E.v new-reads-old in binary,json: 1.5 read as 0
SAMPLE_READ_DIFFERENTLY block head/a.proto:5:3 t.v1.E.v old-reads-new in binary,json: 1.5 read as 0
`,
		"ENUM_VALUE_NUMBERS_SWAPPED": `
SAMPLE_READ_DIFFERENTLY block head/a.proto:10:3 t.v1.E.kind new-reads-old in binary: KIND_A read as KIND_B
SAMPLE_READ_DIFFERENTLY block head/a.proto:10:3 t.v1.E.kind old-reads-new in binary: KIND_A read as KIND_B
`,
		"ENUM_ALIAS_ADDED_FIRST": `
SAMPLE_READ_DIFFERENTLY block head/a.proto:11:3 t.v1.E.kind old-reads-new in json: KIND_C read as KIND_UNSPECIFIED
`,
		"FIELD_NAMES_SWAPPED": `
SAMPLE_READ_DIFFERENTLY block head/a.proto:5:3 t.v1.E.b new-reads-old in binary: "aaaaaaaa" read as ""
SAMPLE_READ_DIFFERENTLY block head/a.proto:5:3 t.v1.E.b old-reads-new in binary: "" read as "aaaaaaaa"
SAMPLE_READ_DIFFERENTLY block head/a.proto:6:3 t.v1.E.a new-reads-old in binary: "" read as "aaaaaaaa"
SAMPLE_READ_DIFFERENTLY block head/a.proto:6:3 t.v1.E.a old-reads-new in binary: "aaaaaaaa" read as ""
`,
		"DEFAULT_CHANGED": `
SAMPLE_READ_DIFFERENTLY block head/a.proto:5:3 t.v1.E.n new-reads-old in binary,json: default 1 read as 2
SAMPLE_READ_DIFFERENTLY block head/a.proto:5:3 t.v1.E.n old-reads-new in binary,json: default 2 read as 1
`,
		"PRESENCE_TO_EXPLICIT": `
SAMPLE_ZERO_READ_AS_UNSET warn head/a.proto:5:3 t.v1.E.v old-reads-new in binary,json: set read as unset
`,
		"PRESENCE_TO_IMPLICIT": `
SAMPLE_ZERO_READ_AS_UNSET warn head/a.proto:5:3 t.v1.E.v new-reads-old in binary,json: set read as unset
`,
		"VALIDATION_TIGHTENED": `
SAMPLE_REFUSED block head/a.proto:4:1 t.v1.E new-reads-old in rules: s string.min_len
`,
		"ENUM_VALUE_ADDED_INVALID": `
SAMPLE_REFUSED block head/a.proto:9:1 t.v1.E old-reads-new in rules: kind enum.defined_only
`,
		"FIELD_REMOVED_REQUIRED": `
SAMPLE_NOT_DECODED block head/a.proto:3:1 t.v1.E old-reads-new in binary,json: proto: required field t.v1.E.n not set
`,
		"USED_MESSAGE_BROKEN-list": `
SAMPLE_NOT_DECODED block head/a.proto:3:1 t.v1.E new-reads-old in json: proto: invalid value for string field city: 42
SAMPLE_NOT_DECODED block head/a.proto:3:1 t.v1.E old-reads-new in json: proto: invalid value for int32 field city: "aaaaaaaa"
SAMPLE_READ_DIFFERENTLY block head/a.proto:6:5 t.v1.E.Addr.city new-reads-old in binary: 42 read as ""
SAMPLE_READ_DIFFERENTLY block head/a.proto:6:5 t.v1.E.Addr.city old-reads-new in binary: "aaaaaaaa" read as 0
`,
		"UTF8_VALIDATION_ENABLED": `
SAMPLE_NOT_DECODED block head/a.proto:3:1 t.v1.E new-reads-old in binary: proto: field t.v1.E.s contains invalid UTF-8
`,
		"FIELD_OUT_OF_ONEOF": `
SAMPLE_NOT_DECODED block head/a.proto:3:1 t.v1.E old-reads-new in json: proto: error parsing "b", oneof t.v1.E.v is already set
SAMPLE_READ_DIFFERENTLY block head/a.proto:8:3 t.v1.E.b old-reads-new in binary: "aaaaaaaa" read as ""
`,
		"REPEATED_TO_SINGULAR": `
SAMPLE_NOT_DECODED block head/a.proto:3:1 t.v1.E new-reads-old in json: proto: invalid value for string field v: [
SAMPLE_NOT_DECODED block head/a.proto:3:1 t.v1.E old-reads-new in json: proto: syntax error unexpected token "aaaaaaaa"
SAMPLE_READ_DIFFERENTLY block head/a.proto:5:3 t.v1.E.v new-reads-old in binary: 2 elements read as "éééééééé"
SAMPLE_READ_DIFFERENTLY block head/a.proto:5:3 t.v1.E.v old-reads-new in binary: "aaaaaaaa" read as 1 elements
`,
		"FIELD_ADDED_OPTIONAL": ``,
		"ENUM_VALUE_ADDED":     ``,
	} {
		f := load(t, "../compat/testdata/"+name+".txtar")
		findings, err := differential.Execute(t.Context(), f.Base, f.Head, compat.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got := lines(findings); got != strings.TrimSpace(want) {
			t.Errorf("%s:\n%s\nwant:\n%s", name, got, strings.TrimSpace(want))
		}
	}
}

// A policy of one direction executes that direction alone. An API has no events to execute.
func TestPolicyAndScope(t *testing.T) {
	t.Parallel()
	f := load(t, "../compat/testdata/ZIGZAG_ENCODING_CHANGED.txtar")
	for policy, want := range map[compat.Policy][2]bool{
		compat.Full: {true, true}, compat.Backward: {true, false}, compat.Forward: {false, true},
	} {
		findings, err := differential.Execute(t.Context(), f.Base, f.Head, compat.Options{Policy: policy})
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
	if findings, err := differential.Execute(t.Context(), f.Base, f.Head, compat.Options{Scope: compat.API}); err != nil ||
		len(findings) > 0 {
		t.Errorf("the scope API has %d findings (%v), expected none", len(findings), err)
	}
}
