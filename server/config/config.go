// Package config reads what an operator sets, for all of Parley's programs: from flags,
// the environment, a file, and the defaults, in this order.
//
// It owns the table of all settings (their names, defaults and meanings), the form of
// the file, the checks that need nothing but a value itself, and the way in which programs
// answer who asks for help. What settings mean
// together belongs to the packages that use them. Secrets have no flag: others on the
// machine could see it.
//
// Concurrency: Values do not change once they are read.
package config

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
)

// Program is one of Parley's programs, or several.
type Program uint8

// The programs that have settings.
const (
	Server Program = 1 << iota
	Workers
)

// Setting is one line of the table.
type Setting struct {
	Name    string // of the variable, and in the file
	Flag    string // without dashes; "" for a secret
	Of      Program
	Default string
	Help    string
	// Secret says that the value must not be shown.
	Secret bool
	// ofWorkers is the default of workers where it is another.
	ofWorkers string
	section   string
	check     func(string) error // nil: everything is good
}

// maxValue bounds a value, in bytes.
const maxValue = 4 << 10

// Secret is a value that shows itself only to those who ask for it.
type Secret string

const hidden = "(hidden)"

// String hides the value from formatting.
func (Secret) String() string { return hidden }

// GoString hides the value from %#v.
func (Secret) GoString() string { return hidden }

// LogValue implements slog.LogValuer.
func (Secret) LogValue() slog.Value { return slog.StringValue(hidden) }

// MarshalText hides the value from JSON and the like.
func (Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// Reveal returns the value.
func (s Secret) Reveal() string { return string(s) }

// Values are the settings of one program as they were read.
type Values struct {
	text  map[string]string
	flags map[string]bool // those given on the command line
	// Warnings are lines about what is not wrong but should be otherwise.
	Warnings []string
}

// Read reads the settings of a program from its arguments and its environment, which has
// the form of os.Environ; rest is what follows the flags. Errors fit into one line and
// name the setting and where it stands, never a secret.
func Read(p Program, args, environ []string) (v Values, rest []string, err error) {
	fs, given := flags(p)
	if err := fs.Parse(args); err != nil {
		return v, nil, explainFlag(p, err)
	}
	env, err := readEnviron(environ)
	if err != nil {
		return v, nil, err
	}
	v = Values{text: map[string]string{}, flags: map[string]bool{}}
	fs.Visit(func(f *flag.Flag) { v.flags[f.Name] = true })
	// The file has no say in where it is.
	path := *given[fileSetting]
	if !v.flags["config"] {
		path = env[fileSetting]
	}
	var lines map[string]line
	if path != "" {
		if lines, v.Warnings, err = readFile(path); err != nil {
			return v, nil, err
		}
	}
	for _, s := range Settings(p) {
		value, from := s.Default, ""
		in, there := lines[s.Name]
		switch {
		case !s.Secret && v.flags[s.Flag]:
			value, from = *given[s.Name], "--"+s.Flag
		case env[s.Name] != "":
			value, from = env[s.Name], s.Name
		case there && in.value != "":
			value, from = in.value, in.at
		}
		if err := s.valid(value); err != nil {
			if from == "--"+s.Flag {
				return v, nil, fmt.Errorf("%s %w", s.Flag, err)
			}
			return v, nil, fmt.Errorf("%s %w (%s)", s.title(), err, from)
		}
		v.text[s.Name] = value
	}
	return v, fs.Args(), nil
}

// flags declares the flags of a program; given are their values, by name of the setting.
func flags(p Program) (fs *flag.FlagSet, given map[string]*string) {
	fs = flag.NewFlagSet("", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	given = map[string]*string{}
	for _, s := range Settings(p) {
		if !s.Secret {
			given[s.Name] = fs.String(s.Flag, s.Default, s.Help)
		}
	}
	return fs, given
}

// title is what errors call a setting.
func (s Setting) title() string {
	if s.Secret {
		return s.Name
	}
	return s.Flag
}

func (s Setting) valid(value string) error {
	if len(value) > maxValue {
		return fmt.Errorf("must have at most %d bytes", maxValue)
	}
	if strings.ContainsAny(value, "\n\r\x00") {
		return errors.New("must be one line")
	}
	if s.check == nil {
		return nil
	}
	return s.check(value)
}

// Get returns a value. The name must be that of one of the program's settings.
func (v Values) Get(name string) string {
	value, ok := v.text[name]
	if !ok {
		panic("config: " + name + " is not declared")
	}
	return value
}

// Secret returns a secret.
func (v Values) Secret(name string) Secret { return Secret(v.Get(name)) }

// Int returns the value of a setting that is declared as a number.
func (v Values) Int(name string) int {
	n, err := strconv.Atoi(v.Get(name))
	if err != nil {
		panic("config: " + name + " is not declared as a number")
	}
	return n
}

// OnCommandLine reports whether a setting was given by its flag, which others on the
// machine can see.
func (v Values) OnCommandLine(flag string) bool { return v.flags[flag] }

// PrintFlags writes what --help says of the settings of a program.
func PrintFlags(w io.Writer, p Program) {
	for _, s := range Settings(p) {
		if s.Secret {
			continue
		}
		fmt.Fprintf(w, "  --%s (%s)\n    \t%s", s.Flag, s.Name, s.Help)
		if s.Default != "" {
			fmt.Fprintf(w, "; default %s", s.Default)
		}
		fmt.Fprintln(w)
	}
	fmt.Fprint(w, "\nin the environment or the file only:\n")
	for _, s := range Settings(p) {
		if s.Secret {
			fmt.Fprintf(w, "  %s\n    \t%s\n", s.Name, s.Help)
		}
	}
}
