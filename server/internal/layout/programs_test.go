package layout

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write dependencies.txt and PACKAGES.md")

// programs are the programs of this module, by the letter that dependencies.txt has for each.
var programs = map[string]string{"S": "./server", "W": "./workers", "C": "./schemacheck", "L": "./server/load"}

// packagesOf lists the packages of which a program for Linux is made.
func packagesOf(t *testing.T, program string) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-mod=readonly", "-deps", program)
	cmd.Dir, cmd.Env = root, append(os.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=1")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	list := strings.Fields(string(out))
	if own := module + strings.TrimPrefix(program, "./"); !slices.Contains(list, own) {
		t.Errorf("got %d packages of %s, want %s among them", len(list), program, own)
	}
	return list
}

// No program contains what is made for tests, whichever package it came with: a broker that tests start, and
// package testing, which all that checks something for a test needs.
func TestProgramsHaveNothingOfTests(t *testing.T) {
	for _, program := range programs {
		for _, name := range packagesOf(t, program) {
			if matchesAny([]string{"testing", "github.com/twmb/franz-go/pkg/kfake/..."}, name) {
				t.Errorf("%s contains %s", program, name)
			}
		}
	}
}

// stored returns the content of a generated file, which -update writes.
func stored(t *testing.T, path, generated string) string {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(generated), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// dependencies.txt lists the packages of others that each program contains, so that a review of a change shows what it
// adds.
func TestDependenciesAreListed(t *testing.T) {
	const path = "dependencies.txt"
	letters := slices.Sorted(maps.Keys(programs))
	used := map[string]map[string]bool{}
	for letter, program := range programs {
		for _, name := range packagesOf(t, program) {
			first, _, _ := strings.Cut(name, "/")
			if strings.HasPrefix(name, module) || !strings.Contains(first, ".") { // ours, or the standard library's
				continue
			}
			if used[name] == nil {
				used[name] = map[string]bool{}
			}
			used[name][letter] = true
		}
	}
	var page strings.Builder
	page.WriteString("# The packages of others in the programs for Linux. Written by: go test ./server/internal/layout -update\n#\n")
	for _, letter := range letters {
		fmt.Fprintf(&page, "# %s: %s\n", letter, programs[letter])
	}
	page.WriteString("\n")
	for _, name := range slices.Sorted(maps.Keys(used)) {
		for _, letter := range letters {
			if !used[name][letter] {
				letter = "."
			}
			page.WriteString(letter)
		}
		page.WriteString(" " + name + "\n")
	}
	listed := stored(t, path, page.String())
	was, is := strings.Split(listed, "\n"), strings.Split(page.String(), "\n")
	for _, line := range is {
		if !slices.Contains(was, line) {
			t.Errorf("%s does not list %q: is it worth having? go test ./server/internal/layout -update", path, line)
		}
	}
	for _, line := range was {
		if !slices.Contains(is, line) {
			t.Errorf("%s lists %q, which is gone: go test ./server/internal/layout -update", path, line)
		}
	}
}
