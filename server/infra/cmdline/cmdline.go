// Package cmdline is what the command lines of Parley's programs have in common: a tree
// of commands, help for each of them, the version, completion for shells, and exit codes.
//
// It owns how a line is read and how its mistakes are reported: in one line, with exit
// code 2. Which commands there are belongs to the programs, settings and their flags to
// package config.
//
// Concurrency: a Program is used by one goroutine.
package cmdline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/parley-chat/parley/server/infra/config"
)

// Exit codes that all programs share.
const (
	ExitOK     = 0
	ExitFailed = 1
	ExitUsage  = 2
)

// UsageError is a mistake in the command line or the settings.
type UsageError struct{ error }

// Unwrap returns the mistake itself.
func (e UsageError) Unwrap() error { return e.error }

// Usage makes a UsageError of an error; nil stays nil.
func Usage(err error) error {
	if err == nil {
		return nil
	}
	return UsageError{err}
}

// Usagef formats a UsageError.
func Usagef(format string, args ...any) error { return UsageError{fmt.Errorf(format, args...)} }

// BaseURL checks the URL of a server, and returns it without a slash at its end.
func BaseURL(text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.User != nil {
		return "", Usagef("url must be like https://chat.example.com, not %.100q", text)
	}
	return strings.TrimSuffix(u.String(), "/"), nil
}

// Exit ends a program with a code. The message has been printed already.
type Exit int

// Error implements error.
func (e Exit) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// ExitCode is the error that ends a program with a code; nil for ExitOK.
func ExitCode(code int) error {
	if code == ExitOK {
		return nil
	}
	return Exit(code)
}

// Program is a program with a command line.
type Program struct {
	// Root is the tree of commands. Its own flags, the settings, go before a command.
	Root *cobra.Command

	name  string // in messages
	flags config.Flags
}

// New makes a program without commands. Root's Long is its title, Short what it does without
// a command, if anything. Its name in messages may differ from root's.
func New(of config.Program, root *cobra.Command, name string) *Program {
	p := &Program{Root: root, name: name}
	root.SilenceErrors, root.SilenceUsage, root.DisableSuggestions = true, true, true
	root.TraverseChildren = true
	root.CompletionOptions.HiddenDefaultCmd = true // the root's help lists it in a line of its own
	p.flags = config.Declare(of, root.Flags())
	root.Flags().Bool("version", false, "print the version")
	root.InitDefaultHelpFlag() // also before a command, whose line cobra reads first
	root.PersistentPreRunE = func(*cobra.Command, []string) error { return answer(root) }
	root.SetFlagErrorFunc(p.explainFlag)
	root.SetHelpFunc(func(c *cobra.Command, _ []string) { p.help(c.OutOrStdout(), of, c) })
	root.SetHelpCommand(p.helpCommand())
	root.AddCommand(&cobra.Command{
		Use: "version", Short: "print the version", Hidden: true,
		RunE: func(c *cobra.Command, _ []string) error { return printVersion(c) },
	})
	return p
}

// Settings reads the settings, after which it reports what should be changed in them.
func (p *Program) Settings(environ []string) (config.Settings, error) {
	s, err := p.flags.Read(environ)
	if err != nil {
		return s, UsageError{err}
	}
	for _, text := range s.Warnings {
		fmt.Fprintf(p.Root.ErrOrStderr(), "%s: warning: %s\n", p.name, text)
	}
	return s, nil
}

// Run runs the command that a line names until ctx ends or it fails, and returns the exit
// code.
func (p *Program) Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	p.Root.SetOut(stdout)
	p.Root.SetErr(stderr)
	p.Root.SetArgs(p.withTwoDashes(args))
	err := p.explainSetting(p.Root.ExecuteContext(ctx))
	var (
		usage UsageError
		exit  Exit
	)
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &exit):
		return int(exit)
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "%s: %v; --help lists what there is\n", p.name, err)
		return ExitUsage
	default:
		fmt.Fprintf(stderr, "%s: %v\n", p.name, err)
		return ExitFailed
	}
}

// withTwoDashes lets -listen stand for --listen, as it always could. Values of flags and what
// follows -- stay as they are.
func (p *Program) withTwoDashes(args []string) []string {
	var out []string
	c, isValue := p.Root, false
	for i, arg := range args {
		if arg == "--" {
			return append(out, args[i:]...)
		}
		if next := child(c, arg); next != nil && !isValue {
			c = next
		}
		if !isValue && len(arg) > 2 && arg[0] == '-' && arg[1] != '-' {
			arg = "-" + arg
		}
		flag := c.Flags().Lookup(strings.TrimLeft(arg, "-"))
		isValue = !isValue && strings.HasPrefix(arg, "--") && flag != nil && flag.NoOptDefVal == ""
		out = append(out, arg)
	}
	return out
}

// explainFlag reports a flag that cannot be read.
func (p *Program) explainFlag(c *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if c != p.Root && errors.As(err, &unknown) {
		return Usagef("%.40q: flags go before the command; an argument that begins with a dash goes behind --",
			dashed(unknown.GetSpecifiedName()))
	}
	return UsageError{p.flags.ExplainFlag(err)}
}

// explainSetting makes a UsageError of an error of the settings before a command, which
// cobra returns as it is.
func (p *Program) explainSetting(err error) error {
	var (
		usage   UsageError
		unknown *pflag.NotExistError
		alone   *pflag.ValueRequiredError
		invalid *pflag.InvalidValueError
		syntax  *pflag.InvalidSyntaxError
	)
	if errors.As(err, &usage) || !errors.As(err, &unknown) && !errors.As(err, &alone) && !errors.As(err, &invalid) &&
		!errors.As(err, &syntax) {
		return err
	}
	return UsageError{p.flags.ExplainFlag(err)}
}

// answer prints help or the version and ends the program, if the flags before the command
// ask for it, for any command.
func answer(root *cobra.Command) error {
	if asked, err := root.Flags().GetBool("help"); err == nil && asked {
		if err := root.Help(); err != nil {
			return err
		}
		return Exit(ExitOK)
	}
	if asked, err := root.Flags().GetBool("version"); err == nil && asked {
		if err := printVersion(root); err != nil {
			return err
		}
		return Exit(ExitOK)
	}
	return nil
}

func dashed(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

func printVersion(c *cobra.Command) error {
	_, err := fmt.Fprintln(c.OutOrStdout(), versionLine(c.Root().Name()))
	return err
}

// versionLine is what a program is: the version or commit that it was built from, as far as
// the build knows.
func versionLine(name string) string {
	parts := []string{name}
	if info, ok := debug.ReadBuildInfo(); ok {
		parts = append(parts, builtFrom(info)...)
	}
	return strings.Join(append(parts, runtime.Version(), runtime.GOOS+"/"+runtime.GOARCH), " ")
}

func builtFrom(info *debug.BuildInfo) (parts []string) {
	if v := info.Main.Version; v != "" {
		parts = append(parts, v)
	}
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			parts = append(parts, "commit "+s.Value)
		case s.Key == "vcs.time":
			parts = append(parts, "of "+s.Value)
		case s.Key == "vcs.modified" && s.Value == "true":
			parts = append(parts, "with changes")
		}
	}
	return parts
}
