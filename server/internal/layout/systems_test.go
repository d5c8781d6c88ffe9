package layout

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/tools/go/packages"
)

// The programs compile for the systems in PARLEY_TEST_SYSTEMS, such as "darwin windows".
// Types are checked from the sources, those of the libraries included: what differs between
// systems shows there, and machine code would cost ten times as much.
func TestOtherSystems(t *testing.T) {
	systems := strings.Fields(os.Getenv("PARLEY_TEST_SYSTEMS"))
	if len(systems) == 0 {
		t.Skip("PARLEY_TEST_SYSTEMS names no systems")
	}
	for _, system := range systems {
		t.Run(system, func(t *testing.T) {
			found, err := packages.Load(&packages.Config{
				Context: t.Context(), Dir: root, Env: append(os.Environ(), "GOOS="+system, "CGO_ENABLED=0"),
				Mode: packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedImports |
					packages.NeedDeps | packages.NeedTypes | packages.NeedTypesSizes | packages.NeedSyntax,
			}, "./server/...", "./workers/...", "./schemacheck/...")
			if err != nil {
				t.Fatal(err)
			}
			if len(found) < 50 {
				t.Errorf("%d packages, want all of the module", len(found))
			}
			packages.Visit(found, nil, func(p *packages.Package) {
				for _, err := range p.Errors {
					t.Errorf("%s: %v", p.PkgPath, err)
				}
			})
		})
	}
}
