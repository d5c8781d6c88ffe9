package command

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/parley-chat/parley/schemacheck/compat/schema"
	"github.com/parley-chat/parley/schemacheck/internal/load"
)

//go:embed help/workflow.yml
var workflow string

const workflowPath = ".github/workflows/schemacheck.yml"

// initialize writes schemacheck.yaml for the tree at hand, and on request a workflow.
// Nothing is overwritten.
func initialize(ctx context.Context, args []string, e Env) error {
	s := settings{head: "."}
	if err := s.parse(e, "init", args, "github", "exclude"); err != nil {
		return err
	}
	head, err := s.loadHead(ctx, e)
	if err != nil {
		return err
	}
	type file struct{ path, text string }
	files := []file{{load.ConfigName, configOf(schema.New(head.Files), head)}}
	if s.github {
		files = append(files, file{workflowPath, strings.ReplaceAll(workflow, "@VERSION", "@"+pinned())})
	}
	for _, f := range files {
		if _, err := os.Lstat(filepath.Join(e.Dir, f.path)); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s is there already; nothing was written", f.path)
		}
	}
	for _, f := range files {
		p := filepath.Join(e.Dir, f.path)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			return fmt.Errorf("write %s: %w", f.path, plain(err))
		}
		if err := os.WriteFile(p, []byte(f.text), 0o644); err != nil {
			return fmt.Errorf("write %s: %w", f.path, plain(err))
		}
		fmt.Fprintf(e.Stdout, "wrote %s\n", f.path)
	}
	fmt.Fprintln(e.Stdout, "next: look at what it calls events, commit it, and try schemacheck diff --base HEAD")
	return nil
}

// pinned is what the workflow installs: a version of its own where there is one.
func pinned() string {
	if v := built(); strings.HasPrefix(v, "v") && !strings.Contains(v, "+") {
		return v
	}
	return "latest"
}

// configOf writes what a tree is judged as, for its owner to correct.
func configOf(s *schema.FileSet, head *load.Schema) string {
	var b strings.Builder
	b.WriteString("# What schemacheck judges as what; schemacheck help config has all fields.\nversion: 1\n\n")
	var names, topics []string
	for _, m := range s.Roots {
		names = append(names, head.RepoPath(m.ParentFile().Path()))
		if event, ok := s.Events[m.FullName()]; ok && event.Text("topic") != "" {
			topics = append(topics, event.Text("topic"))
		}
	}
	list := func(key string, of []string) {
		fmt.Fprintf(&b, "%s:\n", key)
		slices.Sort(of)
		for _, one := range slices.Compact(of) {
			fmt.Fprintf(&b, "  - %q\n", one)
		}
	}
	switch {
	case s.Declared:
		b.WriteString("# Messages declare events by an option. Name here what holds events without it.\nevents: []\n\n")
		b.WriteString("# All topics that an event may declare.\n")
		list("topics", topics)
	case len(names) > 0:
		b.WriteString("# No message declares an event. These files have no service and nothing imports them,\n" +
			"# so that they are taken for events: take out what is none. Folders and packages can\n# be named too. An empty list means the same guess with each run.\n")
		list("events", names)
	default:
		b.WriteString("# There is no event: everything is judged as API.\nevents: []\n")
	}
	b.WriteString("\n# Findings that pass for a time: rule, subject, reason, owner, expires.\nwaivers: []\n")
	return b.String()
}
