package layout

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// What an action's tag names may change behind our back, a commit may not.
var pinned = regexp.MustCompile(`^(\./|[\w.-]+(/[\w.-]+)+@[0-9a-f]{40} # v\d)`)

// Workflows run the parts that .ci/parts has, each of them in a job, and actions by
// their commits.
func TestWorkflows(t *testing.T) {
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	parts := map[string]int{"nightly": 0}
	for _, m := range regexp.MustCompile(`(?m)^part_(\w+)\(\)`).FindAllStringSubmatch(read(".ci/parts"), -1) {
		parts[m[1]] = 0
	}
	workflows := 0
	for _, f := range files(t) {
		if !strings.HasPrefix(f, ".github/") || !strings.HasSuffix(f, ".yml") {
			continue
		}
		workflows++
		for _, m := range regexp.MustCompile(`\buses: *(.*)`).FindAllStringSubmatch(read(f), -1) {
			if !pinned.MatchString(m[1]) {
				t.Errorf("%s uses %s: name a commit, and its version behind it", f, m[1])
			}
		}
		for _, m := range regexp.MustCompile(`run: \.ci/run\b(.*)`).FindAllStringSubmatch(read(f), -1) {
			for _, part := range strings.Fields(strings.Split(m[1], "|")[0]) {
				if _, ok := parts[part]; !ok {
					t.Errorf("%s runs the part %q, which .ci/parts does not have", f, part)
				}
				parts[part]++
			}
		}
	}
	if workflows == 0 || len(parts) == 1 {
		t.Fatalf("%d workflows, %d parts", workflows, len(parts))
	}
	for part, jobs := range parts {
		if jobs != 1 {
			t.Errorf("%d jobs run the part %s, want one", jobs, part)
		}
	}
}
