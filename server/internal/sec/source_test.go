package sec

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/infra/config"
	"github.com/parley-chat/parley/server/infra/telemetry"
)

const root = "../../.."

// sources are the Go files of the programs, parsed, by path; tests and what only tests import are left out.
func sources(t *testing.T) map[string]*ast.File {
	t.Helper()
	fset, all := token.NewFileSet(), map[string]*ast.File{}
	helper := regexp.MustCompile(`/(\w+test|testkit|callcount|load)/`)
	for _, top := range []string{"server", "workers", "schemacheck"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") ||
				helper.MatchString(path) {
				return err
			}
			f, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
			all[filepath.ToSlash(strings.TrimPrefix(path, root+string(filepath.Separator)))] = f
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(all) < 300 {
		t.Fatalf("%d files", len(all))
	}
	return all
}

func imports(f *ast.File, path string) bool {
	return slices.ContainsFunc(f.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == `"`+path+`"` })
}

// outgoing are the files that send requests by HTTP, each with where to: an address that a setting or
// a row of this installation names. What a user sent goes through the guard alone.
var outgoing = map[string]string{
	"server/infra/egress/guard.go":                          "webhooks of topics, which users choose: the guard itself",
	"server/topic/internal/push/sender.go":                  "webhooks of topics, through the guard",
	"server/client/blackbox/proxy.go":                       "the server that the test starts",
	"server/client/blackbox/user.go":                        "the server that the test starts",
	"server/client/client.go":                               "the server that a client is set up with",
	"server/client/tail/tail.go":                            "the server that a client is set up with",
	"server/client/topic/topic.go":                          "the server that a client is set up with",
	"server/identity/issuer/keys.go":                        "issuers that a setting names, and where their documents lead on the same terms",
	"server/identity/sender/webhook.go":                     "the program that a setting names",
	"server/link/link.go":                                   "servers that are listed in Redis",
	"server/link/transport.go":                              "servers that are listed in Redis",
	"server/store/dynamo/wire/body.go":                      "DynamoDB, by the settings",
	"server/store/dynamo/wire/wire.go":                      "DynamoDB, by the settings",
	"workers/ops/opsctl/opsctl.go":                          "operators' service, by the settings",
	"workers/topicproxy/topicproxy.go":                      "servers that are listed in Redis",
	"schemacheck/internal/registryclient/registryclient.go": "the registry, by a flag",
}

// guarded are the files that make requests to addresses which users choose, and send none themselves: they have
// no client of their own.
var guarded = []string{"server/topic/internal/push/sender.go"}

// Nothing sends requests but the files of the list. Addresses of users are fetched for webhooks alone, and those
// files have no way out but the guard of package egress (S-48).
func TestSec_S_48_AddressesOfUsersAreGuarded(t *testing.T) {
	sends := regexp.MustCompile(`^(Client|Transport|Get|Post|PostForm|Head|DefaultClient|DefaultTransport|NewRequest|NewRequestWithContext)$`)
	found := map[string]bool{}
	for path, f := range sources(t) {
		if !imports(f, "net/http") {
			continue
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				if pkg, ok := s.X.(*ast.Ident); ok && pkg.Name == "http" && sends.MatchString(s.Sel.Name) {
					found[path] = true
					if slices.Contains(guarded, path) && s.Sel.Name != "NewRequestWithContext" {
						t.Errorf("%s uses http.%s: requests to addresses of users are sent by the guard", path, s.Sel.Name)
					}
				}
			}
			return true
		})
	}
	for path := range found {
		if outgoing[path] == "" {
			t.Errorf("%s sends requests: say where to, and that no user chooses it", path)
		}
	}
	for path := range outgoing {
		if !found[path] {
			t.Errorf("%s sends no requests any more", path)
		}
	}
}

// No program uses unsafe, or C, and none has a linked name of another's (S-50).
func TestSec_S_50_NothingUnsafe(t *testing.T) {
	for path, f := range sources(t) {
		for _, name := range []string{"unsafe", "C", "plugin"} {
			if imports(f, name) {
				t.Errorf("%s imports %s", path, name)
			}
		}
		for _, g := range f.Comments {
			for _, c := range g.List {
				if strings.HasPrefix(c.Text, "//go:linkname") {
					t.Errorf("%s: %s", path, c.Text)
				}
			}
		}
	}
	parts, err := os.ReadFile(filepath.Join(root, ".ci/parts"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(parts), "gotest -race") {
		t.Error("CI has no step with the race detector")
	}
}

// What is secret comes from the environment or from files, never from a flag, which everybody on the machine
// can read (S-40).
func TestSec_S_40_SecretsAreNoFlags(t *testing.T) {
	pattern, secrets := regexp.MustCompile(`(PASSWORD|SECRET|TOKEN|PEPPER|_PIN)$`), 0
	for _, of := range []config.Program{config.Server, config.Workers} {
		for _, s := range config.Table(of) {
			if pattern.MatchString(s.Name) && !s.Secret {
				t.Errorf("%s is not marked as secret", s.Name)
			}
			if !s.Secret {
				continue
			}
			secrets++
			if s.Flag != "" || s.Default != "" {
				t.Errorf("%s has a flag %q or a default", s.Name, s.Flag)
			}
		}
	}
	if secrets < 4 {
		t.Errorf("%d secrets", secrets)
	}
}

// A request without a good token is refused before a byte of its body is read (S-36).
func TestSec_S_36_BodiesOfStrangersAreNotRead(t *testing.T) {
	i := newIssuer(t)
	read := 0
	body := func() io.ReadCloser {
		return io.NopCloser(readerFunc(func(p []byte) (int, error) { read++; return len(p), nil }))
	}
	for name, authorization := range map[string]string{"nothing": "", "nonsense": "Bearer x",
		"another scheme": "Basic eA=="} {
		user, err := i.ask(t, func(r *http.Request) {
			r.Body, r.ContentLength = body(), 128<<10
			if authorization != "" {
				r.Header.Set("Authorization", authorization)
			}
		})
		if user != "" || err == nil || read != 0 {
			t.Errorf("%s: %q, %v, %d reads", name, user, err, read)
		}
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// What was sent cannot begin a line of the log of its own, in both formats (S-24).
func TestSec_S_24_LogsAreNotForged(t *testing.T) {
	for _, asJSON := range []bool{false, true} {
		var out strings.Builder
		log := telemetry.NewLogger(&out, asJSON)
		evil := "x\r\ntime=2026-01-01T00:00:00Z level=ERROR msg=forged\n{\"level\":\"ERROR\"}\x1b[2J\x00\u2028"
		log.Warn("a request was refused", "from", evil, evil, "y")
		log.Warn(evil)
		if n := strings.Count(out.String(), "\n"); n != 2 || strings.ContainsAny(out.String(), "\r\x1b\x00") {
			t.Errorf("JSON %v: %d lines: %q", asJSON, n, out.String())
		}
	}
}

// Two builds of the same sources, each with a cache of its own, give the same bytes (S-51). They take minutes:
// PARLEY_BUILDS asks for them, as the nightly run does.
func TestSec_S_51_TwoBuildsAreEqual(t *testing.T) {
	if os.Getenv("PARLEY_BUILDS") == "" {
		t.Skip("not run: PARLEY_BUILDS is not set")
	}
	build := func() []byte {
		out := filepath.Join(t.TempDir(), "server")
		cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-buildid=", "-o",
			out,
			"./server")
		cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0", "TMPDIR="+t.TempDir(), "GOCACHE="+t.TempDir())
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		b, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	if a, b := build(), build(); string(a) != string(b) {
		t.Errorf("two builds differ: %d and %d bytes", len(a), len(b))
	}
}

// A gate's time and state are its own: a remembered token ends on the second (S-08).
func TestSec_S_08_RememberedTokensEnd(t *testing.T) {
	i := newIssuer(t)
	now := noon
	gate, err := auth.NewGate(auth.Config{Key: i.key, Clock: func() time.Time { return now },
		EnsureUser: func(context.Context, string) error { return nil }, Refuse: func(http.ResponseWriter, *http.Request,
			error) {
		}})
	if err != nil {
		t.Fatal(err)
	}
	token, err := i.key.Issue("alice", noon, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		at    time.Duration
		taken bool
	}{{0, true}, {time.Hour, true}, {time.Hour + 29*time.Second, true}, {time.Hour + 30*time.Second, false}} {
		now = noon.Add(step.at)
		if _, err := gate.Verify(token); (err == nil) != step.taken {
			t.Errorf("%v after it was made: %v", step.at, err)
		}
	}
}
