package gate_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A mistake is a change of the engine that somebody could make, and the test that fails
// then: one of a package beside this one.
type mistake struct{ file, from, to, in, fails string }

// rulesOf is the test of a fixture of the rules, executed that of its samples.
func rulesOf(name string) string  { return "TestRules$/" + name + "$" }
func executed(name string) string { return "TestExecutionAgreesWithTheRules$/" + name + "$" }

var mistakes = []mistake{
	{"compat/fields.go", `case !number && !name:`, `case false:`, "compat", rulesOf("R02")},
	{"compat/fields.go", `if b.ReservedRanges().Has(h.Number()) {`, `if h.ContainingMessage().ReservedRanges().Has(h.Number()) {`, "compat", rulesOf("F11")},
	{"compat/schema/names.go", `(h.JSONName() == string(name) || JSONName(name) == h.JSONName() || JSONName(name) == string(h.Name()))`, `false`, "compat", rulesOf("F12-json")},
	{"compat/schema/names.go", `newBreaks = newBreaks || f.JSONName() == h.JSONName() || f.JSONName() == string(h.Name())`, `newBreaks = false`, "compat", rulesOf("F12-replaced")},
	{"compat/schema/names.go", `oldBreaks = oldBreaks || h.JSONName() == f.JSONName() || h.JSONName() == string(f.Name())`, `oldBreaks = oldBreaks || h.JSONName() == f.JSONName()`, "compat", rulesOf("F12-taken")},
	{"compat/fields.go", `if c.trial.ZeroRefused(b) {`, `if false {`, "compat", rulesOf("Y08")},
	{"compat/fields.go", `case c.trial.ZeroRefused(h):`, `case false:`, "compat", rulesOf("Y06")},
	{"compat/fields.go", `case b.HasDefault() != h.HasDefault():`, `case false:`, "compat", rulesOf("D02")},
	{"compat/fields.go", `moved.Number() == old.Number():`, `moved.Number() != old.Number():`, "compat", rulesOf("N05")},
	{"compat/files.go", `			c.defaultOf(b, h)
			c.uses(b, h)`, `			c.uses(b, h)`, "compat", rulesOf("D01-extension")},
	{"compat/files.go", `schema.SameTypes(b, f) && !c.stands[f.Path()]`, `false`, "compat", rulesOf("M13")},
	{"compat/oneofs.go", `came[ho.Name()] > 1`, `came[ho.Name()] > 9`, "compat", rulesOf("O12")},
	{"compat/oneofs.go", `went[bo.Name()] > 1`, `went[bo.Name()] > 9`, "compat", rulesOf("O11")},
	{"compat/oneofs.go", `case was == nil:
			c.ruleInHead("Y18", o)`, `case was == nil:`, "compat", rulesOf("Y18")},
	{"compat/oneofs.go", `!schema.OneofStays(o, h, c.fieldsOf(h))`, `false`, "compat", rulesOf("Y19")},
	{"compat/enums.go", `first.Name() != v.Name() && b.Values()`, `first.Name() == v.Name() && b.Values()`, "compat", rulesOf("E10")},
	{"compat/enums.go", `h.IsClosed() {
			c.inHead("E13"`, `!h.IsClosed() {
			c.inHead("E13"`, "compat", rulesOf("E13")},
	{"compat/enums.go", `first.Number() != now.Number()`, `first.Number() == now.Number()`, "compat", rulesOf("E11")},
	{"compat/messages.go", `if h.Index() < last {`, `if h.Index() > last {`, "compat", rulesOf("M07")},
	{"compat/messages.go", `case lost[0] == was:
			c.inHead("V01"`, `case lost[0] != was:
			c.inHead("V01"`, "compat", rulesOf("V01")},
	{"compat/options.go", `is.Version != was.Version+1 || !c.grows(h)`, `!c.grows(h)`, "compat", rulesOf("X03-two")},
	{"compat/options.go", `case f.Name() == "topic":`, `case false:`, "compat", rulesOf("X01")},
	{"compat/services.go", `if b.IsStreamingServer() != h.IsStreamingServer() {`, `if false {`, "compat", rulesOf("S06")},
	{"compat/validate.go", `c.trial.ValueRefused(b, v) || c.trial.ZeroRefused(b)`, `c.trial.ValueRefused(b, v)`, "compat", rulesOf("Y09-cel")},
	{"compat/validate.go", `!c.trial.ValueRefused(h, v) && (`, `(`, "compat", rulesOf("E01-const")},
	{"compat/types.go", `if c.trial.ZeroRefused(b) || c.trial.ZeroRefused(h) {`, `if false {`, "compat", rulesOf("Y15")},
	{"compat/kinds/kinds.go", `other || !hi.holds(bi), other || !bi.holds(hi)`, `other || !bi.holds(hi), other || !hi.holds(bi)`, "compat", rulesOf("T01")},
	{"compat/kinds/kinds.go", `case bi.bits > 0 && bi.encoding == hi.encoding:`, `case bi.bits > 0:`, "compat", rulesOf("L09")},
	{"compat/constraint/constraint.go", `path == "" && c.ignoresNothing(b, h)`, `path == ""`, "compat", rulesOf("Y16-zero")},
	{"compat/constraint/interval.go", `return d > 0 || d == 0 && (x.open || !y.open)`, `return d >= 0`, "compat/constraint", "Test"},
	{"compat/constraint/rules.go", `meant[name] != means[name]`, `false`, "compat", rulesOf("Y14-meaning")},
	{"compat/comparer.go", `c.through("K03", h, imported)`, `_ = imported`, "compat", rulesOf("K03")},
	{"compat/schema/features.go", `return v == descriptorpb.FeatureSet_VERIFY`, `return v != descriptorpb.FeatureSet_VERIFY`, "compat", rulesOf("U01")},
	{"compat/standing/standing.go", `key == "" && fields`, `key != "" && fields`, "compat", rulesOf("H04-key")},
	{"execute/compare.go", `case w.Has(wf) != r.Has(rf):
		// Equal`, `case false:
		// Equal`, "execute", "TestFindings"},
	{"execute/compare.go", `return w == r // newer than the reader`, `return w != r`, "execute", executed("E01")},
	{"execute/side.go", `header.GetOptions().GetFeatures()), s.rules)`, `header.GetOptions().GetFeatures()), "")`, "execute", executed("Y14-meaning")},
	{"execute/sample/values.go", `	if depth >= maxDepth {
		return nil
	}`, ``, "gate", "TestDeepTypesAreExecuted|TestRandomRecursiveTypes"},
	{"gate/gate.go", `return known[f.Subject] >= f.Severity`, `return known[f.Subject] > 0`, "gate", "TestWarningsHideNoBreak"},
	{"gate/gate.go", `if i < len(versions)-1 {`, `if false {`, "gate", "TestCompareAll"},
	{"gate/gate.go", `case !o.Policy.Transitive():`, `case o.Policy != 1:`, "gate", "TestCompareAll"},
}

// Each mistake is caught by the test that stands beside it. PARLEY_SCHEMA_MISTAKES says
// how many are tried, "all" for all of them; PARLEY_SCHEMA_SEED turns which.
func TestMistakesAreCaught(t *testing.T) {
	if testing.Short() {
		t.Skip("each mistake is compiled")
	}
	n, err := strconv.Atoi(os.Getenv("PARLEY_SCHEMA_MISTAKES"))
	if err != nil || n < 1 {
		n = 1
	}
	if os.Getenv("PARLEY_SCHEMA_MISTAKES") == "all" {
		n = len(mistakes)
	}
	turn, _ := strconv.Atoi(os.Getenv("PARLEY_SCHEMA_SEED")) // none is 0
	for i := range min(n, len(mistakes)) {
		m := mistakes[(turn+i)%len(mistakes)]
		t.Run(strings.ReplaceAll(m.file, "/", "_")+"_"+strconv.Itoa((turn+i)%len(mistakes)), m.try)
	}
}

func (m mistake) try(t *testing.T) {
	path, err := filepath.Abs("../" + m.file)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil || strings.Count(string(text), m.from) != 1 {
		t.Fatalf("%q stands %d times in %s, %v", m.from, strings.Count(string(text), m.from), m.file, err)
	}
	dir := t.TempDir()
	changed, overlay := filepath.Join(dir, "changed.go"), filepath.Join(dir, "overlay.json")
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{path: changed}})
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{changed: strings.Replace(string(text), m.from, m.to, 1), overlay: string(replace)} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "go", "test", "-overlay", overlay, "-run", m.fails, "-count=1", "./"+m.in)
	cmd.Dir, cmd.WaitDelay = "..", time.Minute
	out, err := cmd.CombinedOutput()
	switch {
	case err == nil:
		t.Errorf("%s: %q became %q, and nothing failed", m.file, m.from, m.to)
	case strings.Contains(string(out), "[build failed]"):
		t.Errorf("%s\n%s", m.file, out)
	case !strings.Contains(string(out), "--- FAIL") && !strings.Contains(string(out), "panic:") && !strings.Contains(string(out), "stack overflow"):
		t.Errorf("%s: no test failed\n%s", m.file, out)
	}
}
