package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/parley-chat/parley/schemacheck/internal/load"
	"github.com/parley-chat/parley/schemacheck/internal/report"
	"github.com/parley-chat/parley/schemacheck/internal/schemafile"
)

// configure reads schemacheck.yaml, from where --config says, and takes from it what
// no flag has said.
func (s *settings) configure(ctx context.Context, e Env) error {
	b, where, err := s.readConfig(ctx, e)
	if err != nil {
		return err
	}
	s.file, s.where = &schemafile.File{}, where
	if b != nil {
		if s.file, err = schemafile.Parse(b); err != nil {
			return fmt.Errorf("%s: %w", where, err)
		}
	}
	if !s.given["policy"] && s.file.Policy != "" {
		s.policy = s.file.Policy
	}
	if !s.given["released"] && s.file.Released != "" {
		s.released = s.file.Released
	}
	if !s.given["events"] {
		s.events = s.file.Events
	}
	s.exclude = append(s.exclude, s.file.Exclude...)
	s.strict = s.strict || s.file.Strict
	return nil
}

// readConfig returns the file and what it is called; nil if there is none.
func (s *settings) readConfig(ctx context.Context, e Env) ([]byte, string, error) {
	switch s.config {
	case "none":
		return nil, "", nil
	case "", "head":
		b, err := load.Config(ctx, s.head, load.Options{Dir: e.Dir, Git: e.Dir})
		return b, load.ConfigName, err
	case "base":
		if s.base == "" || s.base == "registry" {
			return nil, "", errors.New("--config base: there is no base with files")
		}
		b, err := load.Config(ctx, s.base, load.Options{Dir: e.Dir, Git: s.gitDir(e)})
		return b, load.ConfigName + " of " + s.base, err
	}
	path := s.config
	if !filepath.IsAbs(path) {
		path = filepath.Join(e.Dir, path)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, "", fmt.Errorf("--config %s: a file, head, base or none: %w", s.config, plain(err))
	}
	return b, s.config, nil
}

func plain(err error) error {
	if p, ok := errors.AsType[*os.PathError](err); ok {
		return p.Err
	}
	return err
}

// waive takes what waivers cover out of the findings. Those that have expired block,
// and those that cover nothing are named.
func (s *settings) waive(r *report.Report, now time.Time) {
	for _, w := range s.file.Waivers {
		if w.Expired(now) {
			r.Problems = append(r.Problems,
				fmt.Sprintf("%s: a waiver has expired; remove it or agree on another day: %s", s.where, w))
			continue
		}
		covered := false
		r.Findings = slices.DeleteFunc(r.Findings, func(f report.Finding) bool {
			if !w.Covers(f.ID, f.Subject) {
				return false
			}
			covered = true
			r.Waived = append(r.Waived, report.Waived{Finding: f, Reason: w.Reason, Owner: w.Owner, Expires: w.Expires})
			return true
		})
		if !covered {
			r.Notes = append(r.Notes, fmt.Sprintf("%s: a waiver applies to nothing here: %s", s.where, w))
		}
	}
}
