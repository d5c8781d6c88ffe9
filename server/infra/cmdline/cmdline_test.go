package cmdline

import (
	"errors"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/parley-chat/parley/server/infra/config"
)

// run runs a program that has commands of every kind.
func run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs strings.Builder
	root := &cobra.Command{Use: "prog", Short: "do it", Long: "A program.", Args: cobra.ArbitraryArgs}
	p := New(config.Server, root, "name")
	do := func(c *cobra.Command, args []string) error {
		if c == root && len(args) > 0 {
			return Usagef("unknown command %.40q", args[0])
		}
		_, err := p.Settings([]string{"PARLEY_LISTN=1"})
		return err
	}
	root.RunE = do
	command := func(use, short, long string) *cobra.Command {
		return &cobra.Command{Use: use, Short: short, Long: long, Args: cobra.ArbitraryArgs, RunE: do}
	}
	root.AddCommand(command("token USER", "print one", "  more\n"),
		Group("topics", "topics", command("apply", "make them", ""), command("acl", "rights", "")),
		Group("single", "one", command("only", "it", "")),
		&cobra.Command{Use: "fails", RunE: func(*cobra.Command, []string) error { return errors.New("no luck") }},
		&cobra.Command{Use: "differs", RunE: func(*cobra.Command, []string) error { return Exit(3) }}, says())
	code = p.Run(t.Context(), args, &out, &errs)
	return code, out.String(), errs.String()
}

// says makes a command with a flag and one below it, which prints the flag and its arguments.
func says() *cobra.Command {
	c := &cobra.Command{Use: "says", Short: "print it", RunE: func(*cobra.Command, []string) error { return nil }}
	c.Flags().Bool("loudly", false, "in capitals")
	word := &cobra.Command{Use: "word", Short: "print a word", Args: cobra.ArbitraryArgs}
	of := word.Flags().String("of", "", "language")
	word.RunE = func(c *cobra.Command, args []string) error {
		c.Println(*of + "+" + strings.Join(args, "+"))
		return nil
	}
	c.AddCommand(word)
	return c
}

// Help and version are answered whatever else is wrong, in every form in which people ask
// for them.
func TestHelpAndVersion(t *testing.T) {
	const all, version = "A program.\n\nusage:\n", "prog "
	for _, tt := range []struct{ line, says, not string }{
		{"--help", all, ""},
		{"-h", all, ""},
		{"help", all, ""},
		{"--listen nonsense help", all, ""},
		{"--listen x --help", "--web-origins (PARLEY_WEB_ORIGINS)", ""},
		{"help token", "prog [flags] token USER\n  print one\n  more\n", "usage"},
		{"token --help", "token USER", "usage"},
		{"token -h", "token USER", "topics"},
		{"token bob -h", "token USER", "topics"},
		{"help topics", "topics acl", "token"},
		{"topics --help", "topics apply", "token"},
		{"help topics acl", "rights", "token"},
		{"help topics apply", "make them", "token"},
		{"help topics apply now", "make them", "token"},
		{"version", version, "usage"},
		{"--version", version, "usage"},
		{"-version", version, "usage"},
		{"--data-dir /x version", version, "usage"},
		{"--version token bob", version, "usage"},
		{"--version says word -of x", version, "usage"},
		{"help says", "--loudly", "--of"},
		{"help says word", "--of", "--loudly"},
		{"--help token", all, ""},
		{"--help=true topics apply", all, ""},
		{"-h x token", all, ""},
	} {
		code, stdout, stderr := run(t, strings.Fields(tt.line)...)
		if code != ExitOK || stderr != "" || !strings.Contains(stdout, tt.says) || tt.not != "" &&
			strings.Contains(stdout, tt.not) || !strings.HasSuffix(stdout, "\n") {
			t.Errorf("%s: exit code %d, %q, %s", tt.line, code, stderr, stdout)
		}
	}
}

// Mistakes are one line and an exit code; nothing is printed beside it.
func TestMistakes(t *testing.T) {
	for line, want := range map[string]struct {
		code int
		says string
	}{
		"help dance":               {ExitUsage, `unknown command "dance"`},
		"help topics dance":        {ExitUsage, `unknown command "topics dance"`},
		"dance":                    {ExitUsage, `unknown command "dance"`},
		"--nope":                   {ExitUsage, "flag provided but not defined: -nope"},
		"--nope --help":            {ExitUsage, "not defined: -nope"},
		"-nope token":              {ExitUsage, "not defined: -nope"},
		"--nope x token":           {ExitUsage, "flag provided but not defined: -nope"},
		"--nope=x token":           {ExitUsage, "flag provided but not defined: -nope"},
		"--listn x token":          {ExitUsage, "did you mean --listen?"},
		"--redis-password=x token": {ExitUsage, "others could see it there: set PARLEY_REDIS_PASSWORD"},
		"--listen":                 {ExitUsage, "flag needs an argument: -listen"},
		"--listn x":                {ExitUsage, "did you mean --listen?"},
		"--redis-password":         {ExitUsage, "others could see it there: set PARLEY_REDIS_PASSWORD"},
		"topics":                   {ExitUsage, "topics needs apply or acl"},
		"topics dance":             {ExitUsage, "topics needs apply or acl"},
		"single":                   {ExitUsage, "single only is the one command on single"},
		"token --listen x":         {ExitUsage, `"--listen": flags go before the command`},
		"token bob":                {ExitUsage, "there is no setting PARLEY_LISTN"},
		"token -- -h":              {ExitUsage, "there is no setting PARLEY_LISTN"},
		"fails":                    {ExitFailed, "name: no luck\n"},
	} {
		code, stdout, stderr := run(t, strings.Fields(line)...)
		if code != want.code || stdout != "" || !strings.Contains(stderr, want.says) || strings.Count(stderr, "\n") != 1 ||
			!strings.HasPrefix(stderr, "name: ") {
			t.Errorf("%s: exit code %d, %q, %q", line, code, stdout, stderr)
		}
	}
	if code, stdout, stderr := run(t, "differs"); code != 3 || stdout+stderr != "" {
		t.Errorf("exit code %d, %q, %q", code, stdout, stderr)
	}
}

// A long flag with one dash is one with two, also behind a command. Values keep their dashes.
func TestOneDash(t *testing.T) {
	for line, want := range map[string]string{
		"-listen :1 says word -of -long a":  "-long+a\n",
		"-listen says says word --of -long": "-long+\n",
		"says -loudly word -of=x -- -of":    "x+-of\n",
	} {
		code, stdout, stderr := run(t, strings.Fields(line)...)
		if code != ExitOK || stdout+stderr != want {
			t.Errorf("%s: exit code %d, %q, %q", line, code, stdout, stderr)
		}
	}
}

// Shells complete commands, flags and nothing that fails.
func TestCompletion(t *testing.T) {
	for line, want := range map[string]string{
		"completion bash": "__start_prog", "completion zsh": "#compdef prog", "completion fish": "complete -c prog",
		"completion powershell": "Register-ArgumentCompleter",
		"__complete to":         "token\t", "__complete topics a": "apply\t", "__complete --lis": "--listen\t",
	} {
		code, stdout, _ := run(t, strings.Fields(line)...)
		if code != ExitOK || !strings.Contains(stdout, want) {
			t.Errorf("%s: exit code %d, %.300s", line, code, stdout)
		}
	}
}

func TestBuiltFrom(t *testing.T) {
	info := &debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}, Settings: []debug.BuildSetting{
		{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.time", Value: "2030-01-02T03:04:05Z"},
		{Key: "vcs.modified", Value: "true"}, {Key: "GOOS", Value: "x"},
	}}
	if got := strings.Join(builtFrom(info), " "); got != "v1.2.3 commit abc of 2030-01-02T03:04:05Z with changes" {
		t.Error(got)
	}
}
