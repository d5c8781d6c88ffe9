package config

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
)

// Command is what help says of a command.
type Command struct {
	Name  string // its words
	Args  string // what follows them
	About string // in a line
	More  string // further lines, each with its line break
}

// Manual is what a program says of itself, without looking at its settings: they may be
// what is wrong.
type Manual struct {
	Of       Program
	Name     string // of the program
	Title    string // in a line
	Commands []Command
	// Other, if given, prints the help of a command that is not listed, and reports
	// whether there is one.
	Other func(w io.Writer, words []string) bool
	// OtherUsage lists those commands.
	OtherUsage string
}

// Answer answers a command line that asks for help or for the version: --help, -h, help,
// help COMMAND, COMMAND --help, version, --version. It reports whether it did; an error
// names a command that there is not.
func (m Manual) Answer(w io.Writer, args []string) (done bool, err error) {
	fs, _ := flags(m.Of)
	version := fs.Bool("version", false, "")
	err = fs.Parse(args)
	words := fs.Args()
	switch {
	case errors.Is(err, flag.ErrHelp):
		return true, m.help(w, nil)
	case err != nil:
		return false, nil // Read says what is wrong
	case *version, len(words) > 0 && words[0] == "version":
		_, err := fmt.Fprintln(w, versionLine(m.Name))
		return true, err
	case len(words) > 0 && words[0] == "help":
		return true, m.help(w, words[1:])
	}
	end := len(words)
	if i := slices.Index(words, "--"); i >= 0 {
		end = i
	}
	if i := slices.IndexFunc(words[:end], isHelp); i >= 0 {
		return true, m.help(w, words[:i])
	}
	return false, nil
}

func isHelp(s string) bool { return s == "-h" || s == "--help" || s == "-help" }

// help writes the help of the command that words name, or of the program.
func (m Manual) help(w io.Writer, words []string) error {
	if len(words) == 0 {
		m.usage(w)
		return nil
	}
	if m.Other != nil && m.Other(w, words) {
		return nil
	}
	// The words of a command may be followed by arguments, which say nothing here.
	var list []Command
	for n := len(words); n > 0 && list == nil; n-- {
		name := strings.Join(words[:n], " ")
		for _, c := range m.Commands {
			if c.Name == name || strings.HasPrefix(c.Name, name+" ") {
				list = append(list, c)
			}
		}
	}
	if list == nil {
		return fmt.Errorf("unknown command %.40q", strings.Join(words, " "))
	}
	for i, c := range list {
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "%s [flags] %s\n  %s\n%s", m.Name, strings.TrimSpace(c.Name+" "+c.Args), c.About, c.More)
	}
	fmt.Fprintf(w, "\n%s --help lists the flags.\n", m.Name)
	return nil
}

func (m Manual) usage(w io.Writer) {
	fmt.Fprintf(w, "%s\n\nusage:\n", m.Title)
	width := 0
	for _, c := range m.Commands {
		width = max(width, len(c.Name)+1+len(c.Args))
	}
	for _, c := range m.Commands {
		fmt.Fprintf(w, "  %s [flags] %-*s   %s\n", m.Name, width, strings.TrimSpace(c.Name+" "+c.Args), c.About)
	}
	fmt.Fprintf(w, "  %s help COMMAND, version\n\n%s\nflags:\n", m.Name, m.OtherUsage)
	PrintFlags(w, m.Of)
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
