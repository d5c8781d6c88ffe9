package layout

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Documents name tests that there are.
func TestDocumentsNameTests(t *testing.T) {
	function := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)\(`)
	name := regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark)[A-Z]\w+`)
	functions, named := map[string]bool{}, map[string]string{} // named: the document, by test
	for _, f := range files(t) {
		if !strings.HasSuffix(f, "_test.go") && !strings.HasSuffix(f, ".md") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, f))
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(f, ".md") {
			for _, n := range name.FindAllString(string(text), -1) {
				named[n] = f
			}
			continue
		}
		for _, m := range function.FindAllStringSubmatch(string(text), -1) {
			functions[m[1]] = true
		}
	}
	for n, f := range named {
		if !functions[n] && !strings.HasSuffix(n, "_") { // which is how several begin
			t.Errorf("%s names %s, which is no test", f, n)
		}
	}
	if len(named) < 100 {
		t.Errorf("%d tests are named", len(named))
	}
}
