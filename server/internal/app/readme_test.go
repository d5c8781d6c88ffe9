package app_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/parley-chat/parley/server/infra/config"
)

// readme is all that users are given to read before they run anything.
func readme(t *testing.T) string {
	t.Helper()
	var text strings.Builder
	for _, name := range []string{"README.md", "server/docs/rest.md", "server/deploy/README.md"} {
		page, err := os.ReadFile("../../../" + name)
		if err != nil {
			t.Fatal(err)
		}
		text.Write(page)
	}
	return text.String()
}

// readmeBlocks are the shell lines that hold a text, by block.
func readmeBlocks(t *testing.T, text string) []string {
	t.Helper()
	return slices.DeleteFunc(shellBlocks(readme(t)), func(code string) bool { return !strings.Contains(code, text) })
}

// operatorsHelp is the help of the operators' command in a line, which must be one that
// there is; "" where there is none.
func operatorsHelp(t *testing.T, line string) string {
	t.Helper()
	command := regexp.MustCompile(
		`\./server ((?:deadletters|events|groups|migration|outbox|topics) [a-z-]+|replay|audit)`).FindStringSubmatch(line)
	if command == nil {
		return ""
	}
	code, help, failure := run(t.Context(), nil, append([]string{"help"}, strings.Fields(command[1])...)...)
	if code != 0 {
		t.Errorf("the README speaks of %s: %s", command[1], failure)
	}
	return help
}

// What the README has people set are settings that there are, and the file that it shows is
// one that both programs take.
func TestReadmeSettings(t *testing.T) {
	text := readme(t)
	names, flags := map[string]bool{"PARLEY_CONFIG": true},
		map[string]bool{"--config": true, "--help": true, "--base": true, "--repair": true}
	for _, p := range []config.Program{config.Server, config.Workers} {
		for _, s := range config.Table(p) {
			names[s.Name], names[s.Name+"_FILE"] = true, s.Secret
			flags["--"+s.Flag] = true
		}
	}
	for _, name := range regexp.MustCompile(`PARLEY_[A-Z_]*[A-Z]`).FindAllString(text, -1) {
		if !names[name] && !strings.HasPrefix(name, "PARLEY_TEST_") {
			t.Errorf("the README speaks of %s, which nothing reads", name)
		}
	}
	found := 0
	for line := range strings.Lines(text) {
		if strings.Contains(line, "curl") || strings.Contains(line, "-H ") { // its flags are its own
			continue
		}
		help := operatorsHelp(t, line)
		for _, flag := range regexp.MustCompile("(?:^|[ (`])(--[a-z][a-z-]*)").FindAllStringSubmatch(line, -1) {
			found++
			if !flags[flag[1]] && !strings.Contains(help, "  "+flag[1]+" ") {
				t.Errorf("the README speaks of %s, which is no flag: %s", flag[1], line)
			}
		}
	}
	if found < 10 {
		t.Errorf("%d flags found in the README", found)
	}
	_, file, _ := strings.Cut(text, "```sh\nPARLEY_STORE=")
	file, _, ok := strings.Cut(file, "```")
	if !ok {
		t.Fatal("the README shows no file of settings")
	}
	// A comment that follows a value is the README's, not the file's.
	file = regexp.MustCompile(` +#.*`).ReplaceAllString("PARLEY_STORE="+file, "")
	path := filepath.Join(t.TempDir(), "parley.env")
	if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, p := range []config.Program{config.Server, config.Workers} {
		if _, err := config.Declare(p,
			pflag.NewFlagSet("", pflag.ContinueOnError)).Read([]string{"PARLEY_CONFIG=" + path}); err != nil {
			t.Errorf("the README's file: %v", err)
		}
	}
}
