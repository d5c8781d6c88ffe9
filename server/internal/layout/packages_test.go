package layout

import (
	"fmt"
	"go/doc"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// PACKAGES.md lists each package with the first sentence of its comment, so that both are written once.
func TestPackagesAreListed(t *testing.T) {
	const file = "../../PACKAGES.md"
	synopses, order := map[string]string{}, []string(nil)
	for _, f := range files(t) {
		dir := path.Dir(f)
		if !strings.HasSuffix(f, ".go") || strings.HasPrefix(f, "gen/") || strings.HasPrefix(f, ".") {
			continue
		}
		if _, ok := synopses[dir]; !ok {
			synopses[dir], order = "", append(order, dir)
		}
		mode := parser.ParseComments | parser.PackageClauseOnly
		parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, f), nil, mode)
		if err != nil {
			t.Fatal(err)
		}
		if parsed.Doc != nil && synopses[dir] == "" {
			text := new(doc.Package).Synopsis(parsed.Doc.Text())
			if _, said, ok := strings.Cut(text, " "+parsed.Name.Name+" "); ok && strings.HasPrefix(text, "Package ") {
				text = said
			}
			synopses[dir] = text
		}
	}
	slices.Sort(order)
	var page strings.Builder
	page.WriteString("# Packages\n\nEach package with the first sentence of its comment. " +
		"Decisions are choices that the requirements left open. Written by: `go test ./server/internal/layout -update`\n")
	top := ""
	for _, dir := range order {
		if synopses[dir] == "" {
			t.Errorf("package %s has no comment, want one that says what it owns", dir)
		}
		if at, _, _ := strings.Cut(dir, "/"); at != top {
			top = at
			fmt.Fprintf(&page, "\n## %s\n\n| package | what it does |\n|---|---|\n", top)
		}
		link := "../" + dir
		if own, ok := strings.CutPrefix(dir, "server/"); ok {
			link = own
		} else if dir == "server" {
			link = "."
		}
		more := ""
		if _, err := os.Stat(filepath.Join(root, dir, "DECISIONS.md")); err == nil {
			more = fmt.Sprintf(" [Decisions](%s/DECISIONS.md)", link)
		}
		fmt.Fprintf(&page, "| [%s](%s) | %s%s |\n", dir, link, strings.ReplaceAll(synopses[dir], "|", `\|`), more)
	}
	if stored(t, file, page.String()) != page.String() {
		t.Errorf("PACKAGES.md differs from the comments of packages: go test ./server/internal/layout -update")
	}
}
