package layout

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// wayRow is a row of DESIGN.md's table of the way of a message: the package, relative to
// server/, and the function or method.
var wayRow = regexp.MustCompile("^\\| (\\d+) \\| `([^`]+)` `([^`]+)`")

// A newcomer can follow a message with the page in hand: every function of the table
// exists where it says, and the way stays as short as it was promised to be.
func TestWayOfAMessage(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "server/DESIGN.md"))
	if err != nil {
		t.Fatal(err)
	}
	steps := 0
	for line := range strings.Lines(string(page)) {
		m := wayRow.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		steps++
		if !functionsOf(t, "server/"+m[2])[m[3]] {
			t.Errorf("step %s: package %s declares no %s", m[1], m[2], m[3])
		}
	}
	if steps < 10 || steps > 16 {
		t.Errorf("the way of a message has %d steps, want 10 to 16", steps)
	}
}

// functionsOf returns the functions of a package, the methods with their types, those of its
// interfaces included.
func functionsOf(t *testing.T, dir string) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	list, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range list {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				names[receiver(d)+d.Name.Name] = true
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					addMethods(names, spec)
				}
			}
		}
	}
	return names
}

// receiver is "T." for a method of T or *T, and "" for a function.
func receiver(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	e := d.Recv.List[0].Type
	if star, ok := e.(*ast.StarExpr); ok {
		e = star.X
	}
	if id, ok := e.(*ast.Ident); ok {
		return id.Name + "."
	}
	return ""
}

func addMethods(names map[string]bool, spec ast.Spec) {
	named, ok := spec.(*ast.TypeSpec)
	if !ok {
		return
	}
	i, ok := named.Type.(*ast.InterfaceType)
	if !ok {
		return
	}
	for _, m := range i.Methods.List {
		for _, n := range m.Names {
			names[named.Name.Name+"."+n.Name] = true
		}
	}
}
