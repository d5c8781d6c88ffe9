package compat_test

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	_ "buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"github.com/bufbuild/protocompile"
	"golang.org/x/tools/txtar"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/parley-chat/parley/schemacheck/compat"
)

var update = flag.Bool("update", false, "write the findings of each fixture into it")

// A fixture is an archive of two schemas: base/, head/, and both/ for what they
// share. Its comment says what it shows, may hold "scope: api" or "scope: all", and
// lists the findings, one a line: id, severity, place, what breaks, detail.
type fixture struct {
	path       string
	archive    *txtar.Archive
	about      []string
	scope      compat.Scope
	want       []string
	base, head []protoreflect.FileDescriptor
}

// compile builds the files of one side. Files below imported/ are no part of the
// scope. Imports come from the side itself or from the descriptors that are linked
// into the test.
func compile(t testing.TB, files map[string]string) []protoreflect.FileDescriptor {
	t.Helper()
	c := protocompile.Compiler{
		Resolver: protocompile.CompositeResolver{
			&protocompile.SourceResolver{Accessor: protocompile.SourceAccessorFromMap(files)},
			protocompile.ResolverFunc(func(path string) (protocompile.SearchResult, error) {
				f, err := protoregistry.GlobalFiles.FindFileByPath(path)
				if err != nil {
					return protocompile.SearchResult{}, err
				}
				return protocompile.SearchResult{Proto: protodesc.ToFileDescriptorProto(f)}, nil
			}),
		},
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	compiled, err := c.Compile(context.Background(), slices.Sorted(maps.Keys(files))...)
	if err != nil {
		t.Fatal(err)
	}
	var list []protoreflect.FileDescriptor
	for _, f := range compiled {
		if !strings.HasPrefix(f.Path(), "imported/") {
			list = append(list, f)
		}
	}
	return list
}

func load(t testing.TB, path string) fixture {
	t.Helper()
	a, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f := fixture{path: path, archive: a}
	for line := range strings.Lines(string(a.Comment)) {
		line = strings.TrimSpace(line)
		switch {
		case line == "":
		case line == "scope: api":
			f.scope = compat.API
			f.about = append(f.about, line)
		case line == "scope: all":
			f.scope = compat.All
			f.about = append(f.about, line)
		case strings.HasPrefix(line, "#"):
			f.about = append(f.about, line)
		default:
			f.want = append(f.want, line)
		}
	}
	sides := map[string]map[string]string{"base": {}, "head": {}}
	for _, file := range a.Files {
		side, name, _ := strings.Cut(file.Name, "/")
		for _, s := range []string{"base", "head"} {
			if side == s || side == "both" {
				sides[s][name] = string(file.Data)
			}
		}
	}
	f.base, f.head = compile(t, sides["base"]), compile(t, sides["head"])
	return f
}

func line(f compat.Finding) string {
	var breaks []string
	if f.NewReadsOld {
		breaks = append(breaks, "new-reads-old")
	}
	if f.OldReadsNew {
		breaks = append(breaks, "old-reads-new")
	}
	if breaks == nil {
		breaks = append(breaks, "policy")
	}
	side := "head"
	if f.Base {
		side = "base"
	}
	s := fmt.Sprintf("%s %s %s/%s:%d:%d %s %s", f.Rule, f.Severity, side, f.File, f.Line, f.Column, f.Subject, strings.Join(breaks, " "))
	if f.Form != "" {
		s += " in " + f.Form
	}
	if f.Detail != "" {
		s += ": " + f.Detail
	}
	return s
}

// Each rule has a fixture of its name that fires it and, unless the fixture lists
// it, nothing else (K-151, K-152, KS11 to KS15). Directions and forms are those of
// the rule table where the change at hand does not decide them.
func TestRules(t *testing.T) {
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
			findings := compat.Compare(f.base, f.head, compat.Options{Scope: f.scope})
			var got []string
			for _, finding := range findings {
				got = append(got, line(finding))
			}
			if *update {
				f.archive.Comment = []byte(strings.Join(append(f.about, got...), "\n") + "\n")
				if err := os.WriteFile(path, txtar.Format(f.archive), 0o600); err != nil {
					t.Fatal(err)
				}
			} else if !slices.Equal(got, f.want) {
				t.Errorf("findings:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(f.want, "\n"))
			}
			checkVerdict(t, id, name == id, f.scope, findings)
		})
	}
	for _, r := range compat.Rules() {
		if !found[r.ID] && !strings.HasPrefix(r.ID, "W") {
			t.Errorf("%s has no fixture", r.ID)
		}
	}
}

// checkVerdict holds the fixture of a rule against the rule's line in the table.
func checkVerdict(t *testing.T, id string, plain bool, scope compat.Scope, findings []compat.Finding) {
	t.Helper()
	rule, ok := compat.RuleByID(id)
	if !ok {
		t.Fatalf("there is no rule %s", id)
	}
	if rule.Severity == compat.Allow && (scope == compat.Event || plain || id == "Z01") {
		if len(findings) > 0 {
			t.Errorf("%s is allowed, %d findings", id, len(findings))
		}
		return
	}
	i := slices.IndexFunc(findings, func(f compat.Finding) bool { return f.Rule == id })
	switch {
	case i < 0:
		t.Errorf("%s did not fire", id)
	case !plain:
	case findings[i].Severity != rule.Severity && scope == compat.Event:
		t.Errorf("%s fired as %s, the table says %s", id, findings[i].Severity, rule.Severity)
	case findings[i].OldReadsNew != rule.OldReadsNew || findings[i].NewReadsOld != rule.NewReadsOld || findings[i].Form != rule.Form:
		t.Errorf("%s breaks other directions or forms than the table says", id)
	case findings[i].Line == 0 && findings[i].File != "":
		t.Errorf("%s has no position", id)
	}
}

// The same schema on both sides is clean under every policy and scope, and the
// order of files decides nothing.
func TestCompareIsDeterministic(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		f := load(t, path)
		for _, scope := range []compat.Scope{compat.Event, compat.API, compat.All} {
			for _, finding := range compat.Compare(f.base, f.base, compat.Options{Scope: scope}) {
				if finding.Severity == compat.Block {
					t.Errorf("%s: a schema does not replace itself: %s", path, line(finding))
				}
			}
			want := compat.Compare(f.base, f.head, compat.Options{Scope: scope})
			slices.Reverse(f.base)
			slices.Reverse(f.head)
			if got := compat.Compare(f.base, f.head, compat.Options{Scope: scope}); !slices.Equal(got, want) {
				t.Errorf("%s: %d findings, %d with the files in another order", path, len(want), len(got))
			}
		}
	}
}

// A policy of one direction drops what breaks the other direction alone and keeps
// what is blocked by policy.
func TestPolicies(t *testing.T) {
	for name, want := range map[string]map[compat.Policy]int{
		"F04": {compat.Full: 1, compat.FullTransitive: 1, compat.Backward: 0, compat.Forward: 1},
		"Y01": {compat.Full: 1, compat.FullTransitive: 1, compat.Backward: 1, compat.Forward: 0},
		"T07": {compat.Full: 1, compat.FullTransitive: 1, compat.Backward: 1, compat.Forward: 1},
		"R02": {compat.Full: 1, compat.FullTransitive: 1, compat.Backward: 1, compat.Forward: 1},
	} {
		f := load(t, "testdata/"+name+".txtar")
		for policy, n := range want {
			if got := compat.Compare(f.base, f.head, compat.Options{Policy: policy}); len(got) != n {
				t.Errorf("%s under %s: %d findings, want %d", name, policy, len(got), n)
			}
		}
	}
}

func TestParsePolicy(t *testing.T) {
	for _, p := range []compat.Policy{compat.Full, compat.FullTransitive, compat.Backward, compat.Forward} {
		if got, err := compat.ParsePolicy(strings.ToLower(p.String())); err != nil || got != p {
			t.Errorf("%s: %v, %v", p, got, err)
		}
	}
	if _, err := compat.ParsePolicy("NONE"); err == nil {
		t.Error("NONE is no policy of the gate")
	}
}

// Each rule says why and, unless it allows the change, what to do instead, in one
// sentence each.
func TestRulesHaveReasons(t *testing.T) {
	for _, r := range compat.Rules() {
		for what, s := range map[string]string{"why": r.Why, "instead": r.Instead} {
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
