package command

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/parley-chat/parley/schemacheck/internal/report"
)

// findings returns those of a comparison that block, and the whole report.
func findings(t *testing.T, dir string, args ...string) ([]report.Finding, report.Report) {
	t.Helper()
	got := run(t, dir, append(args, "--format", "json")...)
	var r report.Report
	if err := json.Unmarshal([]byte(got.out), &r); err != nil {
		t.Fatalf("%v: %s%s", err, got.out, got.err)
	}
	var list []report.Finding
	for _, f := range r.Findings {
		if f.Severity == "block" {
			list = append(list, f)
		}
	}
	return list, r
}

// One edit is one finding; what follows from it stands below it.
func TestOneFindingPerCause(t *testing.T) {
	t.Parallel()
	files := func(change ...string) map[string]string {
		return declared(append(change, "int64 count = 2;", "int64 count = 2; Kind kind = 3;", "message Item {",
			"enum Kind { KIND_UNSPECIFIED = 0; KIND_GIFT = 1; }\nmessage Item {",
			"string order_id = 1;", "string order_id = 1 [(buf.validate.field).string.max_len = 64]; oneof paid { string card = 4; string cash = 5; }",
			"import \"shop/v1/options.proto\";",
			"import \"buf/validate/validate.proto\";\nimport \"shop/v1/options.proto\";")...)
	}
	dir := repository(t, files())
	for name, tt := range map[string]struct {
		change       [2]string
		rule, forms  string
		consequences string
	}{
		"field of a used type renamed": {[2]string{"string sku", "string article"}, "N01", "json", "K03"},
		"type of a field changed":      {[2]string{"string sku", "int64 sku"}, "T", "binary,json,registry", "K03 W02"},
		"enum value renamed":           {[2]string{"KIND_GIFT", "KIND_PRESENT"}, "E05", "", "K03 W01"},
		"case removed from a oneof":    {[2]string{" string cash = 5;", ""}, "O02", "registry", "R02"},
		"case moved out of a oneof": {[2]string{"oneof paid { string card = 4; string cash = 5; }",
			"oneof paid { string card = 4; } string cash = 5;"}, "O05", "binary,json,registry", "W0"},
		"oneof split": {[2]string{"string card = 4; string cash = 5; }",
			"string card = 4; } oneof late { string cash = 5; }"}, "O11", "binary,json,registry", "W01 W02"},
		"rule tightened": {[2]string{"max_len = 64", "max_len = 8"}, "Y01", "rules", "W03"},
	} {
		t.Run(name, func(t *testing.T) {
			head := files()
			for path := range head {
				head[path] = strings.ReplaceAll(head[path], tt.change[0], tt.change[1])
			}
			write(t, dir, head)
			list, _ := findings(t, dir, "--base", "main")
			if len(list) != 1 || !strings.HasPrefix(list[0].Rule, tt.rule) || tt.forms != "" &&
				strings.Join(list[0].Forms, ",") != tt.forms {
				t.Fatalf("%+v", list)
			}
			var rules string
			for _, c := range list[0].Consequences {
				rules += c.Rule + " "
				if list[0].Rule == "N01" && strings.Contains(strings.Join(c.Forms, ","), "binary") && c.Rule[0] == 'W' {
					t.Errorf("a rename is shown by binary samples: %+v", c)
				}
			}
			for _, want := range strings.Fields(tt.consequences) {
				if !strings.Contains(rules, want) {
					t.Errorf("consequences %q, want %q", rules, want)
				}
			}
			if out := run(t, dir, "--base", "main").out; !strings.Contains(out,
				"\n    also "+list[0].Consequences[0].ID.Label()) {
				t.Error(out)
			}
		})
	}
}

// A file that changes its options of generated code is one finding.
func TestFileOptionsAreOneFinding(t *testing.T) {
	t.Parallel()
	dir := repository(t, declared())
	write(t, dir, declared("message Item", "option java_package = \"a\";\noption go_package = \"b\";\nmessage Item"))
	_, r := findings(t, dir, "--base", "main")
	n := 0
	for _, f := range r.Findings {
		if f.Rule == "K07" {
			n++
			if f.Detail != "go_package, java_package" && f.Detail != "java_package, go_package" {
				t.Error(f.Detail)
			}
		}
	}
	if n != 1 {
		t.Errorf("%d findings: %+v", n, r.Findings)
	}
}

// What is said of an API does not speak of events, consumers or registries.
func TestReasonsOfAPI(t *testing.T) {
	t.Parallel()
	dir := repository(t, declared())
	write(t, dir, declared("string name = 1;", "int64 name = 1;", "message OpenResponse {}", ""))
	git(t, dir, "rm", "-q", "--cached", "store/v1/store.proto")
	write(t, dir, map[string]string{"store/v1/store.proto": `syntax = "proto3";
package store.v1;
service Store { rpc Open(OpenRequest) returns (OpenRequest); }
message OpenRequest { int64 label = 1; }
`})
	list, _ := findings(t, dir, "--base", "main")
	if len(list) < 3 {
		t.Fatalf("%+v", list)
	}
	for _, f := range list {
		for _, s := range append([]string{f.Title, f.Why, f.Suggestion, f.Breaks()}, f.Forms...) {
			for _, word := range []string{"event", "consumer", "registr"} {
				if !f.API || strings.Contains(strings.ToLower(s), word) {
					t.Errorf("%s: %q", f.Rule, s)
				}
			}
		}
	}
}

// The view for people has every change once, its verdict below it, and the exit code
// of the comparison.
func TestDiff(t *testing.T) {
	t.Parallel()
	dir := repository(t, declared())
	expect(t, dir, Clean, "nothing has changed but comments, order or white space\ncompatible: 0 blocks", "diff", "--base",
		"main")
	write(t, dir, declared("string order_id = 1;", "string order_id = 1; optional string note = 3 [deprecated = true];",
		"version: 1", "version: 2"))
	expect(t, dir, Clean, `~ shop.v1.OrderPlaced  shop/v1/placed.proto, an event on orders
  ~ options [shop.v1.event]:{topic:"orders" event_type:"OrderPlaced" version:1 key:"order_id"}
    now options [shop.v1.event]:{topic:"orders" event_type:"OrderPlaced" version:2 key:"order_id"}
  + optional string note = 3 [deprecated:true]
compatible: 0 blocks`, "diff", "--base", "main")
	write(t, dir, declared("int64 count = 2;", "reserved 2;", "string sku", "bytes code",
		"service Store { rpc Open(OpenRequest)", "service Store { rpc Close(stream OpenRequest)", "message OpenResponse {}",
		"message OpenResponse {}\nenum Kind { KIND_UNSPECIFIED = 0; }"))
	got := expect(t, dir, Findings, `~ shop.v1.Item  shop/v1/item.proto, used by events
  ~ string sku = 1
    now bytes code = 1
      block `, "diff", "--base", "main")
	for _, want := range []string{
		"  - int64 count = 2\n      block FIELD_REMOVED_NAME_NOT_RESERVED (R03): field removed, name not reserved\n",
		"  ~ reserved none\n    now reserved 2\n",
		"+ store.v1.Kind  store/v1/store.proto\n", "rpc Open(store.v1.OpenRequest) returns (store.v1.OpenResponse)\n",
		"  + rpc Close(stream store.v1.OpenRequest)", "block RPC_REMOVED (S02)", "not compatible: ",
	} {
		if !strings.Contains(got.out, want) {
			t.Errorf("no %q in\n%s", want, got.out)
		}
	}
	if strings.Count(got.out, "block FIELD_REMOVED_NAME_NOT_RESERVED (R03)") != 1 {
		t.Error(got.out)
	}
	expect(t, dir, Failed, "--base is missing", "diff")
	expect(t, dir, Failed, "flag provided but not defined: -format", "diff", "--base", "main", "--format", "json")
}
