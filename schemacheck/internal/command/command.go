// Package command is the program schemacheck: its arguments, its sub-commands and
// its exit code.
//
// It owns how the program is used. The rules are in compat, the reading of schemas in load, the
// formats in report.
//
// Concurrency: Run may be called together for different environments.
package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/parley-chat/parley/schemacheck/compat"
	"github.com/parley-chat/parley/schemacheck/internal/crash"
	"github.com/parley-chat/parley/schemacheck/internal/report"
	"github.com/parley-chat/parley/schemacheck/internal/schemafile"
)

// Exit codes.
const (
	Clean    = 0 // nothing found; warnings alone too, unless strict
	Failed   = 1 // the tool could not do its work
	Findings = 2
)

// Env is what the program sees of its surroundings.
type Env struct {
	Dir            string // working directory
	Stdout, Stderr io.Writer
	Getenv         func(string) string
	Now            func() time.Time // decides what has expired; nil is the clock
}

func (e Env) now() time.Time {
	if e.Now == nil {
		return time.Now()
	}
	return e.Now()
}

// errFindings ends a command that did its work and found something.
var errFindings = errors.New("findings")

// Run runs the program with its arguments, the name left out, and returns its exit code. A
// line on Stderr describes a failure.
func Run(ctx context.Context, args []string, e Env) int {
	err := dispatch(ctx, args, e)
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return Clean
	case errors.Is(err, errFindings):
		return Findings
	}
	fmt.Fprintln(e.Stderr, "schemacheck:", err)
	return Failed
}

func dispatch(ctx context.Context, args []string, e Env) (err error) {
	defer crash.Recover(&err)
	name := ""
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		name, args = args[0], args[1:]
	}
	commands := map[string]func(context.Context, []string, Env) error{
		"": check, "check": check, "ci": ci, "release": releases, "registry": registry, "rules": rules, "help": help,
		"diff": diff, "init": initialize, "lint": lintEvents, "version": version,
	}
	run, ok := commands[name]
	if !ok {
		return fmt.Errorf("no command %q; there are check, ci, diff, init, lint, registry, release, rules, version and help",
			name)
	}
	return run(ctx, args, e)
}

// settings are the flags that several commands share.
type settings struct {
	base, head, policy, scope, format, released, registry, config string
	strict, github                                                bool
	exclude, events                                               list

	given map[string]bool  // flags that were on the command line
	file  *schemafile.File // what schemacheck.yaml says
	where string           // what it is called
}

type list []string

func (l *list) String() string     { return strings.Join(*l, ",") }
func (l *list) Set(s string) error { *l = append(*l, s); return nil }

// parse reads the named flags of a command. Arguments besides them are refused.
func (s *settings) parse(e Env, command string, args []string, names ...string) error {
	f := flag.NewFlagSet(command, flag.ContinueOnError)
	f.SetOutput(io.Discard)
	strings := map[string]struct {
		to      *string
		initial string
	}{
		"base": {&s.base, ""}, "head": {&s.head, "."}, "policy": {&s.policy, "FULL"}, "scope": {&s.scope, "all"},
		"format": {&s.format, "text"}, "released": {&s.released, "schemacheck/released"},
		"registry": {&s.registry, e.Getenv("SCHEMA_REGISTRY_URL")},
		"config":   {&s.config, ""},
	}
	for _, name := range names {
		if one, ok := strings[name]; ok {
			f.StringVar(one.to, name, one.initial, "")
		}
	}
	if slices.Contains(names, "strict") {
		f.BoolVar(&s.strict, "strict", false, "")
	}
	if slices.Contains(names, "github") {
		f.BoolVar(&s.github, "github", false, "")
	}
	if slices.Contains(names, "exclude") {
		f.Var(&s.exclude, "exclude", "")
	}
	if slices.Contains(names, "events") {
		f.Var(&s.events, "events", "")
	}
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprint(e.Stdout, page(""))
			return err
		}
		return fmt.Errorf("%w; see schemacheck help", err)
	}
	s.given, s.file = map[string]bool{}, &schemafile.File{}
	f.Visit(func(one *flag.Flag) { s.given[one.Name] = true })
	if f.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q; see schemacheck help", f.Arg(0))
	}
	if s.format != "" && !slices.Contains(report.Formats, s.format) {
		return fmt.Errorf("no format %q; there are text, json, sarif and github", s.format)
	}
	return nil
}

func (s *settings) options() (compat.Options, error) {
	policy, err := compat.ParsePolicy(s.policy)
	if err != nil {
		return compat.Options{}, fmt.Errorf("--policy %s: %w", s.policy, err)
	}
	scopes := map[string]compat.Scope{"event": compat.Event, "api": compat.API, "all": compat.All}
	scope, ok := scopes[s.scope]
	if !ok {
		return compat.Options{}, fmt.Errorf("no scope %q; there are event, api and all", s.scope)
	}
	return compat.Options{Policy: policy, Scope: scope}, nil
}
