// Package layout keeps the shape of the repository: what stands at the top
// level, which package may import which, and how large a file or an interface may
// grow. It has no code of its own.
package layout

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	root   = "../../.."
	module = "github.com/parley-chat/parley/"

	maxFile      = 500 // lines
	maxInterface = 8   // methods
)

// files lists the repository's files: those that git tracks or would, or in a
// copy without git all that are not hidden.
func files(t *testing.T) []string {
	t.Helper()
	cmd := exec.Command("git", "ls-files", "--cached", "--others", "--exclude-standard")
	cmd.Dir = root
	if out, err := cmd.Output(); err == nil && len(out) > 0 {
		var list []string
		for _, f := range strings.Split(strings.TrimSpace(string(out)), "\n") {
			if _, err := os.Stat(filepath.Join(root, f)); err == nil { // not one deleted just now
				list = append(list, f)
			}
		}
		return list
	}
	var list []string
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil || rel == "." {
			return err
		}
		if strings.HasPrefix(d.Name(), ".") {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if !d.IsDir() {
			list = append(list, filepath.ToSlash(rel))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestTopLevel(t *testing.T) {
	allowed := []string{
		"proto", "gen", "server", "workers", "schemacheck", "buf.yaml", "buf.gen.yaml",
		"go.mod", "go.sum", "justfile", "README.md", "LICENSE",
	}
	for _, f := range files(t) {
		top, _, _ := strings.Cut(f, "/")
		if !strings.HasPrefix(top, ".") && !slices.Contains(allowed, top) {
			t.Errorf("%s: %q does not belong at the top level", f, top)
		}
	}
}

func matches(pattern, name string) bool {
	base, below := strings.CutSuffix(pattern, "/...")
	return name == base || (below && strings.HasPrefix(name, base+"/"))
}

func matchesAny(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return matches(p, name) })
}

func TestImports(t *testing.T) {
	fset := token.NewFileSet()
	for _, f := range files(t) {
		if !strings.HasSuffix(f, ".go") || strings.HasPrefix(f, "gen/") || strings.HasPrefix(f, ".") {
			continue
		}
		parsed, err := parser.ParseFile(fset, filepath.Join(root, f), nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		pkg, test := path.Dir(f), strings.HasSuffix(f, "_test.go")
		for _, spec := range parsed.Imports {
			name, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			name, own := strings.CutPrefix(name, module)
			for _, b := range bounds {
				if own && !test && matches(b.pkg, pkg) && !matchesAny(b.may, name) {
					t.Errorf("%s imports %s: %s", f, name, b.why)
				}
			}
			for _, r := range rules {
				if (test && !r.tests) || name == pkg || !matchesAny(r.imports, name) {
					continue
				}
				if matchesAny(r.only, pkg) == r.except {
					t.Errorf("%s imports %s: %s", f, name, r.why)
				}
			}
		}
	}
}

func TestSizes(t *testing.T) {
	for _, f := range files(t) {
		if !strings.HasSuffix(f, ".go") || strings.HasPrefix(f, "gen/") || strings.HasPrefix(f, ".") {
			continue
		}
		b, err := os.ReadFile(filepath.Join(root, f))
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(b), "\n"); n > maxFile {
			t.Errorf("%s has %d lines, more than %d", f, n, maxFile)
		}
	}
}

// Marks of unfinished work have no place in what is committed; the list is put
// together here so that this file does not contain them.
var unfinished = []string{"TO" + "DO", "FIX" + "ME", "X" + "XX"}

func TestInterfacesAndMarks(t *testing.T) {
	fset := token.NewFileSet()
	for _, f := range files(t) {
		if !strings.HasSuffix(f, ".go") || strings.HasPrefix(f, "gen/") || strings.HasPrefix(f, ".") {
			continue
		}
		parsed, err := parser.ParseFile(fset, filepath.Join(root, f), nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			if i, ok := n.(*ast.InterfaceType); ok && i.Methods.NumFields() > maxInterface {
				t.Errorf("%s: interface with %d methods, more than %d", fset.Position(n.Pos()), i.Methods.NumFields(), maxInterface)
			}
			return true
		})
		for _, group := range parsed.Comments {
			for _, mark := range unfinished {
				if strings.Contains(group.Text(), mark) {
					t.Errorf("%s: comment with %s", fset.Position(group.Pos()), mark)
				}
			}
		}
	}
}
