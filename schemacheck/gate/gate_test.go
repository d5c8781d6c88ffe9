package gate_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/parley-chat/parley/schemacheck/compat"
	"github.com/parley-chat/parley/schemacheck/compat/fixture"
	"github.com/parley-chat/parley/schemacheck/gate"
)

func compiled(t testing.TB, files map[string]string) []protoreflect.FileDescriptor {
	t.Helper()
	list, err := fixture.Compile(files)
	if err != nil {
		t.Fatalf("%v\n%v", err, files)
	}
	return list
}

func rules(findings []compat.Finding) []string {
	var ids []string
	for _, f := range findings {
		ids = append(ids, string(f.Rule))
	}
	return ids
}

func blocks(findings []compat.Finding) bool {
	return slices.ContainsFunc(findings, func(f compat.Finding) bool { return f.Severity == compat.Block })
}

// An addition at the deepest level of a type that contains itself, types that contain it, or maps
// of them is allowed, at any depth.
func TestDeepTypesAreExecuted(t *testing.T) {
	t.Parallel()
	const head = "syntax = \"proto3\";\npackage t.v1;\n"
	for name, text := range map[string]string{
		"maps three levels down":   "message E {\n  A a = 1;\n  message A {\n    B b = 1;\n    message B {\n      C c = 1;\n      message C {\n        map<string, D> d = 1;\n      }\n      message D {\n        int32 n = 1;\n%s      }\n    }\n  }\n}\n",
		"map of itself":            "message E {\n  map<string, E> e = 1;\n  int32 n = 2;\n%s}\n",
		"map of one that holds it": "message E {\n  F f = 1;\n}\nmessage F {\n  map<int32, E> e = 1;\n  repeated F f = 2;\n%s}\n",
		"list of maps of itself":   "message E {\n  repeated F f = 1;\n  oneof v {\n    E e = 2;\n    F g = 3;\n  }\n}\nmessage F {\n  map<bool, F> f = 1;\n  map<string, E> e = 2;\n%s}\n",
	} {
		base := compiled(t, map[string]string{"e.proto": head + fmt.Sprintf(text, "")})
		added := compiled(t, map[string]string{"e.proto": head + fmt.Sprintf(text, "  optional string added = 9;\n")})
		broken := compiled(t, map[string]string{"e.proto": head +
			fmt.Sprintf(text, "  optional string added = 9;\n  reserved 10;\n")})
		findings, err := gate.Compare(t.Context(), base, added, compat.Options{})
		if err != nil || len(findings) > 0 {
			t.Errorf("%s: an added field has the findings %v (%v), expected it to be allowed", name, rules(findings), err)
		}
		if findings, err = gate.Compare(t.Context(), broken, base, compat.Options{}); err != nil || !blocks(findings) {
			t.Errorf("%s: a removed field without a reservation has the findings %v (%v), expected a block", name, rules(findings), err)
		}
	}
}

// nested makes n messages that contain each other at random, in all forms of fields.
func nested(r *rand.Rand, n int, added bool) string {
	var b strings.Builder
	b.WriteString("syntax = \"proto3\";\npackage t.v1;\n")
	forms := []string{"M%d", "repeated M%d", "map<string, M%d>", "map<int32, M%d>", "optional M%d"}
	for i := range n {
		fmt.Fprintf(&b, "message M%d {\n  string id = 1;\n", i)
		number := 2
		for range 1 + r.IntN(3) {
			fmt.Fprintf(&b, "  "+forms[r.IntN(len(forms))]+" f%d = %d;\n", r.IntN(n), number, number)
			number++
		}
		if i+1 < n { // a chain as deep as there are messages
			fmt.Fprintf(&b, "  "+forms[r.IntN(len(forms))]+" next = %d;\n", i+1, number)
		}
		if added && i == n-1 {
			b.WriteString("  optional int32 added = 40;\n")
		}
		b.WriteString("}\n")
	}
	return b.String()
}

// addsToNested compares random recursive messages with the same and one more field.
func addsToNested(t *testing.T, seed uint64) {
	t.Helper()
	n := 1 + int(seed%6)
	make := func(added bool) []protoreflect.FileDescriptor {
		return compiled(t, map[string]string{"e.proto": nested(rand.New(rand.NewPCG(seed, seed)), n, added)})
	}
	findings, err := gate.Compare(t.Context(), make(false), make(true), compat.Options{})
	if err != nil || blocks(findings) {
		t.Errorf("seed %d: an added field has the findings %v (%v), expected it to be allowed\n%s", seed, rules(findings), err, nested(rand.New(rand.NewPCG(seed, seed)), n, true))
	}
}

func TestRandomRecursiveTypes(t *testing.T) {
	t.Parallel()
	first, n := uint64(1), uint64(20)
	if os.Getenv("PARLEY_TEST_LONG") == "1" { // every night
		n = 60
	}
	if s, err := strconv.ParseUint(os.Getenv("PARLEY_SCHEMA_SEED"), 10, 63); err == nil {
		first = s
	}
	if e, err := strconv.ParseUint(os.Getenv("PARLEY_SCHEMA_EDITS"), 10, 63); err == nil {
		n = e / 10
	}
	for seed := first; seed < first+n; seed++ {
		addsToNested(t, seed)
	}
}

func FuzzRecursiveTypes(f *testing.F) {
	for seed := range uint64(12) {
		f.Add(seed + 1000)
	}
	f.Fuzz(addsToNested)
}

// A vendored well-known type with other fields is reported and not executed: runtimes would use
// the real one.
func TestAlteredWellKnownType(t *testing.T) {
	t.Parallel()
	stamp := "syntax = \"proto3\";\npackage google.protobuf;\nmessage Timestamp {\n  string text = 1;\n}\n"
	event := func(more string) map[string]string {
		return map[string]string{
			"google/protobuf/timestamp.proto": stamp,
			"e.proto":                         "syntax = \"proto3\";\npackage t.v1;\nimport \"google/protobuf/timestamp.proto\";\nmessage E {\n  google.protobuf.Timestamp at = 1;\n" + more + "}\n",
		}
	}
	findings, err := gate.Compare(t.Context(), compiled(t, event("")), compiled(t, event("  optional int32 n = 2;\n")),
		compat.Options{Events: []string{"e.proto"}})
	if err != nil || !slices.Equal(rules(findings), []string{"WELL_KNOWN_TYPE_ALTERED"}) ||
		findings[0].Detail != "google.protobuf.Timestamp" {
		t.Errorf("the findings are %+v (%v), expected one that names the altered type", findings, err)
	}
}

// Types beyond the budget are reported, and the others are still executed.
func TestTooLargeIsSaid(t *testing.T) {
	t.Parallel()
	event := func(kind string) []protoreflect.FileDescriptor {
		var b strings.Builder
		b.WriteString("syntax = \"proto3\";\npackage t.v1;\nmessage E {\n  oneof v {\n")
		for i := range 120 { // each of them changes, and each needs samples of its own
			fmt.Fprintf(&b, "    %s f%d = %d;\n", kind, i, i+1)
		}
		return compiled(t, map[string]string{"e.proto": b.String() + "  }\n}\n"})
	}
	found := execute(t, event("int32"), event("sint64"))
	if !slices.Contains(found, "SAMPLES_INCOMPLETE") || !slices.Contains(found, "SAMPLE_READ_DIFFERENTLY") {
		t.Errorf("the findings are %v, expected one on the budget and one of a sample", slices.Compact(found))
	}
	if found := execute(t, wide(t, 3000, false, "string"), wide(t, 3000, false, "int32")); slices.Contains(found,
		"SAMPLES_INCOMPLETE") || !slices.Contains(found, "SAMPLE_NOT_DECODED") {
		t.Errorf("one of many fields changed: the findings are %v, expected that change", found)
	}
}

// A comparison ends with its context's error.
func TestContext(t *testing.T) {
	t.Parallel()
	stop := errors.New("stopped")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stop)
	f := wide(t, 10, false, "string")
	if _, err := gate.Compare(ctx, f, wide(t, 10, false, "int32"), compat.Options{}); !errors.Is(err, stop) {
		t.Errorf("the comparison returned %v, expected the context's error", err)
	}
}

// compareAll collects the comparisons with versions that are in memory.
func compareAll(
	t *testing.T, versions [][]protoreflect.FileDescriptor, head []protoreflect.FileDescriptor, o compat.Options,
) (list []gate.Comparison, err error) {
	t.Helper()
	n, version := gate.InMemory(versions)
	for c, err := range gate.CompareAll(t.Context(), n, version, head, o) {
		if err != nil {
			return nil, err
		}
		list = append(list, c)
	}
	return list, nil
}

// A version is read when it is compared, and not at all if the caller stops earlier. One that
// cannot be read ends the comparison.
func TestCompareAllReadsLazily(t *testing.T) {
	t.Parallel()
	event := func(kind string) []protoreflect.FileDescriptor { return wide(t, 3, false, kind) }
	broken := errors.New("no such version")
	var asked []int
	version := func(i int) ([]protoreflect.FileDescriptor, error) {
		if asked = append(asked, i); i == 1 {
			return nil, broken
		}
		return event("string"), nil
	}
	o := compat.Options{Policy: compat.FullTransitive}
	for range gate.CompareAll(t.Context(), 4, version, event("string"), o) {
		break
	}
	if !slices.Equal(asked, []int{3}) {
		t.Errorf("one comparison has read the versions %v, want [3]", asked)
	}
	asked = nil
	var last error
	for _, err := range gate.CompareAll(t.Context(), 4, version, event("string"), o) {
		last = err
	}
	if !errors.Is(last, broken) || !slices.Equal(asked, []int{3, 2, 1}) {
		t.Errorf("%v after the versions %v, want the error of version 1 after [3 2 1]", last, asked)
	}
}

// A policy decides which versions are compared. Conditions of the step from the newest version
// are not checked against older ones.
func TestCompareAll(t *testing.T) {
	t.Parallel()
	event := func(kind string) []protoreflect.FileDescriptor { return wide(t, 3, false, kind) }
	versions := [][]protoreflect.FileDescriptor{event("int32"), event("string"), event("bytes")}
	for policy, want := range map[compat.Policy][]int{
		compat.None: nil, compat.Full: {2}, compat.Backward: {2}, compat.Forward: {2},
		compat.FullTransitive: {2, 1, 0}, compat.BackwardTransitive: {2, 1, 0}, compat.ForwardTransitive: {2, 1, 0},
	} {
		compared, err := compareAll(t, versions, event("bytes"), compat.Options{Policy: policy})
		var got []int
		for _, c := range compared {
			got = append(got, c.Version)
			if blocks(c.Findings) != (c.Version < 2) {
				t.Errorf("%s: version %d: %v", policy, c.Version, rules(c.Findings))
			}
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v", policy, got, err)
		}
	}
	if compared, err := compareAll(t, nil, event("bytes"), compat.Options{}); err != nil || compared != nil {
		t.Errorf("without earlier versions: %v (%v), expected no comparison", compared, err)
	}
	enum := func(zero string) []protoreflect.FileDescriptor {
		return compiled(t, map[string]string{
			"e.proto": "syntax = \"proto3\";\npackage t.v1;\nmessage E {\n  int32 n = 1;\n}\n" + zero})
	}
	bad := enum("enum K {\n  K_A = 0;\n}\n")
	compared, err := compareAll(t, [][]protoreflect.FileDescriptor{enum(""), enum("")}, bad,
		compat.Options{Policy: compat.FullTransitive})
	if err != nil || len(compared) != 2 || len(compared[1].Findings) != 0 ||
		!slices.Equal(rules(compared[0].Findings), []string{"ENUM_ZERO_NOT_UNSPECIFIED"}) {
		t.Errorf("%+v, %v", compared, err)
	}
}

// A break that samples show is not hidden by a warning about the same element.
func TestWarningsHideNoBreak(t *testing.T) {
	t.Parallel()
	option := "syntax = \"proto3\";\npackage t.v1;\nimport \"google/protobuf/descriptor.proto\";\nmessage Option {\n  string topic = 1;\n  int32 version = 2;\n}\nextend google.protobuf.MessageOptions {\n  Option event = 50800;\n}\n"
	event := func(fields string) []protoreflect.FileDescriptor {
		return compiled(t, map[string]string{
			"imported/option.proto": option,
			"e.proto":               "syntax = \"proto3\";\npackage t.v1;\nimport \"imported/option.proto\";\nmessage E {\n  option (event) = {topic: \"t\", version: 1};\n" + fields + "}\n",
		})
	}
	// The added field warns at the event (its version stayed), and the lists that became
	// fields are refused there by readers of JSON.
	findings, err := gate.Compare(t.Context(), event("  repeated string v = 1;\n"),
		event("  string v = 1;\n  optional int32 n = 2;\n"), compat.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if ids := rules(findings); !slices.Contains(ids, "EVENT_VERSION_NOT_RAISED") ||
		!slices.Contains(ids, "SAMPLE_NOT_DECODED") {
		t.Errorf("%v", ids)
	}
}
