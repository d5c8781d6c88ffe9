package compat_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/schemacheck/compat"
	"github.com/parley-chat/parley/schemacheck/compat/fixture"
)

// Changes that buf reports and the rules allow, with the reason.
var bufAlone = map[string]string{
	"FILE SYNTAX_TO_EDITION":           "the syntax changes and nothing else does",
	"FILE RPC_IDEMPOTENCY_RAISED":      "callers may assume more, none has to",
	"WIRE_JSON RPC_IDEMPOTENCY_RAISED": "as above",
}

// Every finding of buf breaking at WIRE_JSON blocks under the rules for events, and every finding
// at FILE under the rules for APIs.
func TestBufFindsNothingMore(t *testing.T) {
	t.Parallel()
	bufBinary, err := filepath.Abs("../../.tools/bin/buf")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(bufBinary); err != nil {
		t.Skip("buf is not installed: run .tools/install")
	}
	paths, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	// All fixtures are one module each way: buf starts twice and not 400 times.
	dir := t.TempDir()
	fixtures := map[string]*fixture.Fixture{}
	for _, path := range paths {
		f := load(t, path)
		if _, custom := f.BaseFiles["options.proto"]; custom {
			continue // its options would share numbers in one module, and buf does not check them
		}
		name := strings.TrimSuffix(filepath.Base(path), ".txtar")
		fixtures[name] = f
		writeModule(t, filepath.Join(dir, "base"), name, f.BaseFiles)
		writeModule(t, filepath.Join(dir, "head"), name, f.HeadFiles)
	}
	validate, err := os.ReadFile("../../proto/third_party/buf/validate/validate.proto")
	if err != nil {
		t.Fatal(err)
	}
	for _, side := range []string{"base", "head"} {
		write(t, filepath.Join(dir, side, "buf/validate/validate.proto"), string(validate))
	}
	for _, category := range []string{"WIRE_JSON", "FILE"} {
		found := bufBreaking(t, bufBinary, dir, category)
		if len(found) < 60 {
			t.Errorf("buf has findings in %d fixtures, expected at least 60", len(found))
		}
		for name, types := range found {
			f := fixtures[name]
			if f == nil {
				t.Errorf("buf reports on %q, expected only fixtures", name)
				continue
			}
			scope := f.Scope
			if category == "FILE" {
				scope = compat.API
			}
			id, _, _ := strings.Cut(name, "-")
			listed := bufAlone[category+" "+id] != ""
			if findings := compare(t, f.Base, f.Head, compat.Options{Scope: scope}); !blocks(findings) != listed {
				t.Errorf("%s: buf at %s reports %s; the rules have %d findings, expected one that blocks: %t", name, category,
					strings.Join(types, ", "), len(findings), !listed)
			}
		}
	}
}

func blocks(findings []compat.Finding) bool {
	for _, f := range findings {
		if f.Severity == compat.Block {
			return true
		}
	}
	return false
}

var (
	importPath  = regexp.MustCompile(`(?m)^import "([^"]+)"`)
	packageLine = regexp.MustCompile(`(?m)^package `)
)

// writeModule puts a fixture's files into a directory and packages of its own.
func writeModule(t *testing.T, dir, name string, files map[string]string) {
	t.Helper()
	scope := "p" + strings.ToLower(strings.ReplaceAll(name, "-", "_"))
	for path, text := range files {
		text = importPath.ReplaceAllStringFunc(text, func(s string) string {
			to := importPath.FindStringSubmatch(s)[1]
			if _, own := files[to]; !own {
				return s
			}
			return `import "` + name + "/" + to + `"`
		})
		text = packageLine.ReplaceAllString(text, "package "+scope+".")
		text = strings.ReplaceAll(text, " u.v1.", " "+scope+".u.v1.")
		write(t, filepath.Join(dir, name, path), text)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// bufBreaking returns the types of buf's findings by fixture.
func bufBreaking(t *testing.T, binary, dir, category string) map[string][]string {
	t.Helper()
	for _, side := range []string{"base", "head"} {
		write(t, filepath.Join(dir, side, "buf.yaml"), `{"version":"v2","breaking":{"use":["`+category+
			`"],"ignore":["buf"]}}`)
	}
	cmd := exec.CommandContext(t.Context(), binary, "breaking", "head", "--against", "base", "--error-format", "json")
	cmd.Dir, cmd.WaitDelay = dir, 10*time.Second
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	err := cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 100 { // 100 says that there are findings
		t.Fatalf("buf breaking: %v\n%s", err, problems.String())
	}
	found := map[string][]string{}
	lines := bufio.NewScanner(&out)
	for lines.Scan() {
		var a struct{ Path, Type, Message string }
		if err := json.Unmarshal(lines.Bytes(), &a); err != nil {
			t.Fatal(err)
		}
		if a.Path == "" { // a deleted file is named in the message only
			_, rest, _ := strings.Cut(a.Message, `"`)
			a.Path = rest
		}
		name, _, _ := strings.Cut(strings.TrimPrefix(a.Path, "head/"), "/")
		found[name] = append(found[name], a.Type)
	}
	return found
}
