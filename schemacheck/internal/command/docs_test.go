package command

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// What the README shows is what happens: its files are written, its commands are run
// in order, and what they are said to print is printed.
func TestReadme(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile(filepath.Join(root, "schemacheck/README.md"))
	if err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(string(b), "\n"); lines > 150 {
		t.Errorf("%d lines", lines)
	}
	dir, said, ran := t.TempDir(), "", 0
	git(t, dir, "init", "-q", "-b", "main")
	committed := false
	for i, block := range strings.Split(string(b), "```") {
		kind, text, _ := strings.Cut(block, "\n")
		if i%2 == 0 {
			continue
		}
		switch kind {
		case "proto":
			first, _, _ := strings.Cut(text, "\n")
			write(t, dir, map[string]string{strings.TrimPrefix(first, "// file: "): text[len(first)+1:]})
			if !committed {
				git(t, dir, "add", ".")
				git(t, dir, "commit", "-q", "-m", "one")
				committed = true
			}
		case "sh":
			said = ""
			for line := range strings.Lines(text) {
				command, exit, _ := strings.Cut(strings.TrimSpace(line), "   # exit ")
				code, out := script(t, dir, command)
				if fmt.Sprint(code) != strings.TrimSpace(exit+strings.Repeat("0", 1-min(1, len(exit)))) {
					t.Fatalf("%s: exit %d, want %q\n%s", command, code, exit, out)
				}
				said += out
				ran++
			}
		case "text":
			for line := range strings.Lines(text) {
				if !strings.Contains(said, strings.TrimRight(line, "\n")) {
					t.Errorf("%q is not in\n%s", line, said)
				}
			}
		case "console":
		default:
			t.Errorf("block %q", kind)
		}
	}
	if ran < 10 {
		t.Errorf("%d commands", ran)
	}
}

// The build script takes versions only; it is the release workflow that builds.
func TestBinaries(t *testing.T) {
	t.Parallel()
	for args, says := range map[string]string{"": "usage: .ci/binaries DIR VERSION", "out": "usage",
		"out 1.2": "1.2 is no version like v1.2.3", "out 'v1.2.3; ls'": "is no version"} {
		path, err := filepath.Abs(filepath.Join(root, ".ci/binaries"))
		if err != nil {
			t.Fatal(err)
		}
		if code, out := script(t, t.TempDir(), path+" "+args); code != 1 || !strings.Contains(out, says) {
			t.Errorf("%q: exit %d, %q", args, code, out)
		}
	}
}

type workflowFile struct {
	On   map[string]any `yaml:"on"`
	Jobs map[string]struct {
		Steps []struct {
			Name, Run, Uses string
			With            map[string]string
			Env             map[string]string
		}
	}
}

// Both workflows take the gate from the base branch and read the pull request from
// git's objects; their steps, run on a repository, pass what is compatible and fail
// what is not, also if the pull request changes schemacheck.yaml or what is released.
func TestWorkflows(t *testing.T) {
	t.Parallel()
	own, err := os.ReadFile(filepath.Join(root, ".github/workflows/schemacheck.yml"))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"own": string(own), "template": workflow} {
		var w workflowFile
		if err := yaml.Unmarshal([]byte(text), &w); err != nil {
			t.Fatal(err)
		}
		if _, ok := w.On["pull_request_target"]; !ok || len(w.On) != 1 {
			t.Errorf("%s: on %v", name, w.On)
		}
		for _, step := range w.Jobs["schemacheck"].Steps {
			if strings.HasPrefix(step.Uses, "actions/checkout") && step.With["ref"] != "" {
				t.Errorf("%s: checks the pull request out", name)
			}
			if strings.Contains(step.Run, "${{") {
				t.Errorf("%s: %q takes values into a script", name, step.Run)
			}
		}
		for change, tt := range map[string]struct {
			files  map[string]string
			remove string
			fails  bool
		}{
			"nothing": {nil, "", false},
			"addition": {map[string]string{"proto/event/shop/v1/note.proto": strings.Replace(note, "string text = 1;",
				"string text = 1; optional string by = 2;", 1)}, "", false},
			"break": {map[string]string{"proto/event/shop/v1/note.proto": strings.ReplaceAll(note, "string text",
				"string words")}, "", true},
			"break and waiver": {map[string]string{
				"proto/event/shop/v1/note.proto": strings.ReplaceAll(note, "string text", "string words"),
				"schemacheck.yaml":               "version: 1\nwaivers: [{rule: N01, subject: shop.v1.NoteTaken.words, reason: r, owner: o, expires: 2999-01-01}]\n",
			}, "", true},
			"release is gone": {nil, "schemacheck/released/0001.binpb", name == "own"},
		} {
			dir := repository(t, map[string]string{"proto/event/shop/v1/note.proto": note, "schemacheck.yaml": "version: 1\n"})
			expect(t, dir, Clean, "released as 0001", "release")
			git(t, dir, "add", ".")
			git(t, dir, "commit", "-q", "-m", "released")
			git(t, dir, "checkout", "-q", "-b", "pull")
			write(t, dir, tt.files)
			if tt.remove != "" {
				git(t, dir, "rm", "-q", tt.remove)
			}
			git(t, dir, "add", ".")
			git(t, dir, "commit", "-q", "--allow-empty", "-m", "pull")
			git(t, dir, "update-ref", "refs/remotes/pull/head", "pull")
			git(t, dir, "checkout", "-q", "main")
			failed := ""
			for _, step := range w.Jobs["schemacheck"].Steps {
				if step.Run == "" || step.Name == "the gate" || step.Name == "the pull request" {
					continue
				}
				if code, out := script(t, dir, step.Run); code != 0 {
					failed += step.Name + "\n" + out
				}
			}
			if (failed != "") != tt.fails {
				t.Errorf("%s, %s: failed is %q", name, change, failed)
			}
		}
	}
}

// The hook of pre-commit judges what is staged and runs this program.
func TestPreCommitHook(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile(filepath.Join(root, ".pre-commit-hooks.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var hooks []struct {
		ID, Entry, Files string
		PassFilenames    *bool `yaml:"pass_filenames"`
	}
	if err := yaml.Unmarshal(b, &hooks); err != nil || len(hooks) != 1 || hooks[0].PassFilenames == nil ||
		*hooks[0].PassFilenames {
		t.Fatal(err, hooks)
	}
	files := regexp.MustCompile(hooks[0].Files)
	for name, want := range map[string]bool{"a/b.proto": true, "schemacheck.yaml": true, "x/buf.yaml": true,
		"a.go": false} {
		if files.MatchString(name) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
	dir := repository(t, shop())
	hook := "#!/bin/sh\nexec " + hooks[0].Entry + "\n"
	write(t, dir, map[string]string{".git/hooks/pre-commit": hook})
	if err := os.Chmod(filepath.Join(dir, ".git/hooks/pre-commit"), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, dir, shop("string order_id", "string id"))
	if code, out := script(t, dir,
		"git add . && sed -i 's/string id/string order_id/' shop/v1/order.proto && git commit -qm break"); code == 0 ||
		!strings.Contains(out, "block FIELD_RENAMED (N01)") {
		t.Errorf("a staged break was committed: exit %d\n%s", code, out)
	}
	if code, out := script(t, dir, "git add . && git commit -q --allow-empty -m fine"); code != 0 {
		t.Errorf("exit %d\n%s", code, out)
	}
}
