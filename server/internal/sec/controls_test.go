package sec

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	controls = 54
	page     = "server/SECURITY.md"
	lines    = "server/docs/requirements.md"
)

var (
	proof    = regexp.MustCompile("`([a-z0-9/]+\\.TestSec_S_(\\d\\d)_\\w+)`")
	function = regexp.MustCompile(`(?m)^func (TestSec_\w+)\(t \*testing\.T\)`)
	named    = regexp.MustCompile(`^TestSec_S_(\d\d)_[A-Z]\w+$`)
)

// rows are the rows of a table whose first cell is the id of a control, by id.
func rows(t *testing.T, path string) map[string][]string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]string{}
	for line := range strings.Lines(string(b)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if id := strings.TrimSpace(cells[0]); len(cells) == 3 && regexp.MustCompile(`^S-\d\d$`).MatchString(id) {
			if all[id] != nil {
				t.Errorf("%s has %s twice", path, id)
			}
			all[id] = cells
		}
	}
	return all
}

// tests are all tests of controls, as directory.TestName.
func tests(t *testing.T) (all []string) {
	t.Helper()
	for _, top := range []string{"server", "workers", "schemacheck"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
				return err
			}
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			dir := filepath.ToSlash(strings.TrimPrefix(filepath.Dir(path), root+string(filepath.Separator)))
			for _, m := range function.FindAllStringSubmatch(string(b), -1) {
				all = append(all, dir+"."+m[1])
				if !named.MatchString(m[1]) {
					t.Errorf("%s: %s is not named TestSec_S_nn_What", path, m[1])
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// Each control has a test, or its row says that it is missing; each test has its row; and the page of requirements
// names every one of them. The controls without a test are listed.
func TestControls(t *testing.T) {
	table, requirements, all := rows(t, page), rows(t, lines), tests(t)
	var missing, partly []string
	stands := map[string]bool{}
	for n := 1; n <= controls; n++ {
		id := fmt.Sprintf("S-%02d", n)
		row := table[id]
		if row == nil {
			t.Errorf("%s does not have %s", page, id)
			continue
		}
		proofs := proof.FindAllStringSubmatch(row[2], -1)
		for _, p := range proofs {
			stands[p[1]] = true
			if "S-"+p[2] != id || !slices.Contains(all, p[1]) {
				t.Errorf("%s: %s is not a test of it", id, p[1])
			}
			if r := requirements[id]; r == nil || !strings.Contains(r[2], "`"+p[1]+"`") {
				t.Errorf("%s: %s does not name %s", id, lines, p[1])
			}
		}
		switch says := strings.HasPrefix(row[2], "missing"); {
		case says && len(proofs) > 0:
			t.Errorf("%s is missing, and has a test", id)
		case says:
			missing = append(missing, id)
		case len(proofs) == 0:
			t.Errorf("%s has no test, and its row does not say that it is missing", id)
		case strings.Contains(row[2], "Partly"):
			partly = append(partly, id)
		}
	}
	if len(table) != controls {
		t.Errorf("%d controls, not %d", len(table), controls)
	}
	for _, test := range all {
		if !stands[test] {
			t.Errorf("%s stands in no row of %s", test, page)
		}
	}
	t.Logf("%d of %d controls have a test. Missing: %s. Partly: %s", controls-len(missing), controls,
		strings.Join(missing, ", "), strings.Join(partly, ", "))
}
