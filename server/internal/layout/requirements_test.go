package layout

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const requirements = "server/docs/requirements.md"

var (
	// requirementID is how a test names the line of the requirements that it proves.
	requirementID = regexp.MustCompile(`\b(?:[KLSXZ]-\d{2,3}|KS\d{2}|EV\d{2}|HQ-[A-Z]\d{1,2})\b`)
	// paper is how a comment cites what is not in the repository.
	paper = regexp.MustCompile(`\b(?:ADR-\d+|design §)`)
)

// Tests name requirements by ids that the page explains, and the page names tests that
// there are and that name the id. Other code gives reasons, not ids.
func TestRequirements(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, requirements))
	if err != nil {
		t.Fatal(err)
	}
	proofs := map[string][]string{} // tests by id, as directory.TestName
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if len(cells) != 3 || !requirementID.MatchString(cells[0]) {
			continue
		}
		id := strings.TrimSpace(cells[0])
		if proofs[id] != nil {
			t.Errorf("%s stands twice on the page", id)
		}
		proofs[id] = regexp.MustCompile(`[a-z0-9/]+\.(?:Test|Fuzz|Benchmark|Example)\w+`).FindAllString(cells[2], -1)
		if len(proofs[id]) == 0 {
			t.Errorf("%s has no test on the page", id)
		}
	}
	named := map[string]map[string]bool{} // ids by directory of tests
	functions := map[string]bool{}        // directory.TestName
	function := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark|Example)\w+)\(`)
	for _, f := range files(t) {
		dir := path.Dir(f)
		if !strings.HasSuffix(f, ".go") || strings.HasPrefix(f, "gen/") || dir == "server/internal/layout" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, f))
		if err != nil {
			t.Fatal(err)
		}
		ids := requirementID.FindAllString(string(text), -1)
		if !strings.HasSuffix(f, "_test.go") {
			if ids = append(ids, paper.FindAllString(string(text), -1)...); len(ids) > 0 {
				t.Errorf("%s cites %s: say the reason instead", f, strings.Join(ids, ", "))
			}
			continue
		}
		for _, m := range function.FindAllStringSubmatch(string(text), -1) {
			functions[dir+"."+m[1]] = true
		}
		for _, id := range ids {
			if named[dir] == nil {
				named[dir] = map[string]bool{}
			}
			named[dir][id] = true
			if proofs[id] == nil {
				t.Errorf("%s names %s, which is not on the page", f, id)
			}
		}
	}
	for id, tests := range proofs {
		for _, test := range tests {
			if !functions[test] {
				t.Errorf("%s: there is no %s", id, test)
			}
		}
		if !slices.ContainsFunc(tests,
			func(test string) bool { return named[strings.TrimSuffix(test, path.Ext(test))][id] }) {
			t.Errorf("%s: none of %s names it", id, strings.Join(tests, ", "))
		}
	}
	if len(proofs) < 100 {
		t.Errorf("%d requirements on the page", len(proofs))
	}
}
