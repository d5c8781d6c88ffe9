package compat_test

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/parley-chat/parley/schemacheck/compat"
	"github.com/parley-chat/parley/schemacheck/compat/fixture"
	"github.com/parley-chat/parley/schemacheck/compat/rule"
)

var update = flag.Bool("update", false, "write the findings of each fixture into it")

func load(t testing.TB, path string) *fixture.Fixture {
	t.Helper()
	f, err := fixture.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func compare(t testing.TB, base, head []protoreflect.FileDescriptor, o compat.Options) []compat.Finding {
	t.Helper()
	findings, err := compat.Compare(t.Context(), base, head, o)
	if err != nil {
		t.Fatal(err)
	}
	return findings
}

// Each rule has a fixture of its name that triggers it and, unless the fixture lists more,
// nothing else (K-151, K-152, KS11 to KS15). Directions and forms are those of the rule table
// where the change itself does not decide them.
func TestRules(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".txtar")
		id, _, _ := strings.Cut(name, "-")
		found[id] = true
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := load(t, path)
			findings := compare(t, f.Base, f.Head, compat.Options{Scope: f.Scope})
			var got []string
			for _, finding := range findings {
				got = append(got, fixture.Line(finding))
			}
			if *update {
				f.Archive.Comment = []byte(strings.Join(append(f.About, got...), "\n") + "\n")
				if err := os.WriteFile(path, txtar.Format(f.Archive), 0o600); err != nil {
					t.Fatal(err)
				}
			} else if !slices.Equal(got, f.Want) {
				t.Errorf("findings:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(f.Want, "\n"))
			}
			checkVerdict(t, rule.ID(id), name == id, f.Scope, findings)
		})
	}
	for _, r := range compat.Rules() {
		if !found[string(r.ID)] && !strings.HasPrefix(r.Code, "W") {
			t.Errorf("%s has no fixture", r.ID)
		}
	}
}

// checkVerdict compares the findings of a rule's fixture with the rule's row in the table.
func checkVerdict(t *testing.T, id rule.ID, plain bool, scope compat.Scope, findings []compat.Finding) {
	t.Helper()
	want, ok := rule.ByID(id)
	if !ok {
		t.Fatalf("there is no rule %s", id)
	}
	if want.Severity == compat.Allow && (scope == compat.Event || plain || id == "SCHEMA_IDENTICAL") {
		if len(findings) > 0 {
			t.Errorf("%s is allowed, but has %d findings, expected none", id, len(findings))
		}
		return
	}
	i := slices.IndexFunc(findings, func(f compat.Finding) bool { return f.Rule == id })
	switch {
	case i < 0:
		t.Errorf("%s did not fire", id)
	case !plain:
	case findings[i].Severity != want.Severity && scope == compat.Event:
		t.Errorf("%s fired as %s, the table says %s", id, findings[i].Severity, want.Severity)
	case findings[i].OldReadsNew != want.OldReadsNew || findings[i].NewReadsOld != want.NewReadsOld ||
		findings[i].Form != want.Form:
		t.Errorf("%s breaks other directions or forms than the table says", id)
	case findings[i].Line == 0 && findings[i].File != "":
		t.Errorf("%s has no position", id)
	}
}

// A schema may replace itself under every scope, and the order of files does not matter.
func TestCompareIsDeterministic(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			t.Parallel()
			f := load(t, path)
			for _, scope := range []compat.Scope{compat.Event, compat.API, compat.All} {
				for _, finding := range compare(t, f.Base, f.Base, compat.Options{Scope: scope}) {
					if finding.Severity == compat.Block {
						t.Errorf("a schema cannot replace itself: %s, expected no finding that blocks", fixture.Line(finding))
					}
				}
				want := compare(t, f.Base, f.Head, compat.Options{Scope: scope})
				slices.Reverse(f.Base)
				slices.Reverse(f.Head)
				if got := compare(t, f.Base, f.Head, compat.Options{Scope: scope}); !slices.Equal(got, want) {
					t.Errorf("%d findings with the files in another order, expected the same %d", len(got), len(want))
				}
			}
		})
	}
}

// A policy of one direction drops findings that break the other direction alone, and keeps those
// that block under every policy.
func TestPolicies(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]map[compat.Policy]int{
		"FIELD_ADDED_WITH_MESSAGE_IN_FILE": {compat.Full: 1, compat.FullTransitive: 1, compat.Backward: 0, compat.Forward: 1},
		"VALIDATION_TIGHTENED":             {compat.Full: 1, compat.FullTransitive: 1, compat.Backward: 1, compat.Forward: 0},
		"ZIGZAG_ENCODING_CHANGED":          {compat.Full: 1, compat.FullTransitive: 1, compat.Backward: 1, compat.Forward: 1},
		"FIELD_REMOVED_NOT_RESERVED":       {compat.Full: 1, compat.FullTransitive: 1, compat.Backward: 1, compat.Forward: 1},
	} {
		f := load(t, "testdata/"+name+".txtar")
		for policy, n := range want {
			if got := compare(t, f.Base, f.Head, compat.Options{Policy: policy}); len(got) != n {
				t.Errorf("%s under %s: %d findings, expected %d", name, policy, len(got), n)
			}
		}
	}
}

func TestParsePolicy(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]compat.Policy{
		"NONE": compat.None, "BACKWARD": compat.Backward, "BACKWARD_TRANSITIVE": compat.BackwardTransitive,
		"FORWARD":            compat.Forward,
		"FORWARD_TRANSITIVE": compat.ForwardTransitive, "FULL": compat.Full, "FULL_TRANSITIVE": compat.FullTransitive,
	} {
		for _, s := range []string{name, strings.ToLower(name)} {
			if got, err := compat.ParsePolicy(s); err != nil || got != want || got.String() != name {
				t.Errorf("%s is parsed as %v (%v), expected %v", s, got, err, want)
			}
		}
	}
	if _, err := compat.ParsePolicy("FULL TRANSITIVE"); err == nil {
		t.Error("FULL TRANSITIVE was accepted, expected an error: no registry has it")
	}
}

// Each rule has a reason and, unless it allows the change, a suggestion, of one sentence each.
func TestRulesHaveReasons(t *testing.T) {
	t.Parallel()
	for _, r := range compat.Rules() {
		for what, s := range map[string]string{"why": r.Why, "instead": r.Suggestion} {
			if s == "" && what == "instead" && r.Severity == compat.Allow {
				continue
			}
			if !strings.HasSuffix(s, ".") || strings.Count(s, ". ") > 0 {
				t.Errorf("%s: %s is not one sentence: %q", r.ID, what, s)
			}
		}
		if breaks := r.OldReadsNew || r.NewReadsOld; breaks != (r.Form != "") {
			t.Errorf("%s: forms and directions do not agree", r.ID)
		}
	}
}
