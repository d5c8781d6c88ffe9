package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	descriptorv1 "buf.build/gen/go/bufbuild/bufplugin/protocolbuffers/go/buf/plugin/descriptor/v1"
	"buf.build/go/bufplugin/check"
	"buf.build/go/bufplugin/descriptor"
	"buf.build/go/bufplugin/option"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/parley-chat/parley/schemacheck/compat"
	"github.com/parley-chat/parley/schemacheck/compat/fixture"
	"github.com/parley-chat/parley/schemacheck/gate"
	"github.com/parley-chat/parley/schemacheck/internal/command"
)

var levels = []string{"NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL",
	"FULL_TRANSITIVE"}

// The command line and the plugin block what the gate blocks and nothing else, on every
// fixture. A run judges a third of the fixtures, each at one level, both of which PARLEY_SCHEMA_SEED rotates, or with
// PARLEY_SCHEMA_LEVELS=all all of them at all levels.
func TestOneVerdict(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("../compat/testdata/*.txtar")
	if err != nil || len(paths) < 200 {
		t.Fatalf("%d fixtures (%v), expected at least 200", len(paths), err)
	}
	turn, _ := strconv.Atoi(os.Getenv("PARLEY_SCHEMA_SEED")) // 0 if it is not set
	client, err := check.NewClientForSpec(spec(), check.ClientWithCaching())
	if err != nil {
		t.Fatal(err)
	}
	var blocked atomic.Int64
	judged := 0
	t.Run("fixtures", func(t *testing.T) {
		for i, path := range paths {
			at := []string{levels[(i+turn)%len(levels)]}
			if os.Getenv("PARLEY_SCHEMA_LEVELS") == "all" {
				at = levels
			} else if (i+turn)%3 != 0 {
				continue
			}
			judged++
			t.Run(filepath.Base(path), func(t *testing.T) {
				t.Parallel()
				f, err := fixture.Load(path)
				if err != nil {
					t.Fatal(err)
				}
				dir := t.TempDir()
				write(t, filepath.Join(dir, "base"), f.BaseFiles)
				write(t, filepath.Join(dir, "head"), f.HeadFiles)
				for _, level := range at {
					if oneVerdict(t, client, f, dir, level) {
						blocked.Add(1)
					}
				}
			})
		}
	})
	if n := blocked.Load(); judged < 100 || n < int64(judged/3) {
		t.Errorf("%d fixtures, %d comparisons block", judged, n)
	}
}

// What breaks an event through an extension of a message in it is blocked by all three,
// also where no file of an event declares the extension.
func TestExtensionsOfImportedFiles(t *testing.T) {
	t.Parallel()
	client, err := check.NewClientForSpec(spec(), check.ClientWithCaching())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"EXTENSION_CHANGED-imported", "EXTENSION_CHANGED-imported-number",
		"EXTENSION_CHANGED-imported-label", "EXTENSION_CHANGED-nested", "EXTENSION_REMOVED-imported",
		"SCALAR_TYPE_CHANGED-extension"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, err := fixture.Load("../compat/testdata/" + name + ".txtar")
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			write(t, filepath.Join(dir, "base"), f.BaseFiles)
			write(t, filepath.Join(dir, "head"), f.HeadFiles)
			if !oneVerdict(t, client, f, dir, "FULL") {
				t.Error("the change is allowed, expected it to be blocked")
			}
		})
	}
}

// oneVerdict compares the verdicts on a fixture, whose files are in dir, and reports whether
// the gate blocks it.
func oneVerdict(t *testing.T, client check.Client, f *fixture.Fixture, dir, level string) (blocks bool) {
	t.Helper()
	policy, err := compat.ParsePolicy(level)
	if err != nil {
		t.Fatal(err)
	}
	n, version := gate.InMemory([][]protoreflect.FileDescriptor{f.Base})
	for c, err := range gate.CompareAll(t.Context(), n, version, f.Head,
		compat.Options{Policy: policy, Scope: f.Scope}) {
		if err != nil {
			t.Fatal(err)
		}
		blocks = blocks ||
			slices.ContainsFunc(c.Findings, func(f compat.Finding) bool { return f.Severity == compat.Block })
	}
	scope := map[compat.Scope]string{compat.Event: "event", compat.API: "api", compat.All: "all"}[f.Scope]
	var out bytes.Buffer
	code := command.Run(t.Context(), []string{"--base", "base", "--head", "head", "--policy", level, "--scope", scope,
		"--exclude", "head/imported", "--exclude", "base/imported", "--exclude", "imported"},
		command.Env{Dir: dir, Stdout: &out, Stderr: &out, Getenv: func(string) string { return "" }})
	if want := map[bool]int{false: command.Clean, true: command.Findings}[blocks]; code != want {
		t.Errorf("at %s the command line exits with %d, expected %d as the gate\n%s", level, code, want, out.String())
	}
	if got := annotated(t, client, f, level, scope); got != blocks {
		t.Errorf("at %s the plugin blocks: %t, expected %t as the gate", level, got, blocks)
	}
	return blocks
}

// annotated reports whether the plugin has findings in the category that blocks.
func annotated(t *testing.T, client check.Client, f *fixture.Fixture, level, scope string) bool {
	t.Helper()
	given, err := option.NewOptions(map[string]any{"scope": scope, "policy": level})
	if err != nil {
		t.Fatal(err)
	}
	request, err := check.NewRequest(described(t, f.Head), check.WithAgainstFileDescriptors(described(t, f.Base)),
		check.WithOptions(given))
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Check(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range response.Annotations() {
		if strings.HasSuffix(a.RuleID(), "_WARN") {
			t.Errorf("%s is enabled by default, expected only on request", a.RuleID())
		}
	}
	return len(response.Annotations()) > 0
}

// described makes the descriptors that buf passes to plugins: the files and all that they
// import, in order.
func described(t *testing.T, files []protoreflect.FileDescriptor) []descriptor.FileDescriptor {
	t.Helper()
	var list []*descriptorv1.FileDescriptor
	seen := map[string]bool{}
	var add func(f protoreflect.FileDescriptor, imported bool)
	add = func(f protoreflect.FileDescriptor, imported bool) {
		if seen[f.Path()] {
			return
		}
		seen[f.Path()] = true
		for i := range f.Imports().Len() {
			dep := f.Imports().Get(i).FileDescriptor
			own := slices.ContainsFunc(files, func(f protoreflect.FileDescriptor) bool { return f.Path() == dep.Path() })
			add(dep, !own)
		}
		list = append(list, &descriptorv1.FileDescriptor{FileDescriptorProto: protodesc.ToFileDescriptorProto(f),
			IsImport: imported})
	}
	for _, f := range files {
		add(f, false)
	}
	made, err := descriptor.FileDescriptorsForProtoFileDescriptors(list)
	if err != nil {
		t.Fatal(fmt.Errorf("descriptors: %w", err))
	}
	return made
}

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
