package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/parley-chat/parley/schemacheck/internal/load"
	"github.com/parley-chat/parley/schemacheck/internal/report"
)

// check compares head with base.
func check(ctx context.Context, args []string, e Env) error {
	var s settings
	if err := s.parse(e, "check", args, "base", "head", "policy", "scope", "format", "strict", "exclude", "events",
		"registry", "config"); err != nil {
		return err
	}
	if s.base == "" {
		return errors.New("--base is missing: a git ref (--base origin/main), a directory, an image or registry; see schemacheck help")
	}
	if s.base == "registry" {
		return checkRegistry(ctx, &s, e)
	}
	v, err := s.load(ctx, e)
	if err != nil {
		return err
	}
	r := s.report(v.head)
	if err := v.judge(ctx, r); err != nil {
		return err
	}
	v.waive(r, e.now())
	return finish(r, s.format, e)
}

// load reads base and head, as flags and schemacheck.yaml say.
func (s *settings) load(ctx context.Context, e Env) (*verdict, error) {
	if err := s.configure(ctx, e); err != nil {
		return nil, err
	}
	o, err := s.options()
	if err != nil {
		return nil, err
	}
	v := &verdict{settings: s, o: o}
	if v.head, err = s.loadHead(ctx, e); err != nil {
		return nil, err
	}
	v.bases, err = load.Load(ctx, s.base,
		load.Options{Dir: e.Dir, Git: s.gitDir(e), Cache: bufCache(e), Exclude: s.exclude})
	if err != nil {
		return nil, fmt.Errorf("base: %w", err)
	}
	v.o.Events, err = s.eventPatterns(v.bases, v.head)
	return v, err
}

// bufCache is where buf keeps modules.
func bufCache(e Env) string {
	if dir := e.Getenv("BUF_CACHE_DIR"); dir != "" {
		return dir
	}
	for name, below := range map[string]string{"LOCALAPPDATA": "buf", "HOME": filepath.Join(".cache", "buf")} {
		if dir := e.Getenv(name); dir != "" && (name == "LOCALAPPDATA") == (runtime.GOOS == "windows") {
			if cache := e.Getenv("XDG_CACHE_HOME"); cache != "" && name == "HOME" {
				return filepath.Join(cache, "buf")
			}
			return filepath.Join(dir, below)
		}
	}
	return ""
}

// loadHead reads the one schema that is judged.
func (s *settings) loadHead(ctx context.Context, e Env) (*load.Schema, error) {
	found, err := load.Load(ctx, s.head, load.Options{Dir: e.Dir, Git: e.Dir, Cache: bufCache(e), Exclude: s.exclude})
	if err != nil {
		return nil, fmt.Errorf("head: %w", err)
	}
	if len(found) != 1 {
		return nil, fmt.Errorf("head: %s holds %d schemas: name one image", s.head, len(found))
	}
	if s.head == "." {
		found[0].Name = "the working tree"
	}
	return found[0], nil
}

// gitDir is where refs are looked up: the repository of head, if head is a folder.
func (s *settings) gitDir(e Env) string {
	path := s.head
	if !filepath.IsAbs(path) {
		path = filepath.Join(e.Dir, path)
	}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return path
	}
	return e.Dir
}

func (s *settings) report(head *load.Schema) *report.Report {
	return &report.Report{Head: head.Name, Policy: s.policy, Scope: s.scope, Strict: s.strict, Files: len(head.Files)}
}

func finish(r *report.Report, format string, e Env) error {
	r.Finish()
	if err := r.Write(e.Stdout, format); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	if !r.Clean() {
		return errFindings
	}
	return nil
}
