// Package config reads what an operator sets, for all of Parley's programs: from flags,
// the environment, a file, and the defaults, in this order.
//
// It owns the table of all settings (their names, defaults and meanings), the form of the
// file, and the parsing that needs nothing but a value itself. Packages that use settings
// own their meaning together; commands and help belong to package cmdline. Secrets have no
// flag: others on the machine could see it.
//
// Concurrency: Settings do not change once they are read.
package config

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// Program is one of Parley's programs, or several.
type Program uint8

// The programs that have settings.
const (
	Server Program = 1 << iota
	Workers
	Load // the load test
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
	parse     parser // nil for the setting that says where the file is
}

// maxValue bounds a value, in bytes.
const maxValue = 4 << 10

// Flags are the flags of a program's settings.
type Flags struct {
	program Program
	set     *pflag.FlagSet
}

// Declare adds the flags of a program's settings to a set.
func Declare(p Program, set *pflag.FlagSet) Flags {
	for _, s := range Table(p) {
		if !s.Secret {
			set.String(s.Flag, s.Default, s.Help)
		}
	}
	return Flags{p, set}
}

// Read reads the settings of a program once its flags are parsed, with an environment
// that has the form of os.Environ. Errors fit into one line and name the setting and where
// it stands, never a secret.
func (f Flags) Read(environ []string) (Settings, error) {
	var settings Settings
	env, err := readEnviron(environ)
	if err != nil {
		return settings, err
	}
	// The file has no say in where it is.
	path, ok := f.given("config")
	if !ok {
		path = env[fileSetting]
	}
	var lines map[string]line
	if path != "" {
		if lines, settings.Warnings, err = readFile(path); err != nil {
			return settings, err
		}
	}
	for _, s := range Table(f.program) {
		if s.parse == nil {
			continue
		}
		value, from := f.find(s, env, lines)
		err := s.valid(value)
		if err == nil {
			value, err = f.secretFile(s, value, env, lines)
		}
		if err == nil {
			err = s.parse(&settings, value)
		}
		switch {
		case err != nil && from == "--"+s.Flag:
			return settings, fmt.Errorf("%s %w", s.Flag, err)
		case err != nil:
			return settings, fmt.Errorf("%s %w (%s)", s.title(), err, from)
		}
	}
	_, settings.Redis.OnCommandLine = f.given("redis")
	return settings, nil
}

// find returns the value of a setting and where it stands.
func (f Flags) find(s Setting, env map[string]string, lines map[string]line) (value, from string) {
	if value, ok := f.given(s.Flag); ok {
		return value, "--" + s.Flag
	}
	if value := env[s.Name]; value != "" {
		return value, s.Name
	}
	if in := lines[s.Name]; in.value != "" {
		return in.value, in.at
	}
	return s.Default, ""
}

// given returns the value of a flag that is on the command line.
func (f Flags) given(name string) (value string, ok bool) {
	flag := f.set.Lookup(name)
	if flag == nil || !flag.Changed {
		return "", false
	}
	return flag.Value.String(), true
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
	return nil
}

// PrintFlags writes what --help says of the settings of a program.
func PrintFlags(w io.Writer, p Program) {
	for _, s := range Table(p) {
		if s.Secret {
			continue
		}
		fmt.Fprintf(w, "  --%s (%s)\n    \t%s", s.Flag, s.Name, s.Help)
		if s.Default != "" {
			fmt.Fprintf(w, "; default %s", s.Default)
		}
		fmt.Fprintln(w)
	}
	secrets := slices.DeleteFunc(Table(p), func(s Setting) bool { return !s.Secret })
	if len(secrets) == 0 {
		return
	}
	fmt.Fprintf(w, "\nin the environment or the file only, or in a file of its own that NAME%s names there:\n", fileSuffix)
	for _, s := range secrets {
		fmt.Fprintf(w, "  %s\n    \t%s\n", s.Name, s.Help)
	}
}
