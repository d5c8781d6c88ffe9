package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/parley-chat/parley/server/infra/cmdline"
	"github.com/parley-chat/parley/server/infra/config"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// What the runbooks say to type exists: commands and their flags, metrics, and the
// pages that they point to.
func TestRunbooks(t *testing.T) {
	dir := filepath.Join("..", "..", "..", "server", "deploy", "runbooks")
	pages, err := filepath.Glob(filepath.Join(dir, "*.md"))
	if err != nil || len(pages) < 9 {
		t.Fatal(pages, err)
	}
	names, err := os.ReadFile(filepath.Join("..", "..", "..", "server", "infra", "telemetry", "telemetry.go"))
	testkit.Must(t, err)
	var (
		block   = regexp.MustCompile("(?s)```sh\n(.*?)```")
		command = regexp.MustCompile(`(?m)(?:^\s*|\(|')workers ([a-z][^'\n)]*)`)
		inline  = regexp.MustCompile("`workers ([a-z][^`]*)`")
		setting = regexp.MustCompile(`PARLEY_[A-Z_]+`)
		metric  = regexp.MustCompile("`(parley_[a-z_]+)`")
		page    = regexp.MustCompile(`\]\(([a-z-]+\.md)\)`)
		n       = 0
	)
	for _, p := range pages {
		b, err := os.ReadFile(p)
		testkit.Must(t, err)
		text := string(b)
		var lines []string
		for _, m := range block.FindAllStringSubmatch(text, -1) {
			for _, c := range command.FindAllStringSubmatch(m[1], -1) {
				lines = append(lines, c[1])
			}
		}
		for _, c := range inline.FindAllStringSubmatch(text, -1) {
			lines = append(lines, c[1])
		}
		for _, line := range lines {
			n++
			if why := unknown(t, strings.Fields(line)); why != "" {
				t.Errorf("%s: workers %s: %s", filepath.Base(p), line, why)
			}
		}
		for _, s := range setting.FindAllString(text, -1) {
			found := false
			for _, have := range config.Table(config.Server | config.Workers) {
				found = found || have.Name == s
			}
			if !found {
				t.Errorf("%s: there is no setting %s", filepath.Base(p), s)
			}
		}
		for _, m := range metric.FindAllStringSubmatch(text, -1) {
			if !strings.Contains(string(names), `"`+m[1]+`"`) {
				t.Errorf("%s: there is no metric %s", filepath.Base(p), m[1])
			}
		}
		for _, m := range page.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join(dir, m[1])); err != nil {
				t.Errorf("%s: %v", filepath.Base(p), err)
			}
		}
	}
	if n < 25 {
		t.Fatalf("only %d commands were found", n)
	}
}

// unknown returns what of a command line does not exist.
func unknown(t *testing.T, words []string) string {
	t.Helper()
	isFlag := func(word string) bool { return strings.HasPrefix(word, "-") }
	command := words
	if i := slices.IndexFunc(words, isFlag); i >= 0 {
		command = words[:i]
	}
	code, help, stderr := run(t, nil, append([]string{"help"}, command...)...)
	if code != cmdline.ExitOK {
		return stderr
	}
	for _, w := range words {
		if isFlag(w) && !strings.Contains(help, "  "+w+" ") {
			return "has no flag " + w
		}
	}
	return ""
}
