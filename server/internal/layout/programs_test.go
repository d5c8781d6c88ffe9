package layout

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// No program contains what is made for tests, whichever package it came with: a broker that tests start, and
// package testing, which all that checks something for a test needs.
func TestProgramsHaveNothingOfTests(t *testing.T) {
	for _, program := range []string{"./server", "./workers", "./schemacheck"} {
		cmd := exec.CommandContext(t.Context(), "go", "list", "-mod=readonly", "-deps", program)
		cmd.Dir = root
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		list := strings.Fields(string(out))
		if own := module + strings.TrimPrefix(program, "./"); !slices.Contains(list, own) {
			t.Errorf("%s is not among the %d packages of %s", own, len(list), program)
		}
		for _, name := range list {
			if matchesAny([]string{"testing", "github.com/twmb/franz-go/pkg/kfake/..."}, name) {
				t.Errorf("%s contains %s", program, name)
			}
		}
	}
}
