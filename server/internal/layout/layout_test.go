// Package layout keeps the shape of the repository: what stands at the top
// level, which package may import which, and how large a file, a package or an
// interface may grow. It has no code of its own.
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

	maxFile      = 500  // lines
	maxPackage   = 1500 // lines without comments, blank lines and tests
	aimPackage   = 1200 // above it a package says why
	maxInterface = 8    // methods
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

// A rule says who may import what. Patterns are import paths, those of the module
// without its prefix; a trailing "/..." includes what lies below.
type rule struct {
	imports []string // what the rule is about
	only    []string // packages that may import it
	except  bool     // only lists those that may not
	tests   bool     // holds for test files too
	why     string
}

var rules = []rule{
	{
		imports: []string{"github.com/cockroachdb/pebble/v2/..."}, only: []string{"server/store/embedded/..."}, tests: true,
		why: "engines are replaceable: what they are made of stays in them",
	},
	{
		imports: []string{"github.com/aws/aws-sdk-go-v2/...", "github.com/aws/smithy-go/..."}, only: []string{"server/store/dynamo/...", "server/backend"},
		why: "as Pebble",
	},
	{
		imports: []string{"github.com/twmb/franz-go/pkg/kgo/...", "github.com/twmb/franz-go/pkg/kadm/...", "github.com/twmb/franz-go/pkg/kfake/..."},
		only:    []string{"server/kafka/...", "server/backend"},
		why:     "one place knows how Kafka is spoken to",
	},
	{
		imports: []string{"github.com/twmb/franz-go/pkg/sr/..."},
		only:    []string{"server/event", "server/registry", "schemacheck/internal/registryclient"},
		why:     "one format on the wire",
	},
	{
		imports: []string{"github.com/redis/go-redis/v9/..."}, only: []string{"server/routing", "server/backend"},
		why: "nothing that must last is kept in Redis",
	},
	{
		imports: []string{"server/routing"},
		only:    []string{"server/backend", "server/link", "server/routing/routingtest", "server/internal/app", "workers/internal/cli", "workers/internal/jobs", "workers/observe"},
		why:     "who is where is asked by links and by what puts processes together, never by the rules of chats",
	},
	{
		imports: []string{"server/..."}, only: []string{"server/store", "server/event", "server/auth", "server/lifecycle", "server/telemetry", "server/config"}, except: true,
		why: "these stand at the bottom",
	},
	{
		imports: []string{"server/store/embedded", "server/store/dynamo"}, only: []string{"server/backend", "server/store/embedded/raw", "server/store/embedded/embeddedtest", "server/store/dynamo/dynamotest"},
		why: "only the backend package knows the modes",
	},
	{
		imports: []string{"server/internal/..."}, only: []string{"server", "server/internal/..."},
		why: "what is private to the server's binary stays so",
	},
	{
		imports: []string{"server/internal/app"}, only: []string{"server"}, tests: true,
		why: "main builds the app, the app builds the API, nothing looks back up",
	},
	{
		imports: []string{"server/internal/api"}, only: []string{"server/internal/app", "server/internal/rest"}, tests: true,
		why: "as the app",
	},
	{
		imports: []string{"server/internal/api", "server/delivery", "server/view"}, only: []string{"server/chat", "server/store/...", "server/client"}, except: true,
		why: "the rules of chats know no reader and no transport",
	},
	{
		imports: []string{"connectrpc.com/...", "net/http"},
		only: []string{ // the engine of DynamoDB speaks HTTP itself
			"server/chat", "server/store", "server/store/table", "server/store/storetest", "server/store/faulty", "server/store/embedded",
			"server/event", "server/view", "server/delivery",
		},
		except: true,
		why:    "the inside knows no transport",
	},
	{
		imports: []string{"server/chat", "server/store/...", "server/view", "server/delivery", "server/internal/..."}, only: []string{"server/client"}, except: true,
		why: "the client knows the server by its contracts only",
	},
	{
		imports: []string{"server/...", "gen/..."}, only: []string{"schemacheck/..."}, except: true, tests: true,
		why: "the gate must work when they are broken",
	},
}

// A bound lists all that a package may import of the module, tests aside: they
// need engines, clocks and clients.
type bound struct {
	pkg string
	may []string
	why string
}

var bounds = []bound{
	{"server", []string{"server/internal/app"}, "main is signals and an exit code"},
	{"server/store", nil, "the contract stands on nothing"},
	{"server/store/table", []string{"server/store"}, "rows know the contract and no engine"},
	{
		"server/chat/...", []string{"server/chat/...", "server/store", "server/store/table", "server/event", "gen/..."},
		"the rules of chats know rows and events and nothing else",
	},
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
	code := map[string]int{}
	explained := map[string]bool{} // says why it is large
	for _, f := range files(t) {
		if !strings.HasSuffix(f, ".go") || strings.HasPrefix(f, "gen/") || strings.HasPrefix(f, ".") {
			continue
		}
		b, err := os.ReadFile(filepath.Join(root, f))
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(string(b), "\n")
		if len(lines)-1 > maxFile {
			t.Errorf("%s has %d lines, more than %d", f, len(lines)-1, maxFile)
		}
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		for _, l := range lines {
			if l = strings.TrimSpace(l); l != "" && !strings.HasPrefix(l, "//") {
				code[path.Dir(f)]++
			}
			if strings.Contains(l, "one package because") {
				explained[path.Dir(f)] = true
			}
		}
	}
	for pkg, n := range code {
		if n > maxPackage {
			t.Errorf("%s has %d lines of code, more than %d", pkg, n, maxPackage)
		}
		if n > aimPackage && !explained[pkg] {
			t.Errorf("%s has %d lines of code: its comment must say why it is \"one package because\"", pkg, n)
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
