package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/parley-chat/parley/server/infra/cmdline"
	"github.com/parley-chat/parley/server/infra/config"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/workers/ops/opsctl"
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

// unknown returns what of a command line does not exist. Commands for operators report it
// themselves; words of the others must be in the usage.
func unknown(t *testing.T, words []string) string {
	t.Helper()
	verb := words[:min(2, len(words))]
	if len(words) > 1 && (strings.HasPrefix(words[1], "-") || words[0] == "replay") {
		verb = words[:1]
	}
	if !opsctl.Is(words) {
		_, help, _ := run(t, nil, "--help")
		for line := range strings.Lines(help) {
			if strings.Contains(line, " "+verb[0]+" ") &&
				(len(verb) == 1 || strings.Contains(line, verb[1]) || verb[0] == "run" && strings.Contains(line, verb[1])) {
				return ""
			}
		}
		return "is not in the usage"
	}
	code, help, stderr := run(t, nil, append(append([]string{}, verb...), "--help")...)
	if code != cmdline.ExitOK {
		return stderr
	}
	for _, w := range words {
		if name, ok := strings.CutPrefix(w, "--"); ok && !strings.Contains(help, "  -"+name+" ") &&
			!strings.Contains(help, "  -"+name+"\n") {
			return "has no flag --" + name
		}
	}
	return ""
}
