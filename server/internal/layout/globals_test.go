package layout

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A variable of a package stands for a constant that Go cannot declare: a table, a
// compiled expression, an error. It has its value from where it is declared on, and
// nobody writes to it; what may change is a field of a value. The linter finds those
// without a value; exceptions have their reason beside them.
func TestPackageVariablesAreConstant(t *testing.T) {
	fset := token.NewFileSet()
	code := map[string][]*ast.File{} // of each package
	for _, f := range files(t) {
		if !strings.HasSuffix(f, ".go") || strings.HasSuffix(f, "_test.go") || strings.HasPrefix(f, "gen/") ||
			strings.HasPrefix(f, ".") {
			continue
		}
		parsed, err := parser.ParseFile(fset, filepath.Join(root, f), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		code[path.Dir(f)] = append(code[path.Dir(f)], parsed)
	}
	for _, pkg := range slices.Sorted(maps.Keys(code)) {
		variables := map[string]bool{}
		for _, f := range code[pkg] {
			for _, id := range collect(f, variables) {
				t.Errorf("%s: %s is a variable of the package and holds state", fset.Position(id.Pos()), id.Name)
			}
		}
		for _, f := range code[pkg] {
			for _, id := range written(f, variables) {
				t.Errorf("%s: %s is a variable of the package and is written to", fset.Position(id.Pos()), id.Name)
			}
		}
	}
}

// collect adds the variables of the package that a file declares, but for those with an
// exception, and lists those that hold state from the start.
func collect(f *ast.File, to map[string]bool) (states []*ast.Ident) {
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.VAR {
			continue
		}
		for _, s := range g.Specs {
			v := s.(*ast.ValueSpec)
			if excepted(g.Doc) || excepted(v.Doc) || excepted(v.Comment) {
				continue
			}
			for _, name := range v.Names {
				to[name.Name] = name.Name != "_"
			}
			for _, value := range v.Values {
				if isState(value) {
					states = append(states, v.Names[0])
				}
			}
		}
	}
	return states
}

// isState reports whether a value is empty in the beginning, to be changed.
func isState(e ast.Expr) bool {
	call, ok := e.(*ast.CallExpr)
	if !ok {
		return false
	}
	id, ok := call.Fun.(*ast.Ident)
	return ok && (id.Name == "new" || id.Name == "make")
}

func excepted(g *ast.CommentGroup) bool {
	return g != nil && slices.ContainsFunc(g.List, func(c *ast.Comment) bool {
		return strings.HasPrefix(c.Text, "//nolint:gochecknoglobals")
	})
}

// written lists where the functions of a file write to variables: assign to them or to
// a part of them, count, delete, clear, or take an address. A function that declares a
// name itself means its own.
func written(f *ast.File, variables map[string]bool) (list []*ast.Ident) {
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			continue
		}
		own := declared(fn)
		note := func(e ast.Expr) {
			if id := base(e); id != nil && variables[id.Name] && !own[id.Name] {
				list = append(list, id)
			}
		}
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.AssignStmt:
				if n.Tok != token.DEFINE {
					for _, e := range n.Lhs {
						note(e)
					}
				}
			case *ast.IncDecStmt:
				note(n.X)
			case *ast.UnaryExpr:
				if n.Op == token.AND {
					note(n.X)
				}
			case *ast.CallExpr:
				if id, ok := n.Fun.(*ast.Ident); ok && (id.Name == "delete" || id.Name == "clear") && len(n.Args) > 0 {
					note(n.Args[0])
				}
			}
			return true
		})
	}
	return list
}

// base is the variable that an expression is a part of, or nil.
func base(e ast.Expr) *ast.Ident {
	for {
		switch x := e.(type) {
		case *ast.Ident:
			return x
		case *ast.IndexExpr:
			e = x.X
		case *ast.SelectorExpr:
			e = x.X
		case *ast.StarExpr:
			e = x.X
		case *ast.ParenExpr:
			e = x.X
		default:
			return nil
		}
	}
}

// declared has the names that a function declares anywhere.
func declared(fn *ast.FuncDecl) map[string]bool {
	own := map[string]bool{}
	add := func(e ast.Expr) {
		if id, ok := e.(*ast.Ident); ok {
			own[id.Name] = true
		}
	}
	ast.Inspect(fn, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			if n.Tok == token.DEFINE {
				for _, e := range n.Lhs {
					add(e)
				}
			}
		case *ast.RangeStmt:
			if n.Tok == token.DEFINE {
				add(n.Key)
				add(n.Value)
			}
		case *ast.Field:
			for _, id := range n.Names {
				add(id)
			}
		case *ast.ValueSpec:
			for _, id := range n.Names {
				add(id)
			}
		}
		return true
	})
	return own
}
