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

// A mistake is a plausible wrong change of the engine, with the test that fails then, in a
// neighbouring package.
type mistake struct{ file, from, to, in, fails string }

// rulesOf is the test of a fixture of the rules, executed that of its samples.
func rulesOf(name string) string  { return "TestRules$/" + name + "$" }
func executed(name string) string { return "TestExecutionAgreesWithTheRules$/" + name + "$" }

var mistakes = []mistake{
	{"compat/fields.go", `case !number && !name:`, `case false:`, "compat", rulesOf("FIELD_REMOVED_NOT_RESERVED")},
	{"compat/fields.go", `if b.ReservedRanges().Has(h.Number()) {`,
		`if h.ContainingMessage().ReservedRanges().Has(h.Number()) {`, "compat", rulesOf("FIELD_ADDED_ON_RESERVED_NUMBER")},
	{"compat/schema/names.go", `(h.JSONName() == string(name) || JSONName(name) == h.JSONName() ||
			JSONName(name) == string(h.Name()))`, `false`, "compat",
		rulesOf("FIELD_ADDED_WITH_USED_NAME-json")},
	{"compat/schema/names.go", `newBreaks = newBreaks || f.JSONName() == h.JSONName() || f.JSONName() == string(h.Name())`,
		`newBreaks = false`, "compat", rulesOf("FIELD_ADDED_WITH_USED_NAME-replaced")},
	{"compat/schema/names.go", `oldBreaks = oldBreaks || h.JSONName() == f.JSONName() || h.JSONName() == string(f.Name())`,
		`oldBreaks = oldBreaks || h.JSONName() == f.JSONName()`, "compat", rulesOf("FIELD_ADDED_WITH_USED_NAME-taken")},
	{"compat/fields.go", `if c.trial.ZeroRefused(b) {`, `if false {`, "compat", rulesOf("FIELD_REMOVED_ZERO_INVALID")},
	{"compat/fields.go", `case c.trial.ZeroRefused(h):`, `case false:`, "compat", rulesOf("FIELD_ADDED_ZERO_INVALID")},
	{"compat/fields.go", `case b.HasDefault() != h.HasDefault():`, `case false:`, "compat",
		rulesOf("DEFAULT_ADDED_OR_REMOVED")},
	{"compat/fields.go", `moved.Number() == old.Number():`, `moved.Number() != old.Number():`, "compat",
		rulesOf("FIELD_NAMES_SWAPPED")},
	{"compat/messages.go", `	c.extensions(b, h)
`, ``, "compat", rulesOf("EXTENSION_CHANGED-imported")},
	{"compat/extensions.go", `case !c.sameType(b, h):`, `case b.Kind() != h.Kind():`, "compat",
		rulesOf("EXTENSION_CHANGED-imported-label")},
	{"compat/extensions.go", `		c.field(b, h)
`, `		c.uses(b, h)
`, "compat", rulesOf("DEFAULT_CHANGED-imported-extension")},
	{"compat/extensions.go", `if taken == nil {`, `if true {`, "compat", rulesOf("EXTENSION_CHANGED-replaced")},
	{"compat/part/part.go", `	if f.IsExtension() {
		return c.extension(f)`, `	if f.IsExtension() {
		return f`, "compat", rulesOf("VALIDATION_DISABLED-extension")},
	{"compat/schema/fileset.go", `		fields = slices.AppendSeq(fields, maps.Values(s.Extensions[m.FullName()]))
`, `		_ = maps.Values(s.Extensions)
`, "compat", rulesOf("SCALAR_TYPE_CHANGED-extension")},
	{"compat/files.go", `schema.SameTypes(b, f) && !c.replacements[f.Path()]`, `false`, "compat", rulesOf("FILE_RENAMED")},
	{"compat/oneofs.go", `came[ho.Name()] > 1`, `came[ho.Name()] > 9`, "compat", rulesOf("ONEOFS_MERGED")},
	{"compat/oneofs.go", `went[bo.Name()] > 1`, `went[bo.Name()] > 9`, "compat", rulesOf("ONEOF_SPLIT")},
	{"compat/oneofs.go", `case was == nil:
			c.ruleInHead(rule.RequiredOneofAdded, o)`, `case was == nil:`, "compat", rulesOf("REQUIRED_ONEOF_ADDED")},
	{"compat/oneofs.go", `!schema.OneofStays(o, h, c.fieldsOf(h))`, `false`, "compat", rulesOf("REQUIRED_ONEOF_REMOVED")},
	{"compat/enums.go", `first.Name() != v.Name() && b.Values()`, `first.Name() == v.Name() && b.Values()`, "compat",
		rulesOf("ENUM_ALIAS_ADDED_FIRST")},
	{"compat/enums.go", `h.IsClosed() {
			c.inHead(rule.EnumOpennessChanged`, `!h.IsClosed() {
			c.inHead(rule.EnumOpennessChanged`, "compat", rulesOf("ENUM_OPENNESS_CHANGED")},
	{"compat/enums.go", `first.Number() != now.Number()`, `first.Number() == now.Number()`, "compat",
		rulesOf("ENUM_FIRST_VALUE_CHANGED")},
	{"compat/messages.go", `if h.Index() < last {`, `if h.Index() > last {`, "compat", rulesOf("MESSAGES_REORDERED")},
	{"compat/messages.go", `case lost[0] == was:
			c.inHead(rule.ReservedNumberRemoved`, `case lost[0] != was:
			c.inHead(rule.ReservedNumberRemoved`, "compat", rulesOf("RESERVED_NUMBER_REMOVED")},
	{"compat/options.go", `is.Version != was.Version+1 || !c.hasEvolved(h)`, `!c.hasEvolved(h)`, "compat",
		rulesOf("EVENT_VERSION_CHANGED-two")},
	{"compat/options.go", `case f.Name() == "topic":`, `case false:`, "compat", rulesOf("EVENT_TOPIC_CHANGED")},
	{"compat/services.go", `if b.IsStreamingServer() != h.IsStreamingServer() {`, `if false {`, "compat",
		rulesOf("RPC_SERVER_STREAMING_CHANGED")},
	{"compat/validate.go", `c.trial.ValueRefused(b, v) || c.trial.ZeroRefused(b)`, `c.trial.ValueRefused(b, v)`, "compat",
		rulesOf("ENUM_VALUE_ADDED_INVALID-cel")},
	{"compat/validate.go", `!c.trial.ValueRefused(h, v) && (`, `(`, "compat", rulesOf("ENUM_VALUE_ADDED-const")},
	{"compat/validate.go", `if b.IsList() || b.IsMap() || b.Card`, `if b.IsList() || b.Card`, "compat",
		rulesOf("ENUM_VALUE_ADDED_INVALID-map")},
	{"compat/validate.go", `	if b.IsMap() {
		be`, `	if false {
		be`, "compat", rulesOf("ENUM_VALUE_ADDED_INVALID-map")},
	{"compat/fields.go", `		c.inHead(rule.FieldRenamedSameJSONName, h, names)
		c.field(b, h)`, `		c.inHead(rule.FieldRenamedSameJSONName, h, names)`, "compat",
		rulesOf("FIELD_RENAMED_SAME_JSON_NAME-presence")},
	{"compat/fields.go", `case b.JSONName() == h.JSONName():`, `case b.JSONName() != h.JSONName():`, "compat",
		rulesOf("FIELD_RENAMED")},
	{"compat/services.go", `c.mapped(b.Output().FullName()) == h.Output().FullName() &&`, `true &&`, "compat",
		rulesOf("RPC_REMOVED-other")},
	{"compat/types.go", `if c.trial.ZeroRefused(b) || c.trial.ZeroRefused(h) {`, `if false {`, "compat",
		rulesOf("VALIDATED_PRESENCE_CHANGED")},
	{"compat/types.go", `b.MapKey().Kind() == h.MapKey().Kind() && c.sameType(`, `c.sameType(`, "compat",
		rulesOf("FIELD_NUMBER_REUSED_OTHER_TYPE-map-key")},
	{"internal/release/release.go", `set := schema.New(files, events...)
	packages`, `set := schema.New(files)
	packages`, "internal/release", "TestImageHoldsNamedEvents"},
	{"compat/kinds.go", `other || !hi.holds(bi), other || !bi.holds(hi)`,
		`other || !bi.holds(hi), other || !hi.holds(bi)`, "compat", rulesOf("INTEGER_WIDENED")},
	{"compat/kinds.go", `case bi.bits > 0 && bi.encoding == hi.encoding:`, `case bi.bits > 0:`, "compat",
		rulesOf("MAP_KEY_TYPE_CHANGED")},
	{"compat/constraint.go", `path == "" && c.ignoresNothing(b, h)`, `path == ""`, "compat",
		rulesOf("VALIDATION_DISABLED-zero")},
	{"compat/constraint_interval.go", `return d > 0 || d == 0 && (x.open || !y.open)`, `return d >= 0`,
		"compat", "^TestFields$"},
	{"compat/constraint_rules.go", `meant[name] != means[name]`, `false`, "compat",
		rulesOf("VALIDATION_REPLACED-meaning")},
	{"compat/comparer.go", `c.reportThroughField(rule.ImportedTypeBroken, h, imported)`, `_ = imported`, "compat",
		rulesOf("IMPORTED_TYPE_BROKEN")},
	{"compat/schema/features.go", `return v == descriptorpb.FeatureSet_VERIFY`,
		`return v != descriptorpb.FeatureSet_VERIFY`, "compat", rulesOf("UTF8_VALIDATION_ENABLED")},
	{"compat/invariant.go", `key == "" && fields`, `key != "" && fields`, "compat",
		rulesOf("EVENT_OPTION_INCOMPLETE-key")},
	{"differential/compare.go", `case w.Has(wf) != r.Has(rf):
		// Equal`, `case false:
		// Equal`, "differential", "TestFindings"},
	{"differential/compare.go", `return w == r // newer than the reader`, `return w != r`, "differential",
		executed("ENUM_VALUE_ADDED")},
	{"differential/runtimeset.go", `header.GetOptions().GetFeatures()), s.rules)`,
		`header.GetOptions().GetFeatures()), "")`, "differential", executed("VALIDATION_REPLACED-meaning")},
	{"differential/sample/values.go", `	if depth >= maxDepth {
		return nil
	}`, ``, "gate", "TestDeepTypesAreExecuted|TestRandomRecursiveTypes"},
	{"gate/gate.go", `return byRules[f.Subject] >= f.Severity`, `return byRules[f.Subject] > 0`, "gate",
		"TestWarningsHideNoBreak"},
	{"gate/gate.go", `if err == nil && i < n-1 {`, `if false {`, "gate", "TestCompareAll"},
	{"gate/gate.go", `|| !o.Policy.Transitive() {`, `|| o.Policy != 1 {`, "gate", "TestCompareAll$"},
}

// Each mistake is caught by its test. PARLEY_SCHEMA_MISTAKES is the number to try, or "all";
// PARLEY_SCHEMA_SEED rotates the choice.
func TestMistakesAreCaught(t *testing.T) {
	t.Parallel()
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

// A run tries some of the mistakes, and a text that was edited since would be missed until the turn of its mistake.
func TestMistakesHaveTheirPlace(t *testing.T) {
	t.Parallel()
	for _, m := range mistakes {
		m.source(t)
	}
}

// source returns the file that the mistake changes.
func (m mistake) source(t *testing.T) (path, text string) {
	t.Helper()
	path, err := filepath.Abs("../" + m.file)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if n := strings.Count(string(b), m.from); err != nil || n != 1 {
		t.Fatalf("%q occurs %d times in %s (%v), want once", m.from, n, m.file, err)
	}
	return path, string(b)
}

func (m mistake) try(t *testing.T) {
	path, text := m.source(t)
	dir := t.TempDir()
	changed, overlay := filepath.Join(dir, "changed.go"), filepath.Join(dir, "overlay.json")
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{path: changed}})
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{changed: strings.Replace(text, m.from, m.to, 1),
		overlay: string(replace)} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "go", "test", "-overlay", overlay, "-run", m.fails, "-vet=off",
		"-count=1", "./"+m.in)
	cmd.Dir, cmd.WaitDelay = "..", time.Minute
	out, err := cmd.CombinedOutput()
	switch {
	case err == nil:
		t.Errorf("%s: %q was replaced by %q and no test failed, expected a failure", m.file, m.from, m.to)
	case strings.Contains(string(out), "[build failed]"):
		t.Errorf("%s\n%s", m.file, out)
	case !strings.Contains(string(out), "--- FAIL") && !strings.Contains(string(out), "panic:") &&
		!strings.Contains(string(out), "stack overflow"):
		t.Errorf("%s: expected a failing test\n%s", m.file, out)
	}
}
